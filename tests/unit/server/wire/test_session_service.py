"""Sessions over the wire without models: what is taken back, and what is left, when nobody waits any more."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tmmu.server.wire.session_service import run_cancellable


class Call:
    """A request of which a test says when it is over."""

    def __init__(self) -> None:
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
