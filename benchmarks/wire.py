"""The wire beside a plain socket and gRPC: what a remote call costs above its own work, and how fast bytes travel.

    OMP_NUM_THREADS=1 python -m benchmarks.wire [--calls 2000] [--large 64] [--rounds 9] [--tls CERT KEY] [--long]

Client and server are two processes on loopback; TCP without TLS, tags of every frame checked, one thread calls. The
server measures the work of each call itself, with its own clock; *above* is the client's time less that: of all calls
the median, and the 10th percentile, which others on the machine move least. ``echo`` does nothing; ``forward`` opens a
session of a small GPT-2, reads 128 tokens (1 KB) and takes the argmax of the logits. The socket's ``forward`` is the
same work between two reads and two writes of a thread: what the machine takes for waking both ends. Large payloads go
to the server (``send``) or come from it (``fetch``) and are touched by nobody; the socket's row is ``sendall`` and
``recv_into`` of the same bytes into one buffer. Rounds of all alternate in one run; the figure is the median. gRPC's
rows need ``pip install grpcio``: generic methods with raw bytes. ``--long`` measures ``torch.distributed.rpc`` as well,
and an actor of Ray where that is installed.
"""

import argparse
import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import transformers

from benchmarks.wire_peers import Ray, TorchRpc, free_port, has_ray, serve_rpc
from tmmu.client.client_connection import ClientConnection
from tmmu.client.transport import open_transport
from tmmu.engine.engine import Engine
from tmmu.server.settings import load_settings
from tmmu.server.tls import server_context
from tmmu.server.wire.server_connection import ServerConnection
from tmmu.server.wire.wire_door import WireDoor
from tmmu.wire.interface import Message, Payloads, Peer, RequestHeader, ServiceCall, WireHeader

SMALL: Final = 1024
TOKENS: Final = SMALL // 8
MESSAGE_LIMIT: Final = -1
"""Of gRPC, which has one of 4 MiB by default: none."""


class Worked(WireHeader, frozen=True):
    """Seconds of the work itself."""

    seconds: float
    token: int = 0


class Work(RequestHeader, frozen=True, tag="bench.work"):
    """Echo, or a forward of the payload; ``fetch``: bytes to send back."""

    answer = Worked
    forward: bool = False
    fetch: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0


class WorkService:
    """The work of both kinds, with its own clock."""

    requests = (Work,)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._bytes = memoryview(np.zeros(0, np.uint8).data)

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:  # noqa: ARG002
        """Seconds, and what was asked for."""
        assert isinstance(header, Work)
        start = perf_counter()
        token = self.forward(payloads[0]) if header.forward else 0
        seconds = perf_counter() - start
        return Worked(seconds=seconds, token=token), [self.bytes(header.fetch)] if header.fetch else ()

    def forward(self, payload: memoryview) -> int:
        """The best token behind 128 others."""
        with self._engine.open(TOKENS) as session:
            return int(session.prefill(payload.cast("q").tolist()).argmax())

    def forward_seconds(self, payload: memoryview) -> float:
        """What a forward took."""
        start = perf_counter()
        self.forward(payload)
        return perf_counter() - start

    def bytes(self, size: int) -> memoryview:
        """As many bytes, the same each time."""
        if len(self._bytes) != size:
            self._bytes = memoryview(random_bytes(size))
        return self._bytes

    def connection_lost(self, peer: Peer) -> None:
        """Nothing of it is here."""


def random_bytes(size: int) -> memoryview:
    return np.random.default_rng(0).integers(0, 256, size, np.uint8).data


def small_engine() -> Engine:
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=500, n_positions=256)
    return Engine(transformers.GPT2LMHeadModel(config).eval(), max_tokens=256, max_batch=1, max_sessions=2)


def make_service() -> WorkService:
    return WorkService(small_engine())


# -- the server's process


class _FirstBytes(asyncio.Protocol):
    def __init__(self, door: WireDoor) -> None:
        self._door = door

    def connection_made(self, transport: Any) -> None:
        ServerConnection(self._door, transport, set()).begin(b"")


