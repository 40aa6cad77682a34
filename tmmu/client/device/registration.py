"""The device type ``remote``: added to torch when a remote device is first attached, and never on import.

A process has one added device type. While a remote device is attached its tensors, and what is made with
``device="remote"``, are recorded by it; another can be attached once it is closed.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from threading import Lock
from types import TracebackType
from typing import Any, Final, TypeVar

import torch

from tmmu.client.device.contents import UploadedTensor
from tmmu.client.device.device_counts import DeviceCounts
from tmmu.client.device.device_operators import CPU_KERNELS, WHOLE_COMPOSITES
from tmmu.client.device.dispatch import CallDispatcher
from tmmu.client.device.remote_recorder import RemoteRecorder
from tmmu.client.device.remote_tensor import DEVICE_NAME, RemoteTensor
from tmmu.client.forks import leave_to_parent
from tmmu.errors import DeviceTaken, ReferenceStale, UnsupportedOp
from tmmu.passes.operators.schema import argument_schema
from tmmu.passes.shapes.inference import TensorGeometry
from tmmu.torch_private import (
    UNNAMED_DEVICE,
    OpOverload,
    SeededDevice,
    custom_device_name,
    register_python_device,
)
from tmmu.wire.interface import Connection

T = TypeVar("T")
_FACTORIES: Final = (
    "arange bartlett_window blackman_window eye full hamming_window hann_window kaiser_window linspace logspace ones "
    "rand randint randn randperm range scalar_tensor tril_indices triu_indices zeros"
)
"""Operators that make a tensor of numbers, recorded as one call: torch would write into memory that it made empty."""

_BENEATH_SUBCLASSES: Final = (torch.ops.aten.copy_.default, torch.ops.aten._local_scalar_dense.default)
"""What ``torch.tensor`` calls beneath the dispatch of subclasses, for a tensor and for a list that has some."""


class RemoteDevice:
    """An attached device: ``counts`` says what it did. Closing it, or leaving its block, makes its tensors stale."""

    def __init__(self, dispatcher: CallDispatcher) -> None:
        self.dispatcher = dispatcher

    @property
    def counts(self) -> DeviceCounts:
        """Calls, requests, bytes."""
        return self.dispatcher.recorder.counts

    @property
    def is_open(self) -> bool:
        """Whether it is attached, and its connection open."""
        return self.dispatcher.recorder.is_connected

    def __repr__(self) -> str:
        return f"<RemoteDevice, {'open' if self.is_open else 'closed'}>"

    def tensors_of_uploads(self, rows: Sequence[UploadedTensor]) -> list[RemoteTensor]:
        """Tensors, each on a storage of its own, of bytes that were sent before. Errors: ``REFERENCE_STALE``."""
        dispatcher = self.dispatcher
        with dispatcher.recorder.lock:
            contents = dispatcher.recorder.take_uploads(rows)
            return [
                dispatcher.tensor_of(content, TensorGeometry(0, row.bytes, 0, row.shape, row.stride, row.dtype))
                for content, row in zip(contents, rows, strict=True)
            ]

    def run(self) -> None:
        """Runs what is recorded, without looking at a value."""
        self.dispatcher.recorder.run()

    def free(self) -> None:
        """Has the server let go of tensors that are gone here; else that goes with the next request. Runs what is
        recorded first.
        """
        self.dispatcher.recorder.free()

    def step(self, function: Callable[..., T]) -> Callable[..., T]:
        """The function as a training step: gradients are recorded, and all of it runs when it returns.

        It looks at no value (``UNSUPPORTED_OP``); what it returns may be looked at.
        """

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> T:
            dispatcher = self.dispatcher
            outer, dispatcher.trains = dispatcher.trains, True
            dispatcher.backward_error = None
            try:
                with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
                    result = function(*args, **kwargs)
            finally:
                dispatcher.trains = outer
                error = dispatcher.backward_error
                if error is not None:
                    raise error  # rather than what came of it
            if not outer:
                self.run()
            return result

        return run

    def close(self) -> None:
        """Detaches it. Closing again does nothing."""
        with _ATTACHED.lock:
            if _ATTACHED.dispatcher is self.dispatcher:
                _ATTACHED.dispatcher = None
        self.dispatcher.recorder.close()

    def __enter__(self) -> "RemoteDevice":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Attached:
    """What is attached, and what keeps the registration alive."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.dispatcher: CallDispatcher | None = None
        self.registration: tuple[Any, ...] = ()

    def leave_to_parent(self) -> None:
        """As ``Forked.leave_to_parent``: nothing is attached here."""
        self.lock, self.dispatcher = Lock(), None

    def call(self, operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """A call that no remote tensor has brought here."""
        if self.dispatcher is None:
            raise ReferenceStale("no remote device is attached", fix="connect to a server")
        return self.dispatcher.call(operator, args, kwargs)


_ATTACHED: Final = _Attached()
leave_to_parent(_ATTACHED)


class _NoAutocast(list[torch.dtype]):
    """The dtypes that autocast has on the device. A block that is off, as checkpoints have one, asks for none."""

    def __contains__(self, dtype: object) -> bool:
        raise UnsupportedOp(f"autocast to {dtype} on a remote device", fix="convert the model and its inputs")


class _RemoteModule(SeededDevice):
    """``torch.remote``: what torch asks a device about."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """None: ``UNSUPPORTED_OP`` for who looks for one."""
        return _NoAutocast()

    def is_available(self) -> bool:
        """``False``: programs that ask for any accelerator there is do not mean this one."""
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Seeds the generator on the server, as ``torch.manual_seed`` seeds the cpu's."""
        dispatcher = _ATTACHED.dispatcher
        if dispatcher is not None:
            dispatcher.recorder.set_seed(int(seed))


def attach_device(connection: Connection, *, deadline: float | None = None) -> RemoteDevice:
    """``device="remote"`` means the server of this connection from now on, until the device is closed.

    ``deadline``: seconds that a request may take. ``DEVICE_TAKEN`` where another device is attached whose connection is
    open, or the device type
    that a process may add is another library's.
    """
    with _ATTACHED.lock:
        before = _ATTACHED.dispatcher
        if before is not None and before.recorder.is_connected:
            raise DeviceTaken("a remote device is attached already", fix="close it, or use shared_device()")
        _register()
        if before is not None:
            before.recorder.close()
        _ATTACHED.dispatcher = dispatcher = CallDispatcher(RemoteRecorder(connection, deadline=deadline))
    return RemoteDevice(dispatcher)


def _register() -> None:
    """Adds the device type and its kernels to torch, once."""
    name = custom_device_name()
    if _ATTACHED.registration:
        return
    if name != UNNAMED_DEVICE:
        raise DeviceTaken(
            f"this process has added the device {name!r} to torch, and there can be one", fix="use another process"
        )
    parts = register_python_device(DEVICE_NAME, _RemoteModule())
    library, fallback = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    for operator in (*_factories(), *sorted(CPU_KERNELS, key=str)):
        library.impl(_name_of(operator), _kernel(operator), "PrivateUse1")  # type: ignore[no-untyped-call]
    for operator in sorted(WHOLE_COMPOSITES, key=str):
        library.impl(_name_of(operator), _kernel(operator), "AutogradPrivateUse1")  # type: ignore[no-untyped-call]
    for operator in _BENEATH_SUBCLASSES:
        library.impl(_name_of(operator), _kernel(operator), "PrivateUse1")  # type: ignore[no-untyped-call]
    fallback.fallback(_ATTACHED.call, "PrivateUse1")  # type: ignore[no-untyped-call]
    _ATTACHED.registration = (parts, library, fallback)


def _kernel(operator: OpOverload) -> Callable[..., Any]:
    return partial(_ATTACHED.call, operator)


def _factories() -> list[OpOverload]:
    """Overloads that make a tensor on a device and take none, nor a generator."""
    packets = [getattr(torch.ops.aten, name) for name in _FACTORIES.split()]
    overloads = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return [operator for operator in overloads if _makes_tensor(operator)]


def _makes_tensor(operator: OpOverload) -> bool:
    arguments = argument_schema(operator)
    names, kinds = {name for name, _, _ in arguments}, " ".join(kind for _, kind, _ in arguments)
    return "device" in names and "names" not in names and "Tensor" not in kinds and "Generator" not in kinds


def _name_of(operator: OpOverload) -> str:
    """``aten.ones.default`` as ``ones``, ``aten.arange.start`` as ``arange.start``."""
    return str(operator).removeprefix("aten.").removesuffix(".default")
