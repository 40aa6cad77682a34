"""Connections over sockets: what is asked for comes back, and what should not be there ends or is refused."""

import socket
import struct
from collections.abc import Iterator
from threading import Event, Thread, current_thread
from time import monotonic
from typing import Any

import pytest

from tests.server.wire_running import SIZES, RunningWire, random_bytes, running_wire
from tests.unit.wire.sums import Add, Misbehave, Sums, Total
from tmmu.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidConfig,
    InvalidRequest,
    KeyRefused,
    RequestTooLarge,
    SegmentFull,
    ServerBusy,
    ServerGone,
    WireBroken,
)
from tmmu.server.keys import KeyRing
from tmmu.wire.frames import PREAMBLE
from tmmu.wire.limits import CHUNK_BYTES, WINDOW_BYTES

KEYS = KeyRing(["a" * 16, "b" * 16])


@pytest.fixture(scope="module")
def sums() -> Sums:
    return Sums()


@pytest.fixture(scope="module")
def wire(sums: Sums) -> Iterator[RunningWire]:
    with running_wire([sums], keys=KEYS, **SIZES) as wire:
        yield wire


def test_requests_streams_and_errors(wire: RunningWire) -> None:
    connection = wire.connect("b" * 16)
    assert connection.client == "key-2"
    assert connection.request(Add(numbers=(1, 2)))[0] == Total(value=3, client="key-2")
    small = [memoryview(b"abc"), memoryview(b""), memoryview(b"d")]
    _, payloads = connection.request(Add(returns=True), small)
    assert [bytes(payload) for payload in payloads] == [b"abc", b"", b"d"]
    parts = [header.value for header, _ in connection.stream(Add(numbers=(1, 2, 3), streams=True), deadline=60)]
    assert parts == [1, 3, 6, 6]
    with pytest.raises(SegmentFull, match="no room") as refusal:
        connection.request(Misbehave(way="refuse"))
    assert refusal.value.fields == {"bytes": 7, "names": ["a", None, True]}
    for way in ("fail", "lie"):
        with pytest.raises(InternalError):
            connection.request(Misbehave(way=way))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="length <= 8"):
        connection.request(Add(numbers=(0,) * 9))
    assert connection.request(Add())[0].value == 0
    connection.close()
    connection.close()
    with pytest.raises(ServerGone, match="closed"):
        connection.request(Add())


def test_large_payloads_come_back_and_their_memory_is_given_back(wire: RunningWire) -> None:
    connection = wire.connect("a" * 16)
    data = random_bytes(2 * WINDOW_BYTES + 12_345)
    _, payloads = connection.request(Add(returns=True), [data, data[:70_000], data[:0]])
    assert [bytes(payload) for payload in payloads] == [bytes(data), bytes(data[:70_000]), b""]
    parts = list(connection.stream(Add(numbers=(1, 2), returns=True, streams=True), [data]))
    assert [len(beside[0]) for _, beside in parts] == [len(data)] * 3
    assert all(beside[0] == data for _, beside in parts)
    wire.wait_for(lambda: wire.door.memory.used == 0)
    with pytest.raises(RequestTooLarge):
        connection.request(Add(), [memoryview(bytes((24 << 20) + 1))])
    connection.close()


