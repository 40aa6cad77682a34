"""Classes in an engine: batch prompts yield to others piece by piece, with the bits of whole steps, and end cleanly."""

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch

from tests.engine.models import model_of, prompt_of
from tests.engine.swaps import swapping_of
from tmmu.engine.engine import Engine
from tmmu.engine.pause.parts_in_pieces import PIECES
from tmmu.engine.queue.fair_queue import STEP_POSITIONS
from tmmu.engine.requests.request_runner import StepRequest
from tmmu.engine.session import Session
from tmmu.errors import DeadlineExceeded, InvalidConfig
from tmmu.runtime.execute.pieces import PausedRun

PROMPT = prompt_of(100)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


TIME = Time()


@pytest.fixture(scope="module")
def engine() -> Any:
    with Engine(model_of("Llama"), max_tokens=128, max_batch=2, clock=TIME) as engine:
        yield engine


@pytest.fixture(scope="module")
def whole(engine: Engine) -> torch.Tensor:
    """The logits behind the prompt, of a step that runs as a whole."""
    with engine.open() as session:
        return session.prefill(PROMPT)


def on_first_piece(monkeypatch: pytest.MonkeyPatch, engine: Engine, act: Callable[[], object]) -> None:
    """Has something happen while the first piece of a prompt runs, once."""
    actions = [act]

    def on_step(request: StepRequest, _: float) -> None:
        if request.is_prompt and actions:
            actions.pop()()

    monkeypatch.setattr(engine.scheduler, "on_step", on_step)


def assert_as_new(engine: Engine, session: Session, whole: torch.Tensor) -> None:
    """Nothing is left of what was given up."""
    assert session.length == 0
    assert engine._stacks[0].pieces is not None
    assert not engine._stacks[0].pieces._begun
    assert not engine.segments.stack._parked
    assert session.prefill(PROMPT).equal(whole)


@pytest.mark.parametrize("qos", ["realtime", "interactive"])
def test_batch_prompt_yields_to_whoever_outranks_it(
    engine: Engine, whole: torch.Tensor, monkeypatch: pytest.MonkeyPatch, qos: str
) -> None:
    assert engine._stacks[0].pieces is not None
    with engine.open(qos="batch") as batch, engine.open(qos=qos) as quick, engine.open() as reference:
        for session in (quick, reference):
            session.prefill([1, 2, 3])
        expected = reference.decode(4)
        order: list[str] = []

        def come() -> None:
            future = engine.enqueue(quick, [4])
            future.add_done_callback(lambda _: order.append("quick"))
            results.append(future)

        results: list[Any] = []
        on_first_piece(monkeypatch, engine, come)
        yields = engine._stacks[0].pieces.yields
        prompt = engine.enqueue(batch, PROMPT)
        prompt.add_done_callback(lambda _: order.append("batch"))
        engine.scheduler.run_until(prompt.done)
        assert order == ["quick", "batch"]
        assert engine._stacks[0].pieces.yields == yields + 1
        assert prompt.result().equal(whole)
        assert results[0].result().equal(expected)


def test_batch_prompt_that_nobody_waits_for_never_yields(engine: Engine, whole: torch.Tensor) -> None:
    assert engine._stacks[0].pieces is not None
    yields, steps = engine._stacks[0].pieces.yields, engine.scheduler.steps
    with engine.open(qos="batch") as batch, engine.open(qos="batch") as other:
        waiting = engine.enqueue(other, PROMPT)
        assert batch.prefill(PROMPT).equal(whole)
        engine.scheduler.run_until(waiting.done)
    assert (engine._stacks[0].pieces.yields, engine.scheduler.steps) == (yields, steps + 2)


