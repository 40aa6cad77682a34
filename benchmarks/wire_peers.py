"""Other ways to call a function of another process, for benchmarks.wire: torch.distributed.rpc, and an actor of Ray.

Both take the bytes of a tensor as their users send them, and pickle the call around it.
"""

import socket
from importlib.util import find_spec
from typing import Any, Final, Protocol

import numpy as np
import torch

SERVER: Final = "server"
CLIENT: Final = "client"


class Service(Protocol):
    """The work, as ``benchmarks.wire`` has it."""

    def forward_seconds(self, payload: memoryview) -> float:
        """What a forward of the payload took."""

    def bytes(self, size: int) -> memoryview:
        """As many bytes, the same each time."""


_SERVICE: list[Service] = []
"""Of the process that serves: functions that are called from afar are found by their names."""


# -- torch.distributed.rpc


def free_port() -> int:
    """One that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def join_rpc(port: int, name: str) -> None:
    """Waits for the other process; both have one thread for calls."""
    from torch.distributed import rpc  # noqa: PLC0415 - where it is measured

    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=1, init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc(name, rank=int(name == CLIENT), world_size=2, rpc_backend_options=options)


def serve_rpc(port: int, service: Service) -> None:
    """Answers ``call_rpc`` and ``fetch_rpc`` until the client ends."""
    from torch.distributed import rpc  # noqa: PLC0415 - as above

    _SERVICE.append(service)
    join_rpc(port, SERVER)
    rpc.shutdown()


def call_rpc(payload: torch.Tensor, forward: bool) -> float:  # noqa: FBT001 - of a remote call
    """Runs at the server: seconds of the work."""
    return _SERVICE[0].forward_seconds(payload.numpy().data) if forward else 0.0


def fetch_rpc(size: int) -> torch.Tensor:
    """Runs at the server: so many bytes."""
    return torch.frombuffer(_SERVICE[0].bytes(size), dtype=torch.uint8)


class TorchRpc:
    """The client."""

    def __init__(self, port: int) -> None:
        from torch.distributed import rpc  # noqa: PLC0415 - as above

        join_rpc(port, CLIENT)
        self._rpc = rpc

    def call(self, payload: memoryview, *, forward: bool) -> float:
        tensor = torch.from_numpy(np.frombuffer(payload, np.uint8))
        return float(self._rpc.rpc_sync(SERVER, call_rpc, args=(tensor, forward)))

    def send(self, data: memoryview) -> None:
        self.call(data, forward=False)

    def fetch(self, size: int) -> None:
        assert len(self._rpc.rpc_sync(SERVER, fetch_rpc, args=(size,))) == size

    def close(self) -> None:
        """Lets both processes end."""
        self._rpc.shutdown()


# -- Ray


class RayActor:
    """The work in a process of Ray's; the client has it made."""

    def __init__(self) -> None:
        from benchmarks.wire import make_service  # noqa: PLC0415 - by its name: Ray would pickle what is handed over

        self._service = make_service()

    def call(self, payload: "np.ndarray[Any, Any]", forward: bool) -> float:  # noqa: FBT001 - of a remote call
        return self._service.forward_seconds(payload.data) if forward else 0.0

    def fetch(self, size: int) -> "np.ndarray[Any, Any]":
        return np.frombuffer(self._service.bytes(size), np.uint8)


class Ray:
    """An actor on this machine; large arguments and results go through its shared memory."""

    def __init__(self) -> None:
        import ray  # noqa: PLC0415 - where it is installed

        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
        self._ray = ray
        self._actor = ray.remote(RayActor).remote()

    def call(self, payload: memoryview, *, forward: bool) -> float:
        return float(self._ray.get(self._actor.call.remote(np.frombuffer(payload, np.uint8), forward)))

    def send(self, data: memoryview) -> None:
        self.call(data, forward=False)

    def fetch(self, size: int) -> None:
        assert len(self._ray.get(self._actor.fetch.remote(size))) == size

    def close(self) -> None:
        """Ends what it has started."""
        self._ray.shutdown()


def has_ray() -> bool:
    """Whether there is one."""
    return find_spec("ray") is not None
