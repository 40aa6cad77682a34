"""While a thread stays with a connection the event loop does not read it, whoever of the two comes first, and where."""

import os
from collections.abc import Callable, Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.wire_steps import Recorder, SteppedConnection, interrupted
from tmmu.server.settings import load_settings
from tmmu.server.wire.connection import thread_stay
from tmmu.server.wire.wire_door import WireDoor
from tmmu.wire.frames import FrameKind

PATIENT = 60_000


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], SteppedConnection]]:
    monkeypatch.setattr(thread_stay, "WAIT_MILLISECONDS", PATIENT)
    made, readv, service = list[SteppedConnection](), os.readv, Recorder()
    door = WireDoor([service], load_settings({}), None)

    def read(*arguments: Any) -> int:
        assert not made[-1].transport.is_reading, "both would read"
        return readv(*arguments)

    monkeypatch.setattr(os, "readv", read)

    def make_one() -> SteppedConnection:
        if made:
            close(made.pop())
        made.append(SteppedConnection(door, service))
        return made[-1]

    yield make_one
    close(made[-1])


def close(connection: SteppedConnection) -> None:
    connection.client.close()
    connection.transport.close()
    connection.loop.turn()


def take_back(connection: SteppedConnection) -> None:
    connection.stay.take_back(monotonic() + 3600)


def take_back_and_read(connection: SteppedConnection) -> None:
    take_back(connection)
    connection.turn()


def end_late(connection: SteppedConnection) -> None:
    connection.served.end_late(monotonic())
    connection.turn()


def cut(connection: SteppedConnection) -> None:
    connection.served.abort()
    connection.turn()


def drain(connection: SteppedConnection) -> None:
    connection.door.is_draining = True
    connection.served.shutdown()
    connection.turn()


def settle(connection: SteppedConnection) -> None:
    """What the loop has to do yet, and threads of calls that it begins."""
    connection.turn()
    while connection.work:
        call, payloads, send = connection.work.pop().args  # type: ignore[attr-defined]
        connection.door._answer_call(call, payloads, send)
        connection.run_thread(call)
        connection.turn()
    connection.turn()


def outcome(connection: SteppedConnection) -> str:
    """What became of the request behind the one that was answered, whole in the end; nothing of it is left."""
    answers = [
        (kind, stream) for kind, stream, _ in connection.received() if kind not in (FrameKind.PONG, FrameKind.DRAIN)
    ]
    assert len(answers) <= 1, "it is answered once"
    assert not connection.served._calls
    assert connection.door.running == 0
    assert not connection.door._running_of
    assert connection.stay.owner is None
    assert connection.transport.is_reading or connection.transport.is_closing, "somebody reads"
    return FrameKind(answers[0][0]).name if answers else "closed" if connection.transport.is_closing else "nothing"


def run_interrupted(
    connection: SteppedConnection, way: str, line: int, action: Callable[[SteppedConnection], None]
) -> bool:
    """The thread reads what comes, and the loop acts before a step of it; whether there was that step."""
    last = connection.stay_with()
    before = connection.ping() if way == "behind" else b""
    request = connection.ask()
    connection.client.sendall(before + (request[:20] if way == "half" else request))
    with interrupted(connection, line, lambda: action(connection)) as done:
        connection.run_thread(last)
    settle(connection)
    if way == "half" and not connection.transport.is_closing:
        connection.client.sendall(request[20:])
        settle(connection)
    return bool(done)


WAYS = ["whole", "half", "behind"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("action", [take_back, take_back_and_read, end_late])
def test_a_request_is_answered_whatever_the_loop_does_amid_the_steps_of_a_thread(
    make: Callable[[], SteppedConnection], action: Callable[[SteppedConnection], None], way: str
) -> None:
    line = 0
    while run_interrupted(connection := make(), way, line, action):
        assert outcome(connection) == "ANSWER", line
        line += 1
    assert line > 20


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_ends_amid_the_steps_of_a_thread_leaves_nothing(
    make: Callable[[], SteppedConnection], way: str
) -> None:
    line = 0
    while run_interrupted(connection := make(), way, line, cut):
        outcome(connection)
        events = connection.service.events
        assert events[-1] == "lost", (line, "services are told behind the last call")
        assert events.count("lost") == 1
        assert "unheard" not in events, (line, "a call of a connection that is over is cancelled")
        line += 1
    assert line > 20


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_ends_amid_the_steps_of_a_thread_answers_what_it_began(
    make: Callable[[], SteppedConnection], way: str
) -> None:
    line, outcomes = 0, set[str]()
    while run_interrupted(connection := make(), way, line, drain):
        outcomes.add(ended := outcome(connection))
        assert connection.transport.is_closing
        assert connection.service.events.count("answer") == 2 + (ended == "ANSWER"), (line, ended)
        line += 1
    assert line > 20
    assert ("ANSWER" in outcomes) == (way == "whole"), "the others begin a call behind that"


@pytest.mark.parametrize("count", [5, 20, 1000])
def test_a_thread_may_be_done_before_the_loop_has_given_it_its_call(
    make: Callable[[], SteppedConnection], count: int
) -> None:
    """It reads what comes next while the loop is amid the bytes of the request before."""
    connection = make()
    connection.stay_with()
    take_back(connection)
    requests = [connection.ask(), connection.ask()]

    def run_at_once(work: Any) -> None:
        call, payloads, send = work.args
        connection.door._answer_call(call, payloads, send)
        connection.client.sendall(requests[1][:count])
        connection.run_thread(call)

    connection.door._workers.submit = run_at_once  # type: ignore[method-assign]
    connection.client.sendall(requests[0])
    connection.turn()
    connection.door._workers.submit = connection.work.append  # type: ignore[method-assign, assignment]
    connection.client.sendall(requests[1][count:])
    settle(connection)
    assert [(kind, stream) for kind, stream, _ in connection.received()] == [
        (FrameKind.ANSWER, 3),
        (FrameKind.ANSWER, 4),
    ]


def test_a_request_that_runs_for_long_is_taken_back_and_a_wait_is_not(make: Callable[[], SteppedConnection]) -> None:
    connection = make()
    last = connection.stay_with()
    assert connection.stay.take_back(monotonic())
    assert not connection.transport.is_reading
    last_wait = []
    connection.stay._poll = SimpleNamespace(  # type: ignore[assignment]
        poll=lambda _: last_wait.append(connection.stay.take_back(monotonic() + 3600))
    )
    assert last.next_call() is None
    assert last_wait == [True], "a thread that waits leaves by itself"
    connection.turn()
    assert connection.transport.is_reading