def serve(tls: tuple[str, str] | None, rpc_port: int) -> None:
    """Prints its ports, and serves until its input ends. ``rpc_port``: of ``torch.distributed.rpc``; 0: none."""
    logging.disable()
    service = make_service()
    door = WireDoor([service], load_settings({"payload_bytes": "1GiB", "receive_memory": "2GiB"}), None)
    sink = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=sink_bytes, args=(sink, service), daemon=True).start()
    rpc = threading.Thread(target=serve_rpc, args=(rpc_port, service), daemon=True)
    if rpc_port:
        rpc.start()
    grpc_port = serve_grpc(service) if find_spec("grpc") else 0

    async def main() -> None:
        context = None if tls is None else server_context(Path(tls[0]), Path(tls[1]))
        server = await asyncio.get_running_loop().create_server(lambda: _FirstBytes(door), "127.0.0.1", 0, ssl=context)
        door.start()
        print(server.sockets[0].getsockname()[1], sink.getsockname()[1], grpc_port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        door.stop()

    asyncio.run(main())
    if rpc_port:
        rpc.join(10)


def sink_bytes(listener: socket.socket, service: WorkService) -> None:
    """Takes as many bytes as it was told, and says so; or sends them; or takes them, works, and says for how long."""
    client, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    order, room = bytearray(9), bytearray(1)
    while receive_all(client, memoryview(order)):
        size = int.from_bytes(order[1:], "little")
        room = room if len(room) == size else bytearray(size)
        buffer = memoryview(room)
        if order[0] == 1:
            client.sendall(buffer)
            continue
        receive_all(client, buffer)
        client.sendall(np.float64(service.forward_seconds(buffer)).tobytes() if order[0] else b"x")


def receive_all(client: socket.socket, place: memoryview) -> bool:
    while place:
        count = client.recv_into(place)
        if not count:
            return False
        place = place[count:]
    return True


def serve_grpc(service: WorkService) -> int:
    """A gRPC server of the same work, with raw bytes."""
    import grpc  # noqa: PLC0415 - where it is installed

    def method(run: Callable[[bytes], bytes]) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, _: run(request))

    def forward(request: bytes) -> bytes:
        return np.float64(service.forward_seconds(memoryview(request))).tobytes()

    methods = {
        "echo": method(lambda _: bytes(8)),
        "forward": method(forward),
        "fetch": method(lambda request: bytes(service.bytes(int.from_bytes(request, "little")))),
    }
    options = [("grpc.max_receive_message_length", MESSAGE_LIMIT), ("grpc.max_send_message_length", MESSAGE_LIMIT)]
    server = grpc.server(ThreadPoolExecutor(1), options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", methods),))
    port: int = server.add_insecure_port("127.0.0.1:0")
    server.start()
    globals()["_grpc_server"] = server  # it ends with its last reference
    return port


# -- the client's process


class Wire:
    """Ours."""

    def __init__(self, port: int, tls: str | None) -> None:
        transport = open_transport(f"127.0.0.1:{port}", Path(tls) if tls else False, monotonic() + 30)
        self.connection = ClientConnection(transport, None, deadline=60)

    def call(self, payload: memoryview, *, forward: bool) -> float:
        header, _ = self.connection.request(Work(forward=forward), [payload])
        return float(header.seconds)  # type: ignore[attr-defined]

    def send(self, data: memoryview) -> None:
        self.connection.request(Work(), [data])

    def fetch(self, size: int) -> None:
        _, (payload,) = self.connection.request(Work(fetch=size))
        assert len(payload) == size


class PlainSocket:
    """What the system does."""

    def __init__(self, port: int) -> None:
        self.client = socket.create_connection(("127.0.0.1", port))
        self.room = bytearray(1)
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, payload: memoryview, *, forward: bool) -> float:
        if not forward:
            self.send(payload)
            return 0.0
        self.client.sendall(b"\2" + len(payload).to_bytes(8, "little") + payload)
        answer = bytearray(8)
        assert receive_all(self.client, memoryview(answer))
        return float(np.frombuffer(answer)[0])

    def send(self, data: memoryview) -> None:
        self.client.sendall(b"\0" + len(data).to_bytes(8, "little"))
        self.client.sendall(data)
        assert self.client.recv(1)

    def fetch(self, size: int) -> None:
        self.client.sendall(b"\1" + size.to_bytes(8, "little"))
        self.room = self.room if len(self.room) == size else bytearray(size)
        assert receive_all(self.client, memoryview(self.room))


