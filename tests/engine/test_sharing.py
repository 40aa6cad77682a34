"""Threads, asyncio, leases and failures in one engine: every session has the tokens of a run alone."""

import asyncio
from threading import Thread
from typing import Any

import pytest

from tests.engine.models import model_of, prompt_of, reference_tokens
from tmmu.engine.engine import Engine
from tmmu.engine.geometry import StateLengths
from tmmu.engine.session import Session
from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown

COUNT = 12


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


TIME = Time()


@pytest.fixture(scope="module")
def model() -> Any:
    return model_of("GPT-2")


@pytest.fixture(scope="module")
def engine(model: Any) -> Any:
    with Engine(model, max_tokens=64, max_batch=4, clock=TIME) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(model: Any) -> list[list[int]]:
    return [reference_tokens(model, prompt_of(5 + i, seed=i), COUNT) for i in range(6)]


def test_threads_share_steps_and_have_their_own_tokens(engine: Engine, expected: list[list[int]]) -> None:
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        with engine.open() as session:
            found[number] = list(session.generate(prompt_of(5 + number, seed=number), COUNT, stop=()))

    threads = [Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [found[number] for number in range(6)] == expected


def test_tasks_of_one_loop_share_steps(engine: Engine, expected: list[list[int]]) -> None:
    async def work(number: int, session: Session) -> list[int]:
        prompt = prompt_of(5 + number, seed=number)
        return [token async for token in session.generate_async(prompt, COUNT, stop=())]

    async def main() -> list[list[int]]:
        sessions = [engine.open() for _ in range(6)]
        rows = await asyncio.gather(*(work(number, session) for number, session in enumerate(sessions)))
        for session in sessions:
            session.close()
        return rows

    before = engine.scheduler.steps, engine.scheduler.rows
    assert asyncio.run(main()) == expected
    assert engine.scheduler.rows - before[1] == 6 * (COUNT - 1)
    assert engine.scheduler.steps - before[0] < 6 * COUNT


def test_session_waits_for_one_request_at_a_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine.open() as session:
        with monkeypatch.context() as patch:
            patch.setattr(engine.scheduler, "_can_run", lambda _: False)  # nor by the thread that tasks have started
            request = engine._submit(session, [1, 2], is_prompt=True)
            with pytest.raises(InvalidConfig, match="waits for a step already"):
                session.decode(1)
            assert engine.cancel(session)
        assert request.future.cancelled()
        assert not engine.cancel(session)
        session.prefill([1, 2])


def test_lease_ends_unless_something_is_asked(engine: Engine) -> None:
    kept, idle, endless = engine.open(lease=10), engine.open(lease=10), engine.open()
    TIME.now += 6
    kept.heartbeat()
    TIME.now += 6
    assert engine.reclaim_expired() == 1
    with pytest.raises(SessionUnknown):
        idle.prefill([1])
    kept.prefill([1])
    TIME.now += 11
    assert engine.reclaim_expired() == 1
    endless.prefill([1])
    endless.close()
    with pytest.raises(InvalidConfig, match="a lease of"):
        engine.open(lease=0)
    assert engine.sessions == ()


def test_expired_sessions_make_room(engine: Engine) -> None:
    room = engine.usage["data"].capacity // engine.geometry.arena_bytes(StateLengths(64, 0))
    sessions = [engine.open(lease=5) for _ in range(room)]
    with pytest.raises(SegmentFull):
        engine.open()
    TIME.now += 5
    engine.open().close()
    assert not any(session.is_open for session in sessions)


def test_failing_step_leaves_every_session_exact(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(7)
    with engine.open() as first, engine.open() as second, engine.open() as other:
        for session in (first, second, other):
            session.prefill(prompt)
        expected = engine.decode([first], [3])[0]
        engine.decode([second, other], [3, 3])  # the step of two rows is bound
        second.length = other.length = 7
        step = engine._stacks[0].steps.step(next(shape for shape in engine._stacks[0].steps.shapes if shape.rows == 2))
        with monkeypatch.context() as patch:
            patch.setattr(step, "run", lambda *_: (_ for _ in ()).throw(RuntimeError("half way")))
            with pytest.raises(RuntimeError, match="half way"):
                engine.decode([second, other], [3, 3])
        assert (second.length, other.length) == (7, 7)
        assert all(logits.allclose(expected, atol=1e-5) for logits in engine.decode([second, other], [3, 3]))
