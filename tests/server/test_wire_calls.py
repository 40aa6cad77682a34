"""Calls of a connection at the server: who ends them, and what is told and freed then."""

from threading import Event, current_thread
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.wire_running import SIZES, random_bytes, running_wire
from tests.unit.wire.sums import Add, Misbehave, Sums
from tests.waiting import wait_for
from tmmu.client import transport
from tmmu.errors import DeadlineExceeded, ServerBusy, ServerGone


def test_services_hear_of_a_connections_end_behind_its_last_call() -> None:
    sums = Sums()
    with running_wire([sums], **SIZES) as wire:
        connection = wire.connect()
        connection.post(Misbehave(way="linger"))
        with pytest.raises(DeadlineExceeded):
            connection.request(Misbehave(way="sleep"), deadline=0.05)
        assert sums.asleep.wait(60)
        connection.close()
        wire.wait_for(lambda: not wire.connections)
        for seen in (Event(), Event(), Event()):  # behind what its threads had to do
            wire.door._cancels.submit(seen.set)
            assert seen.wait(60)
        assert sums.lost == []  # what the call makes for the connection would stay
        sums.may_end.set()
        wire.wait_for(lambda: sums.lost == [connection._opening.ready.connection])  # type: ignore[union-attr]
        assert not wire.door._running_of
        assert not wire.door._lost


def test_a_defect_in_looking_after_one_connection_is_not_the_end_of_it() -> None:
    with running_wire([Sums()], heartbeat_seconds=0.2, **SIZES) as wire:
        connection, looks = wire.connect(), list[float]()
        (served,) = wire.door.connections
        wire.call(lambda: setattr(served, "check", lambda now: looks.append(now) or 1 // 0))
        wire.wait_for(lambda: len(looks) > 1)
        connection.close()


def test_a_deadline_says_nothing_behind_an_answer() -> None:
    sums = Sums()
    with running_wire([sums], **SIZES) as wire:
        connection = wire.connect()
        stream = connection.stream(Misbehave(way="linger"))
        assert sums.asleep.wait(60)
        (served,) = wire.door.connections

        def end_late() -> None:
            (call,) = served._calls.values()
            sums.may_end.set()
            wait_for(lambda: call.is_answered)  # by its thread: the loop is here
            served.end_late(call.deadline)

        wire.call(end_late)
        assert [header.value for header, _ in stream] == [0]
        assert connection.request(Add(numbers=(1,)))[0].value == 1
        assert not wire.door.counts.refusals_by_code.get("DEADLINE_EXCEEDED")
        connection.close()


def test_an_answer_that_is_short_wakes_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_wire([Sums()], **SIZES) as wire:
        connection, woken = wire.connect(), list[Any]()
        assert connection.request(Add(numbers=(1,)))[0].value == 1
        (served,) = wire.door.connections
        wake = wire.loop.call_soon_threadsafe
        monkeypatch.setattr(wire.loop, "call_soon_threadsafe", lambda *call: (woken.append(call), wake(*call))[1])
        for number in range(20):
            assert connection.request(Add(numbers=(number,)))[0].value == number
        wait_for(lambda: not served._calls)
        assert [call for call in woken if call[0] != served._resume] == []  # that one: nothing came for a moment
        monkeypatch.undo()
        connection.close()


def test_the_last_answer_by_a_thread_ends_a_connection_that_drains() -> None:
    sums = Sums()
    with running_wire([sums], **SIZES) as wire:
        connection = wire.connect()
        stream = connection.stream(Misbehave(way="linger"))
        assert sums.asleep.wait(60)
        (served,) = wire.door.connections

        def drain() -> None:
            wire.door.is_draining = True
            served.shutdown()

        wire.call(drain)
        assert served in wire.door.connections
        sums.may_end.set()
        assert [header.value for header, _ in stream] == [0]
        wire.wait_for(lambda: not wire.connections)
        connection.close()


def test_a_client_may_send_its_next_request_once_it_has_an_answer() -> None:
    """Of as many requests as a connection may have, each that is answered makes room, before the call is ended."""
    sums = Sums()
    with running_wire([sums], **SIZES) as wire:
        connection = wire.connect()
        assert connection.request(Add())[0].value == 0
        (served,) = wire.door.connections

        def fill() -> None:
            calls = [SimpleNamespace(is_answered=number > 0) for number in range(served.peer.limits.streams)]
            served._calls.update({1000 + number: call for number, call in enumerate(calls)})  # type: ignore[misc]
            served._require_room()
            for call in calls:
                call.is_answered = False
            with pytest.raises(ServerBusy, match="64 requests"):
                served._require_room()
            served._calls.clear()
            passed.set()

        passed = Event()
        wire.call(fill)
        assert passed.is_set()
        connection.close()


def test_a_connection_is_over_whatever_becomes_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, told = Sums(), list[Any]()
    with running_wire([sums], **SIZES) as wire:
        wire.call(lambda: wire.loop.set_exception_handler(lambda _, context: told.append(context["exception"])))
        connection = wire.connect()
        connection.post(Misbehave(way="linger"))
        assert connection.request(Add())[0].value == 0
        assert sums.asleep.wait(60)
        (served,) = wire.door.connections
        wire.wait_for(lambda: len(served._calls) == 1)
        monkeypatch.setattr(wire.door, "note_call", lambda _: 1 // 0)
        connection.close()
        wire.wait_for(lambda: not wire.connections and not wire.door.connections)
        monkeypatch.undo()
        sums.may_end.set()
        wire.wait_for(lambda: [type(error) for error in told] == [ZeroDivisionError])


def test_memory_of_a_request_that_was_given_up_counts_while_it_runs() -> None:
    sums = Sums()
    with running_wire([sums], **SIZES) as wire:
        connection = wire.connect()
        with pytest.raises(DeadlineExceeded):
            connection.request(Misbehave(way="linger"), [random_bytes(5 << 20)], deadline=1)
        assert sums.asleep.wait(60)
        wire.wait_for(lambda: not next(iter(wire.door.connections))._calls)
        assert wire.door.memory.used == 5 << 20
        sums.may_end.set()
        wire.wait_for(lambda: wire.door.memory.used == 0)
        connection.close()


def interrupted(function: Any) -> Any:
    """The function, in place of which this thread is interrupted, and no other one."""
    thread = current_thread()

    def run(*arguments: Any) -> Any:
        if current_thread() is thread:
            raise KeyboardInterrupt
        return function(*arguments)

    return run


def test_an_interrupted_wait_gives_one_request_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_wire([Sums()], **SIZES) as wire:
        connection = wire.connect()
        with monkeypatch.context() as patch:
            patch.setattr(transport, "wait", interrupted(transport.wait))
            with pytest.raises(KeyboardInterrupt):
                connection.request(Add(numbers=(1, 2)))
        assert connection.is_open
        header, _ = connection.request(Add(numbers=(1, 2)))
        assert header.value == 3  # type: ignore[attr-defined]


def test_an_interruption_that_loses_bytes_ends_the_connection_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_wire([Sums()], **SIZES) as wire:
        connection = wire.connect()
        with monkeypatch.context() as patch:
            patch.setattr(connection._reader, "advance", interrupted(connection._reader.advance))
            with pytest.raises(KeyboardInterrupt):
                connection.request(Add(numbers=(1, 2)))
        assert not connection.is_open
        with pytest.raises(ServerGone, match="not taken to its end"):
            connection.request(Add(numbers=(1, 2)))