def test_threads_share_a_connection(wire: RunningWire) -> None:
    connection = wire.connect("a" * 16)
    data = random_bytes(1 << 20)
    wrong: list[object] = []

    def visit(seed: int) -> None:
        for number in range(20):
            payloads = [data[: (seed * 131_071 + number * 7_919) % len(data)]]
            header, beside = connection.request(Add(numbers=(seed, number), returns=True), payloads)
            if header.value != seed + number + len(payloads[0]) or beside[0] != payloads[0]:
                wrong.append((seed, number))

    threads = [Thread(target=visit, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    connection.close()


def test_a_request_that_nobody_waits_for_is_cancelled(wire: RunningWire, sums: Sums) -> None:
    connection = wire.connect("a" * 16)
    for _ in range(2):
        sums.cancelled.clear()
        with pytest.raises(DeadlineExceeded):
            connection.request(Misbehave(way="sleep"), deadline=0.05)
        assert sums.cancelled.wait(60)
    sums.cancelled.clear()
    sums.asleep.clear()
    connection.post(Misbehave(way="sleep"))
    assert connection.request(Add(numbers=(1,)))[0].value == 1  # sent with what was posted
    assert sums.asleep.wait(60)
    connection.close()
    assert sums.cancelled.wait(60)
    wire.wait_for(lambda: connection._opening.ready.connection in sums.lost)  # type: ignore[union-attr]


def test_what_was_posted_is_sent_before_a_connection_is_closed(wire: RunningWire, sums: Sums) -> None:
    connection = wire.connect("a" * 16)
    sums.asleep.clear()
    connection.post(Misbehave(way="sleep"))
    connection.close()
    assert sums.asleep.wait(60)


@pytest.mark.parametrize("deadline", [-1.0, float("nan"), "soon"])
def test_a_deadline_that_is_none_is_refused(wire: RunningWire, deadline: Any) -> None:
    connection = wire.connect("a" * 16)
    with pytest.raises(InvalidConfig, match="a deadline of"):
        connection.request(Add(numbers=(1,)), deadline=deadline)
    assert connection.request(Add(numbers=(1,)))[0].value == 1
    connection.close()


def test_who_waits_is_not_kept_from_his_answer_by_what_comes_for_others(
    wire: RunningWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, most, is_told = wire.connect("a" * 16), 3000, Event()
    came = 0

    def receive(until: float) -> bool:
        nonlocal came
        came += 1
        return not is_told.wait(0.001) and came < most

    def wait() -> None:
        connection._wait(lambda: came > 2, monotonic() + 120)
        is_told.set()

    monkeypatch.setattr(connection, "_receive", receive)
    monkeypatch.setattr(connection, "_has_reader", True)  # until the thread below waits
    waiting = Thread(target=wait)
    waiting.start()
    monkeypatch.setattr(connection, "_has_reader", False)
    connection._hear()
    waiting.join(120)
    assert came < most
    monkeypatch.undo()
    connection.close()


def test_what_is_due_together_is_sent_together(wire: RunningWire) -> None:
    connection = wire.connect("a" * 16)
    before = wire.door.counts.joined_frames
    list(connection.stream(Add(numbers=(1,) * 8, streams=True)))
    assert wire.door.counts.joined_frames > before
    connection.close()


@pytest.mark.parametrize("key", ["c" * 16, None, ""])
def test_a_wrong_key_is_refused(wire: RunningWire, key: str | None) -> None:
    with pytest.raises(KeyRefused):
        wire.connect(key)
    wire.wait_for(lambda: not wire.connections)


def test_requests_beyond_the_most_are_refused_and_others_go_on(wire: RunningWire) -> None:
    connection, other = wire.connect("a" * 16), wire.connect("b" * 16)
    streams = [connection.stream(Misbehave(way="sleep")) for _ in range(8)]
    wire.wait_for(lambda: wire.door.running == 8)
    with pytest.raises(ServerBusy, match="8 requests"):
        other.request(Add())
    streams.pop().close()
    del streams  # dropped streams are given up too, within a second
    wire.wait_for(lambda: wire.door.running == 0)
    assert connection.request(Add())[0].value == 0
    connection.close()
    assert other.request(Add())[0].value == 0
    other.close()


@pytest.mark.parametrize("way", ["overflow", "exit"])
def test_an_error_that_does_not_travel_is_answered_and_frees_its_thread(wire: RunningWire, way: str) -> None:
    connection = wire.connect("a" * 16)
    for _ in range(9):  # one more than run at once
        with pytest.raises(InternalError, match="the request failed of"):
            connection.request(Misbehave(way=way), deadline=60)  # type: ignore[arg-type]
    wire.wait_for(lambda: wire.door.running == 0)
    connection.close()


def test_payloads_wait_for_memory_of_others(wire: RunningWire) -> None:
    first, second = wire.connect("a" * 16), wire.connect("b" * 16)
    wire.call(lambda: wire.door.memory.reserve("others", "another", 20 << 20, lambda: None))
    with pytest.raises(DeadlineExceeded):
        first.request(Add(), [random_bytes(5 << 20)], deadline=0.1)
    assert second.request(Add(), [random_bytes(3 << 20)])[0].value == 3 << 20
    totals: list[Any] = []
    waiting = Thread(target=lambda: totals.append(first.request(Add(), [random_bytes(5 << 20)])[0].value))
    waiting.start()
    wire.wait_for(lambda: wire.door.memory.waiting == 1)
    wire.call(lambda: wire.door.memory.release("others"))
    waiting.join(120)
    assert totals == [5 << 20]
    wire.wait_for(lambda: wire.door.memory.used == 0)
    first.close()
    second.close()


def test_bytes_that_are_no_wire_end_their_connection_alone(wire: RunningWire) -> None:
    beginnings = [b"\xf4", b"\xf4tmmx", PREAMBLE, PREAMBLE + b"\x01", PREAMBLE + bytes(100), PREAMBLE + b"\x01" * 5000,
                  PREAMBLE + struct.pack("<BBHII", 1, 0, 0, 0, 8) + b"\xdf\xff\xff\xff\xff\x00\x00\x00"]  # fmt: skip
    for data in beginnings:
        with wire.socket() as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(4096), b""))
            assert len(answer) < 400
    connection = wire.connect("a" * 16)
    assert connection.request(Add())[0].value == 0
    connection.close()


def test_a_stranger_has_one_small_buffer_and_no_answer(wire: RunningWire) -> None:
    with wire.socket() as client:
        client.sendall(PREAMBLE + struct.pack("<BBHII", 5, 0, 0, 1, 2) + b"\x80\x80")
        assert b"WIRE_BROKEN" in b"".join(iter(lambda: client.recv(4096), b""))
    wire.wait_for(lambda: not wire.connections)


def test_a_frame_is_refused_after_another_one_was_left_out(wire: RunningWire) -> None:
    connection = wire.connect("a" * 16)
    connection._tagger.next_tag(b"", (b"",))
    with pytest.raises(WireBroken, match="wrong tag"):
        connection.request(Add())
    assert not connection.is_open


def test_a_server_that_does_not_know_the_key_is_found_out() -> None:
    with running_wire([Sums()], **SIZES) as wire:  # takes no keys, as one that wants them would say
        with pytest.raises(KeyRefused, match="takes no keys"):
            wire.connect("a" * 16)
        assert wire.door.counts.requests == 0
        connection = wire.connect()
        assert connection.client == "anybody"
        connection.close()


def test_a_version_that_was_not_offered_is_no_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmmu.server.wire.connection.server_opening.choose_version", lambda _: 99)
    with running_wire([Sums()], **SIZES) as wire, pytest.raises(WireBroken, match="version 99 of the wire"):
        wire.connect()


def test_a_nobody_who_listens_is_server_gone() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        wire = RunningWire(None, None, f"127.0.0.1:{unused.getsockname()[1]}")  # type: ignore[arg-type]
        with pytest.raises(ServerGone, match="refused"):
            wire.connect()


def test_a_chunk_window_holds_several_chunks() -> None:
    assert WINDOW_BYTES >= 4 * CHUNK_BYTES


def test_the_transports_buffer_is_the_loops_own(sums: Sums) -> None:
    """Answers are written by other threads where nothing waits; asyncio's buffer is in pieces while the loop sends."""
    with running_wire([sums]) as wire:
        connection = wire.connect()
        threads, loop_thread = set[Thread](), set[Thread]()
        wire.call(lambda: loop_thread.add(current_thread()))
        (served,) = wire.door.connections

        class NotedTransport:
            def __init__(self, transport: Any) -> None:
                self._transport = transport

            def __getattr__(self, name: str) -> Any:
                if name != "get_extra_info":
                    threads.add(current_thread())
                return getattr(self._transport, name)

        wire.call(lambda: setattr(served.writer, "_transport", NotedTransport(served._transport)))
        data = random_bytes(3 << 20)
        for number in range(20):
            assert connection.request(Add(numbers=(number, 1)))[0].value == number + 1
        assert connection.request(Add(returns=True), [data])[1][0] == data
        for number in range(20):
            assert connection.request(Add(numbers=(number, 1)))[0].value == number + 1
        assert threads == loop_thread
        assert not served.writer._is_buffered
        connection.close()
