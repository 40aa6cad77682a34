"""Strangers, liars and the dying: they get nothing, hold nothing up, and leave nothing behind."""

import os
import random
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread
from time import monotonic

import pytest

from tests.server.raw_frames import RawClient, request_of
from tests.server.wire_bytes import BytesConnection
from tests.server.wire_running import RunningWire, running_wire
from tests.unit.wire.sums import Add, Misbehave, Sums
from tmmu.errors import ServerGone, TmmuError
from tmmu.server.keys import KeyRing
from tmmu.wire.frames import CREDIT, PREAMBLE, PREFIX, FrameKind

QUICK = {"receive_seconds": 0.5, "send_seconds": 0.5, "heartbeat_seconds": 0.4, "payload_bytes": "8MiB"}


@pytest.fixture(scope="module")
def wire() -> Iterator[RunningWire]:
    with running_wire([Sums()], **QUICK) as wire:
        yield wire


@pytest.fixture(autouse=True)
def nobody_is_left(wire: RunningWire) -> Iterator[None]:
    yield
    while RawClient.open:
        RawClient.open.pop().close()
    wire.wait_for(lambda: not wire.connections and not wire.door.connections and not wire.door.running)
    assert wire.door.memory.used == wire.door.memory.waiting == 0
    connection = wire.connect()
    assert connection.request(Add(numbers=(2,)))[0].value == 2
    connection.close()
    wire.wait_for(lambda: not wire.connections)


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        PREAMBLE[:3],
        PREAMBLE,
        PREAMBLE + PREFIX.pack(FrameKind.HELLO, 0, 0, 0, 900),
        PREAMBLE + PREFIX.pack(FrameKind.HELLO, 0, 0, 0, 900) + bytes(899),
    ],
)
def test_an_opening_that_does_not_go_on_is_closed(wire: RunningWire, beginning: bytes) -> None:
    with wire.socket() as client:
        client.sendall(beginning or PREAMBLE[:1])
        assert client.recv(100) == b""


def test_a_client_that_drips_is_closed(wire: RunningWire) -> None:
    client = RawClient(wire)
    frame = client.encoded(FrameKind.REQUEST, 1, request_of([4000], inline=bytes(4000)))
    client.socket.settimeout(0.05)
    is_closed, sent = False, 0
    while not is_closed:
        sent += 1
        try:
            client.socket.sendall(frame[sent : sent + 1])
            is_closed = client.socket.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            is_closed = True
    assert sent < len(frame)


def test_a_frame_counts_from_its_own_beginning() -> None:
    with running_wire([Sums()], receive_seconds=300, heartbeat_seconds=300) as wire:
        client = RawClient(wire)
        (connection,) = wire.door.connections
        sent = client.encoded(FrameKind.REQUEST, 1, request_of([9], inline=bytes(9)))
        connection._amid_since -= 3000  # nothing was asked for a while
        client.socket.sendall(sent[:20])
        wire.wait_for(lambda: connection._reader.is_amid_frame)
        wire.call(lambda: connection.check(monotonic()))
        client.socket.sendall(sent[20:])
        assert client.frame()[:2] == (FrameKind.ANSWER, 1)


def test_what_fails_while_the_server_drains_is_said() -> None:
    with running_wire([Sums()], heartbeat_seconds=60) as wire:
        client = RawClient(wire)
        client.socket.sendall(
            client.encoded(FrameKind.REQUEST, 1, request_of([], Misbehave(way="sleep"), deadline=100))
        )
        wire.wait_for(lambda: wire.door.running == 1)
        wire.door.is_draining = True
        assert client.frame()[:2] == (FrameKind.FAILURE, 1)
        assert client.rest() == b""


def test_a_client_that_says_nothing_more_is_closed(wire: RunningWire) -> None:
    assert RawClient(wire).rest() == b""


def test_payloads_that_were_declared_and_do_not_come_are_refused(wire: RunningWire) -> None:
    client = RawClient(wire)
    client.socket.sendall(client.encoded(FrameKind.REQUEST, 1, request_of([8 << 20])))
    assert client.frame() == (FrameKind.CREDIT, 1, CREDIT.pack(4 << 20))
    kind, stream, body = FrameKind.PONG, 0, b""
    while kind == FrameKind.PONG:  # signs of life, and no payload
        client.socket.sendall(client.encoded(FrameKind.PING, 0, bytes(8)))
        kind, stream, body = client.frame()  # type: ignore[assignment]
    assert (kind, stream) == (FrameKind.FAILURE, 1)
    assert b"REQUEST_TIMEOUT" in body