class Grpc:
    """gRPC, with bytes that nobody encodes; it takes them from ``bytes`` alone."""

    def __init__(self, port: int) -> None:
        import grpc  # noqa: PLC0415 - where it is installed

        options = [("grpc.max_receive_message_length", MESSAGE_LIMIT), ("grpc.max_send_message_length", MESSAGE_LIMIT)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._methods = {name: self._channel.unary_unary(f"/bench/{name}") for name in ("echo", "forward", "fetch")}

    def call(self, payload: memoryview, *, forward: bool) -> float:
        answer = self._methods["forward" if forward else "echo"](bytes(payload))
        return float(np.frombuffer(answer)[0])

    def send(self, data: memoryview) -> None:
        self._methods["echo"](bytes(data))

    def fetch(self, size: int) -> None:
        assert len(self._methods["fetch"](size.to_bytes(8, "little"))) == size


@contextmanager
def server_process(tls: tuple[str, str] | None, rpc_port: int) -> Iterator[tuple[int, int, int]]:
    command = [sys.executable, "-m", "benchmarks.wire", "--serve", "--rpc-port", str(rpc_port)]
    command += ["--tls", *tls] if tls else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        wire, plain, grpc = map(int, process.stdout.readline().split())
        try:
            yield wire, plain, grpc
        finally:
            process.stdin.close()
            process.wait(60)


def above(peer: Any, payload: memoryview, calls: int, *, forward: bool) -> tuple[float, float, float, float]:
    """Microseconds above the work: 10th percentile, median and 99th; and the work's own median."""
    over, work = [], []
    for number in range(calls + 50):
        start = perf_counter()
        seconds = peer.call(payload, forward=forward)
        if number >= 50:
            over.append(perf_counter() - start - seconds)
            work.append(seconds)
    ordered = sorted(over)
    low, high = ordered[len(over) // 10], ordered[int(len(over) * 0.99)]
    return low * 1e6, median(over) * 1e6, high * 1e6, median(work) * 1e6


def rates(peers: dict[str, Any], size: int, rounds: int) -> dict[tuple[str, str], float]:
    """Bytes a second of each, in rounds that alternate; the median, without the first."""
    data = memoryview(random_bytes(size))
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds + 1):
        for name, peer in peers.items():
            for way, run in (
                ("send", lambda peer=peer: peer.send(data)),
                ("fetch", lambda peer=peer: peer.fetch(size)),
            ):
                start = perf_counter()
                run()
                seconds.setdefault((name, way), []).append(perf_counter() - start)
    return {key: size / median(times[1:]) for key, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--large", type=int, default=64, help="MiB")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"))
    parser.add_argument("--long", action="store_true", help="torch.distributed.rpc and Ray too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rpc-port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    tls = tuple(options.tls) if options.tls else None
    if options.serve:
        serve(tls, options.rpc_port)
        return
    rpc_port = free_port() if options.long else 0
    with ExitStack() as stack:
        wire, plain, grpc = stack.enter_context(server_process(tls, rpc_port))
        peers: dict[str, Any] = {"wire": Wire(wire, tls and tls[0]), "socket": PlainSocket(plain)}
        peers |= {"gRPC": Grpc(grpc)} if grpc else {}
        if rpc_port:
            peers["torch rpc"] = TorchRpc(rpc_port)
            stack.callback(peers["torch rpc"].close)
        if options.long and has_ray():
            peers["Ray"] = Ray()
            stack.callback(peers["Ray"].close)
        small = memoryview(np.arange(TOKENS, dtype=np.int64).tobytes())
        print("| call of 1 KB | p10 µs above the work | median | p99 | work µs |\n| --- | --- | --- | --- | --- |")
        for name, peer in peers.items():
            for kind in ("echo", "forward"):
                cells = above(peer, small, options.calls, forward=kind == "forward")
                print(f"| {name}, {kind} | {' | '.join(f'{cell:.0f}' for cell in cells)} |", flush=True)
        speeds = rates(peers, options.large << 20, options.rounds)
        print(f"\n| {options.large} MiB | send GB/s | of the socket's | fetch GB/s | of the socket's |")
        print("| --- | --- | --- | --- | --- |")
        for name in peers:
            cells = [f"{speeds[name, way] / 1e9:.2f} | {speeds[name, way] / speeds['socket', way]:.2f}"
                     for way in ("send", "fetch")]  # fmt: skip
            print(f"| {name} | {' | '.join(cells)} |")
        if not grpc:
            print("\ngRPC: grpcio is not installed")
        if options.long and not has_ray():
            print("\nRay: it is not installed")


if __name__ == "__main__":
    main()
