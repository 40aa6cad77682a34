"""Sessions over the wire without models: what is taken back, and what is left, when nobody waits any more."""

import tracemalloc
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from tmmu.errors import DeadlineExceeded, InvalidConfig
from tmmu.server.settings import load_settings
from tmmu.server.wire.session_service import SessionService, run_cancellable
from tmmu.server.wire.session_table import SessionTable
from tmmu.wire.interface import Peer
from tmmu.wire.limits import WireLimits
from tmmu.wire.session_messages import ForkSession, ForwardTokens, OpenSession, ReadTokens, SessionState


class Call:
    """A request of which a test says when it is over."""

    def __init__(self) -> None:
        self.peer = Peer(client="anybody", connection="1", limits=WireLimits())
        self.is_cancelled, self.callbacks = False, list[Callable[[], object]]()

    def on_cancel(self, callback: Callable[[], object]) -> None:
        self.callbacks.append(callback)

    def end(self) -> None:
        self.is_cancelled = True
        for callback in self.callbacks:
            callback()


def test_a_call_that_is_over_takes_back_no_step_of_the_next_one() -> None:
    taken_back: list[str] = []
    engine = SimpleNamespace(cancel=taken_back.append)
    record: Any = SimpleNamespace(model=SimpleNamespace(engine=engine), session="session")
    first, second = Call(), Call()
    assert run_cancellable(record, first, lambda: 1) == 1  # type: ignore[arg-type]
    run_cancellable(record, second, first.end)  # type: ignore[arg-type] # as the loop, behind the first answer
    assert taken_back == []
    run_cancellable(record, third := Call(), third.end)  # type: ignore[arg-type]
    assert taken_back == ["session"]


class Session:
    """A session of no model."""

    arena_bytes, length, capacity, is_open = 64, 0, 8, True

    def __init__(self, number: int) -> None:
        self.capability = f"{number:032}"

    def fork(self) -> "Session":
        return Session(int(self.capability) + 1)

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def table() -> SessionTable:
    return SessionTable(load_settings({}), has_keys=False)


@pytest.fixture
def service(table: SessionTable) -> SessionService:
    """Sessions of one model, of at most eight tokens."""
    numbers = count(1, 10)
    geometry = SimpleNamespace(alignment=64, capacities_for=lambda *_: None, arena_bytes=lambda _: 64)
    engine = SimpleNamespace(
        geometry=geometry,
        limits=SimpleNamespace(max_source=0),
        segments=SimpleNamespace(data=SimpleNamespace(capacity=1024)),
        open=lambda *_, **__: Session(next(numbers)),
        grant_lease=lambda *_: None,
    )
    model = SimpleNamespace(name="tiny", longest=8, engine=engine)
    models: Any = SimpleNamespace(find=lambda _: model)
    return SessionService(models, table, load_settings({}))


def test_a_session_that_was_opened_for_nobody_is_closed(service: SessionService, table: SessionTable) -> None:
    call: Any = Call()
    state, _ = service.answer(OpenSession(model="tiny"), (), call)
    assert isinstance(state, SessionState)
    call.is_cancelled = True
    for header in (OpenSession(model="tiny"), ForkSession(session=state.session)):
        with pytest.raises(DeadlineExceeded):
            service.answer(header, (), call)
        assert set(table._records) == {state.session}


def test_more_tokens_than_any_session_reads_take_no_memory(service: SessionService) -> None:
    call: Any = Call()
    state, _ = service.answer(OpenSession(model="tiny"), (), call)
    assert isinstance(state, SessionState)
    payload = memoryview(bytes(4 << 20))
    tracemalloc.start()
    try:
        for header in (ReadTokens(session=state.session), ForwardTokens(model="tiny")):
            with pytest.raises(InvalidConfig, match="524288 tokens"):
                service.answer(header, [payload], call)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
