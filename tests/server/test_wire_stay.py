"""A client that asks again at once is answered by one thread, and has all that others have."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest

from tests.server.raw_frames import RawClient, request_of
from tests.server.wire_running import SIZES, RunningWire, running_wire
from tests.unit.wire.sums import Add, Misbehave, Sums
from tests.waiting import wait_for
from tmmu.client.client_connection import ClientConnection
from tmmu.errors import DeadlineExceeded, InvalidRequest, RequestTooLarge, ServerBusy, ServerGone, WireBroken
from tmmu.server.wire.connection import thread_stay
from tmmu.server.wire.server_connection import ServerConnection
from tmmu.wire.frames import FrameKind
from tmmu.wire.limits import WINDOW_BYTES

PATIENT = 120_000


class Stay:
    """A connection with which a thread stays until it has a reason to leave, however slow the machine is."""

    def __init__(self, wire: RunningWire, sums: Sums) -> None:
        self.wire, self.sums, self.connection = wire, sums, wire.connect()
        wire.wait_for(lambda: wire.door.connections)
        (self.served,) = wire.door.connections
        self.begin()

    def begin(self) -> None:
        self.served._stay._apart_until = 0.0
        wait_for(lambda: self.add(1, 2) == 3 and self.is_on)  # the second request, or a later one on a slow machine

    def add(self, *numbers: int) -> Any:
        return self.connection.request(Add(numbers=numbers))[0].value  # type: ignore[attr-defined]

    @property
    def is_on(self) -> bool:
        return self.served._stay.owner is not None

    def ends(self) -> None:
        """The loop reads again, and the connection goes on."""
        self.wire.wait_for(lambda: not self.is_on)
        assert self.add(4, 5) == 9


class Raw:
    """The same for a client that says what it likes; ``begin`` has a thread stay behind the last answer."""

    def __init__(self, wire: RunningWire, sums: Sums) -> None:
        self.wire, self.sums, self.last, self.client = wire, sums, 0, RawClient(wire)
        (self.served,) = wire.door.connections
        self.begin()

    def ask(self, header: Any, data: bytes = b"") -> None:
        self.last += 1
        body = request_of([len(data)] if data else [], header, inline=data)
        self.client.socket.sendall(self.client.encoded(FrameKind.REQUEST, self.last, body))

    def begin(self) -> None:
        def is_on() -> bool:
            self.ask(Add())
            assert self.client.frame()[:2] == (FrameKind.ANSWER, self.last)
            return self.served._stay.owner is not None

        wait_for(is_on)


@pytest.fixture
def stay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stay]:
    monkeypatch.setattr(thread_stay, "WAIT_MILLISECONDS", PATIENT)
    sums = Sums()
    with running_wire([sums], **SIZES) as wire:
        stay = Stay(wire, sums)
        yield stay
        stay.connection.close()
        wire.wait_for(lambda: not wire.connections)
        assert wire.door.running == 0
        assert not wire.door._running_of


def test_one_thread_answers_who_asks_again_at_once(stay: Stay, monkeypatch: pytest.MonkeyPatch) -> None:
    read_by_loop = list[int]()
    note = ServerConnection.buffer_updated
    monkeypatch.setattr(
        ServerConnection, "buffer_updated", lambda served, count: (read_by_loop.append(count), note(served, count))[1]
    )
    before = stay.wire.door.counts.requests
    monkeypatch.setattr(thread_stay, "LONGEST_SECONDS", 1e9)
    for number in range(50):
        assert stay.add(number, 1) == number + 1
    assert read_by_loop == []
    assert stay.wire.door.counts.requests == before + 50
    assert len(stay.wire.door._workers._threads) <= 2


def test_a_thread_leaves_where_nothing_comes(stay: Stay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_stay, "WAIT_MILLISECONDS", 1)
    stay.add(1)  # the wait behind it is short
    stay.wire.wait_for(lambda: not stay.is_on)
    wait_for(lambda: len(stay.wire.door._workers._parked) == len(stay.wire.door._workers._threads))
    assert stay.connection.request(Add(numbers=(1,)))[0].value == 1  # type: ignore[attr-defined]


def fail_to_decode(stay: Stay) -> None:
    with pytest.raises(InvalidRequest, match="length <= 8"):
        stay.connection.request(Add(numbers=(0,) * 9))


def send_more_than_may_be(stay: Stay) -> None:
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("tmmu.client.client_connection.require_sizes", lambda *_: None)
        with pytest.raises(RequestTooLarge):
            stay.connection.request(Add(), [memoryview(bytes((24 << 20) + 1))])


def send_in_chunks(stay: Stay) -> None:
    data = memoryview(bytes(range(256)) * (WINDOW_BYTES // 128))
    assert stay.connection.request(Add(returns=True), [data])[1][0] == data


def have_much_come_back(stay: Stay) -> None:
    data = memoryview(bytes(range(250)) * 200)
    answer = stay.connection.request(Add(returns=True, times=200), [data])[1]  # twice what goes without credit
    assert len(answer) == 200
    assert all(payload == data for payload in answer)


def give_up_a_long_one(stay: Stay) -> None:
    with pytest.raises(DeadlineExceeded):
        stay.connection.request(Misbehave(way="sleep"), deadline=0.2)
    assert stay.sums.cancelled.wait(60)


def stream(stay: Stay) -> None:
    parts = [header.value for header, _ in stay.connection.stream(Add(numbers=(1, 2, 3), streams=True))]  # type: ignore[attr-defined]
    assert parts == [1, 3, 6, 6]


def be_one_too_many(stay: Stay) -> None:
    door = stay.wire.door
    with door._counting:
        door.running += 8
    try:
        with pytest.raises(ServerBusy, match="8 requests"):
            stay.connection.request(Add())
    finally:
        with door._counting:
            door.running -= 8


def ask_while_another_one_runs(stay: Stay) -> None:
    long = stay.connection.stream(Misbehave(way="linger"))
    assert stay.sums.asleep.wait(60)
    assert stay.add(2, 3) == 5, "it does not wait for the other one"
    stay.sums.may_end.set()
    assert [header.value for header, _ in long] == [0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "use",
    [
        fail_to_decode, send_more_than_may_be, send_in_chunks, have_much_come_back, give_up_a_long_one, stream,
        be_one_too_many, ask_while_another_one_runs,
    ],
)  # fmt: skip
def test_what_is_not_plain_goes_as_it_would(stay: Stay, use: Callable[[Stay], None]) -> None:
    use(stay)
    stay.begin()
    use(stay)
    assert stay.add(4, 5) == 9


def test_who_asks_before_the_answer_has_the_loop_read(stay: Stay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_stay, "LONGEST_SECONDS", 1e9)
    long = stay.connection.stream(Misbehave(way="linger"))
    assert stay.sums.asleep.wait(60)
    behind = stay.connection.stream(Add(numbers=(1, 1)))
    stay.sums.may_end.set()
    assert [header.value for header, _ in long] == [0]  # type: ignore[attr-defined]
    assert [header.value for header, _ in behind] == [2]  # type: ignore[attr-defined]
    stay.ends()
    assert stay.served._stay._apart_until > 0


def test_a_wrong_tag_ends_the_connection(stay: Stay) -> None:
    stay.connection._tagger.next_tag(b"", (b"",))
    with pytest.raises(WireBroken, match="wrong tag"):
        stay.connection.request(Add())


@pytest.mark.parametrize("way", ["close", "abort", "drain"])
def test_the_end_of_a_connection_is_heard(stay: Stay, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "close":  # the system closes the socket when nobody waits at it any more
        monkeypatch.setattr(thread_stay, "WAIT_MILLISECONDS", 200)
        assert stay.add(1) == 1
    if way == "close":
        stay.connection.close()
    elif way == "abort":
        stay.wire.call(stay.served.abort)
    else:
        stay.wire.door.is_draining = True
        stay.wire.call(stay.served.shutdown)
    stay.wire.wait_for(lambda: not stay.wire.connections)
    wait_for(lambda: len(stay.wire.door._workers._parked) == len(stay.wire.door._workers._threads))
    with pytest.raises(ServerGone):
        stay.connection.request(Add())


QUICK = {"receive_seconds": 0.5, "send_seconds": 0.5, "heartbeat_seconds": 0.4}


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> Iterator[Raw]:
    monkeypatch.setattr(thread_stay, "WAIT_MILLISECONDS", 200)
    with running_wire([sums := Sums()], **QUICK) as wire:
        yield Raw(wire, sums)
        wire.wait_for(lambda: not wire.connections and not wire.door.running)
        wait_for(lambda: len(wire.door._workers._parked) == len(wire.door._workers._threads))
        assert wire.connect().request(Add(numbers=(2,)))[0].value == 2  # type: ignore[attr-defined]


def test_a_client_that_vanishes_while_a_thread_waits_is_gone(raw: Raw) -> None:
    raw.wire.wait_for(lambda: not raw.wire.connections)
    assert raw.client.rest() == b""


def test_a_client_that_vanishes_while_a_thread_answers_is_gone(raw: Raw) -> None:
    raw.ask(Misbehave(way="sleep"))
    assert raw.sums.cancelled.wait(60), "nobody waits for the answer"


def test_what_is_cancelled_behind_its_answer_ends_nothing(raw: Raw) -> None:
    raw.client.socket.sendall(raw.client.encoded(FrameKind.CANCEL, raw.last))
    raw.begin()
    raw.client.socket.sendall(
        raw.client.encoded(FrameKind.CANCEL, raw.last) + raw.client.encoded(FrameKind.PING, 0, bytes(8))
    )
    assert raw.client.frame() == (FrameKind.PONG, 0, bytes(8))


def test_a_client_that_takes_no_answer_of_a_thread_is_closed(raw: Raw) -> None:
    """It asks for the next one when the last is on its way, as who takes them: a thread stays until nothing goes."""
    data = bytes(60_000)
    with suppress(OSError):
        while raw.wire.connections and raw.last < 100_000:
            raw.ask(Add(returns=True), data)
            raw.wire.wait_for(lambda: not (raw.wire.door.running and raw.wire.connections))
    assert raw.last < 100_000
    raw.wire.wait_for(lambda: not raw.wire.connections)


def test_a_server_that_ends_sends_the_answer_of_a_thread_that_stays(raw: Raw) -> None:
    raw.ask(Misbehave(way="linger"))
    assert raw.sums.asleep.wait(60)
    raw.wire.door.is_draining = True
    try:
        raw.wire.call(raw.served.shutdown)
        assert raw.client.frame()[0] == FrameKind.DRAIN
        raw.sums.may_end.set()
        assert raw.client.frame()[:2] == (FrameKind.ANSWER, raw.last)
        assert raw.client.rest() == b""
    finally:
        raw.wire.door.is_draining = False


def test_a_defect_in_sending_has_the_loop_read(stay: Stay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stay.wire.door, "note_call", lambda _: 1 // 0)
    assert stay.add(1, 1) == 2
    monkeypatch.undo()
    stay.ends()


def test_threads_of_one_client_run_side_by_side(stay: Stay) -> None:
    wrong = list[object]()

    def visit(connection: ClientConnection, seed: int) -> None:
        for number in range(100):
            if connection.request(Add(numbers=(seed, number)))[0].value != seed + number:  # type: ignore[attr-defined]
                wrong.append((seed, number))

    threads = [Thread(target=visit, args=(stay.connection, seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