def test_a_client_that_takes_nothing_is_closed(wire: RunningWire) -> None:
    client = RawClient(wire)
    data = bytes(60_000)
    try:
        for number in range(1, 1000):
            body = request_of([len(data)], Add(returns=True), inline=data)
            client.socket.sendall(client.encoded(FrameKind.REQUEST, number, body))
    except OSError:
        pass
    wire.wait_for(lambda: not wire.connections)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (request_of([8 << 20, 1]), b"REQUEST_TOO_LARGE"),
        (request_of([0] * 5000), b"REQUEST_TOO_LARGE"),
        (request_of([1 << 62, 1 << 62]), b"REQUEST_TOO_LARGE"),
        (request_of([], {"type": "sums.add", "more": 1}), b"INVALID_REQUEST"),
        (request_of([], {"type": "os.system"}), b"INVALID_REQUEST"),
        (request_of([], [1, 2]), b"INVALID_REQUEST"),
        (request_of([], {"type": "sums.add", "numbers": [0] * 100_000}), b"INVALID_REQUEST"),
        (request_of([], Add(), deadline=0), b"DEADLINE_EXCEEDED"),
    ],
    ids=range(8),
)
def test_requests_beyond_limits_are_refused_and_others_answered(wire: RunningWire, body: bytes, code: bytes) -> None:
    client = RawClient(wire)
    client.socket.sendall(client.encoded(FrameKind.REQUEST, 1, body))
    kind, stream, answer = client.frame()
    assert stream == 1
    assert (kind == FrameKind.FAILURE and code in answer) or (code == b"DEADLINE_EXCEEDED" and kind == FrameKind.ANSWER)
    client.socket.sendall(client.encoded(FrameKind.REQUEST, 2, request_of([3], inline=b"abc")))
    assert client.frame()[:2] == (FrameKind.ANSWER, 2)
    client.socket.close()


@pytest.mark.parametrize(
    ("kind", "stream", "body"),
    [
        (FrameKind.REQUEST, 0, request_of([])),
        (FrameKind.REQUEST, 1, b""),
        (FrameKind.REQUEST, 1, request_of([4], inline=b"abc")),
        (FrameKind.REQUEST, 1, b"\xff" * 100),
        (FrameKind.REQUEST, 1, b"\x10\x00\x00\x00" + b"\x91" * 16),
        (FrameKind.CHUNK, 5, b"abc"),
        (FrameKind.ANSWER, 1, request_of([])),
        (FrameKind.FAILURE, 0, b""),
        (FrameKind.HELLO, 0, b""),
        (FrameKind.READY, 0, b""),
        (FrameKind.PONG, 0, bytes(8)),
        (FrameKind.DRAIN, 0, b""),
    ],
    ids=range(12),
)
def test_frames_out_of_place_end_the_connection(wire: RunningWire, kind: FrameKind, stream: int, body: bytes) -> None:
    client = RawClient(wire)
    client.socket.sendall(client.encoded(kind, stream, body))
    assert b"WIRE_BROKEN" in client.rest()


def test_frames_that_are_repeated_or_out_of_order_end_the_connection(wire: RunningWire) -> None:
    for order in ((0, 0), (1, 0), (1,)):
        client = RawClient(wire)
        frames = [client.encoded(FrameKind.REQUEST, number, request_of([])) for number in (1, 2)]
        client.socket.sendall(b"".join(frames[index] for index in order))
        assert b"WIRE_BROKEN" in client.rest()
    client = RawClient(wire)  # recorded on another connection
    client.socket.sendall(frames[0])
    assert b"WIRE_BROKEN" in client.rest()


def test_a_client_that_asks_and_takes_nothing_has_little_memory() -> None:
    connection = BytesConnection([Sums()])
    before = len(connection._transport.sent)
    connection._connection.pause_writing()
    asked = 0
    while not connection._transport.is_closed and asked < 4 << 20:
        pings = [connection.encoded(FrameKind.PING, 0, bytes(8)) for _ in range(1000)]
        refused = connection.encoded(FrameKind.REQUEST, connection.next_stream(), request_of([1 << 40]))
        connection.feed(b"".join((*pings, refused)))
        asked += 1000 * len(pings[0])
    assert connection.is_over
    assert sum(map(len, connection._transport.sent[before:])) < 1 << 21


def test_a_stream_is_used_once(wire: RunningWire) -> None:
    client = RawClient(wire)
    client.socket.sendall(client.encoded(FrameKind.REQUEST, 5, request_of([])))
    assert client.frame()[:2] == (FrameKind.ANSWER, 5)
    client.socket.sendall(client.encoded(FrameKind.REQUEST, 5, request_of([])))
    assert b"WIRE_BROKEN" in client.rest()


def test_chunks_beyond_their_credit_end_the_connection(wire: RunningWire) -> None:
    client = RawClient(wire)
    client.socket.sendall(client.encoded(FrameKind.REQUEST, 1, request_of([70_000])))
    assert client.frame()[0] == FrameKind.CREDIT
    client.socket.sendall(client.encoded(FrameKind.CHUNK, 1, bytes(70_001)))
    answer = client.rest()  # nothing, where the system drops it with what the server has not read
    assert not answer or b"WIRE_BROKEN" in answer