def test_batch_prompt_goes_on_by_a_piece_whoever_waits(
    engine: Engine, whole: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = engine.scheduler.queue._classes["batch"]
    for turns in (1, PIECES):
        steps, before = engine.scheduler.steps, work.virtual
        with engine.open(qos="batch") as batch:
            assert batch.prefill(PROMPT).equal(whole)
        assert engine.scheduler.steps == steps + turns
        assert work.virtual - before == (128 + turns * STEP_POSITIONS) << 20  # whenever it was read
        monkeypatch.setattr(engine.scheduler, "must_yield", lambda _: True)


def test_who_runs_the_queue_and_has_news_is_not_kept_waiting(engine: Engine, whole: torch.Tensor) -> None:
    with engine.open(qos="batch") as batch:
        prompt = engine.enqueue(batch, PROMPT)
        steps = engine.scheduler.steps
        engine.scheduler.run_until(lambda: engine.scheduler.steps > steps)
        assert not prompt.done()
        engine.scheduler.run_until(prompt.done)
        assert prompt.result().equal(whole)


def test_cancelled_between_pieces(engine: Engine, whole: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine.open(qos="batch") as batch:
        on_first_piece(monkeypatch, engine, lambda: engine.cancel(batch))
        steps = engine.scheduler.steps
        with pytest.raises(CancelledError):
            batch.prefill(PROMPT)
        assert engine.scheduler.steps == steps + 1
        assert_as_new(engine, batch, whole)


def test_late_between_pieces(engine: Engine, whole: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def pass_time() -> None:
        TIME.now += 5

    with engine.open(qos="batch", deadline=4) as batch:
        on_first_piece(monkeypatch, engine, pass_time)
        with pytest.raises(DeadlineExceeded) as refusal:
            batch.prefill(PROMPT)
        assert refusal.value.fields == {"milliseconds": 5000, "qos": "batch"}
        assert_as_new(engine, batch, whole)


def test_closed_between_pieces(engine: Engine, whole: torch.Tensor) -> None:
    batch = engine.open(qos="batch")
    prompt = engine.enqueue(batch, PROMPT)
    steps = engine.scheduler.steps
    engine.scheduler.run_until(lambda: engine.scheduler.steps > steps)
    assert engine._stacks[0].pieces is not None
    assert engine._stacks[0].pieces.has_begun(batch)
    batch.close()
    engine.scheduler.run_until(prompt.done)
    assert prompt.exception() is not None
    with engine.open(qos="batch") as other:
        assert_as_new(engine, other, whole)


def test_piece_that_fails_is_the_failure_of_its_request(
    engine: Engine, whole: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    with engine.open(qos="batch") as batch:
        with monkeypatch.context() as patch:
            patch.setattr(PausedRun, "finish", fail)
            with pytest.raises(ZeroDivisionError):
                batch.prefill(PROMPT)
        assert_as_new(engine, batch, whole)


def test_request_has_the_earlier_of_two_deadlines(engine: Engine) -> None:
    with engine.open(deadline=10) as session:
        for due, expected in [(None, 10.0), (TIME.now + 3, 3.0), (TIME.now + 30, 10.0)]:
            future = engine.enqueue(session, [1], due=due)
            (request,) = engine.scheduler.queue.clear()
            assert request.due == TIME.now + expected
            future.cancel()
        for wrong in (float("nan"), float("inf"), True, "soon"):
            with pytest.raises(InvalidConfig, match="due"):
                engine.enqueue(session, [1], due=wrong)  # type: ignore[arg-type]


def test_fork_has_the_terms_of_its_session(engine: Engine) -> None:
    with engine.open(qos="realtime", client="a", weight=3, priority=2, deadline=0.5) as session:
        session.prefill([1])
        with session.fork() as fork:
            assert fork.terms == session.terms
            assert (fork.terms.qos, fork.terms.client, fork.terms.weight) == ("realtime", "a", 3)
    with pytest.raises(InvalidConfig):
        engine.open(qos="soon")


def test_state_that_recurs_yields_between_steps_alone() -> None:
    with Engine(model_of("Bamba"), max_tokens=16, max_batch=1) as engine:
        assert engine._stacks[0].pieces is None
        with engine.open(qos="batch") as batch, engine.open() as reference:
            assert batch.prefill(PROMPT[:9]).equal(reference.prefill(PROMPT[:9]))


def test_batch_sessions_leave_room_for_who_comes_in_a_higher_class() -> None:
    options: dict[str, Any] = {"max_tokens": 64, "max_batch": 1, "max_sessions": 4, "clock": TIME}
    with Engine(model_of("GPT-2"), policy="hold", headroom=0.25, **options) as engine:
        first = engine.open(qos="realtime")
        batch = [engine.open(qos="batch") for _ in range(4)]
        assert [session.is_resident for session in (first, *batch)] == [True, True, True, True, False]
        first.close()
        swapping_of(engine).wait_until_still()
        assert not batch[3].is_resident  # its room is kept for the next of that class
        with engine.open(qos="realtime") as second:
            assert second.is_resident
            second.prefill([1, 2])
    for wrong in (0.5, -0.1, True, "much"):
        with pytest.raises(InvalidConfig):
            Engine(model_of("GPT-2"), policy="hold", headroom=wrong, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="keeps no room"):
        Engine(model_of("GPT-2"), headroom=0.1, **options)