def test_credit_for_nothing_ends_the_connection_and_for_what_is_over_is_ignored(wire: RunningWire) -> None:
    client = RawClient(wire)
    for stream in (7, 1):
        client.socket.sendall(client.encoded(FrameKind.CREDIT, stream, CREDIT.pack((1 << 32) - 1)))
        client.socket.sendall(client.encoded(FrameKind.CANCEL, stream))
    client.socket.sendall(client.encoded(FrameKind.REQUEST, 1, request_of([100_000], Add(returns=True))))
    assert client.frame()[0] == FrameKind.CREDIT
    client.socket.sendall(client.encoded(FrameKind.CHUNK, 1, bytes(100_000)))
    assert client.frame()[0] == FrameKind.ANSWER
    client.socket.sendall(client.encoded(FrameKind.CREDIT, 1, CREDIT.pack(100_001)))
    assert b"WIRE_BROKEN" in client.rest()


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_thousand_connects_leave_nothing(wire: RunningWire, count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    try:
        clients = [wire.socket() for _ in range(count)]
        for client in clients:
            client.sendall(PREAMBLE)
        connection = wire.connect()
        assert connection.request(Add(numbers=(1,)))[0].value == 1
        connection.close()
        for client in clients:
            client.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


CLIENT = """
import random, sys, time
from tests.server.wire_running import RunningWire
from tests.unit.wire.sums import Add, Misbehave
wire = RunningWire(None, None, sys.argv[1])
connection = wire.connect()
print("ready", flush=True)
generator = random.Random(int(sys.argv[2]))
data = memoryview(bytes(3 << 20))
while True:
    size = generator.choice([10, 100_000, 3 << 20])
    list(connection.stream(Add(numbers=(1, 2), streams=generator.random() < 0.5, returns=True), [data[:size]]))
"""


@pytest.mark.parametrize("count", [pytest.param(6, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.long)])
def test_clients_that_are_killed_at_any_time_leave_nothing(wire: RunningWire, count: int) -> None:
    generator = random.Random(count)
    for first in range(count):
        command = [sys.executable, "-c", CLIENT, wire.address, str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"ready\n"
            try:
                client.wait(generator.uniform(0.01, 0.5))
            except subprocess.TimeoutExpired:
                client.send_signal(signal.SIGKILL)
        wire.wait_for(lambda: not wire.connections)


def test_a_server_that_is_cut_is_one_error_for_all_who_wait() -> None:
    errors: list[TmmuError] = []
    with running_wire([Sums()], keys=KeyRing(["k" * 16])) as wire:
        connection = wire.connect("k" * 16)

        def wait() -> None:
            try:
                connection.request(Misbehave(way="sleep"), deadline=60)
            except TmmuError as error:
                errors.append(error)

        threads = [Thread(target=wait) for _ in range(5)]
        for thread in threads:
            thread.start()
        wire.wait_for(lambda: wire.door.running == 5)
        wire.call(lambda: [each.abort() for each in tuple(wire.door.connections)])
        for thread in threads:
            thread.join(60)
        assert len(errors) == 5
        assert all(type(error) is ServerGone for error in errors)
        with pytest.raises(ServerGone):
            connection.request(Add())


def test_a_server_that_says_nothing_any_more_is_gone() -> None:
    with running_wire([Sums()], heartbeat_seconds=0.2) as wire:
        connection = wire.connect()
        list(wire.door.connections)[0]._transport.pause_reading()  # noqa: RUF015 - as a machine that vanished
        with pytest.raises(ServerGone, match=r"too long|broke"):
            connection.request(Misbehave(way="sleep"), deadline=60)


def test_a_server_that_is_gone_while_a_thread_sends_is_gone() -> None:
    with running_wire([Sums()], heartbeat_seconds=0.2) as wire:
        connection = wire.connect()
        (other_end,) = wire.door.connections
        other_end._transport.pause_reading()
        wire.door.connections.clear()  # as a machine that vanished: it does not close either
        streams = (connection.stream(Add(), [memoryview(bytes(60_000))], deadline=4) for _ in range(10_000))
        try:
            with pytest.raises(ServerGone, match="too long"):
                list(streams)
        finally:
            wire.call(other_end.abort)


def test_a_client_with_nothing_to_do_stays_connected(wire: RunningWire) -> None:
    connection = wire.connect()
    socket.socket().close()
    wire.wait_for(lambda: wire.door.counts.frames_in > 0)
    before = wire.door.counts.frames_in
    wire.wait_for(lambda: wire.door.counts.frames_in > before + 6)  # signs of life, for longer than the silence
    assert connection.request(Add(numbers=(4,)))[0].value == 4
    connection.close()
