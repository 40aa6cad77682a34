"""Agents that wait, on an engine with less room than they need: they have the tokens of one with room for all."""

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError
from threading import Barrier, Thread
from time import sleep
from typing import Any

import pytest

from tests.engine.models import VOCABULARY, model_of, prompt_of, reference_tokens
from tests.engine.swaps import swapping_of
from tmmu.engine.engine import Engine
from tmmu.engine.session import Session
from tmmu.engine.swap import build
from tmmu.errors import DeviceMemory, InvalidConfig, SegmentFull, SessionUnknown
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice

AGENTS, ROUNDS, TOKENS = 6, 3, 4
LONG = 120.0
"""Seconds after which a test that waits has failed."""


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def model() -> Any:
    return model_of("GPT-2")


@pytest.fixture(scope="module")
def expected(model: Any) -> list[list[int]]:
    """The tokens of each agent where all of them have room, one after another."""
    with Engine(model, max_tokens=64, max_batch=4) as engine:
        return [agent(engine, number, lambda: None) for number in range(AGENTS)]


def agent(engine: Engine, number: int, wait: Callable[[], Any]) -> list[int]:
    """Rounds of a prompt, tokens and a wait, of which it says something."""
    tokens: list[int] = []
    with engine.open() as session:
        for turn in range(ROUNDS):
            tokens += session.generate(prompt_of(3 + number, seed=turn), TOKENS, stop=())
            session.wait(expected=0.01 * number, kind=f"tool {number % 2}")
            wait()
            if number % 3 == 0:
                session.resume_soon()
    return tokens


@pytest.mark.parametrize(
    "policy",
    ["lru", "hint", "predicted", *(pytest.param(name, marks=pytest.mark.slow) for name in ("idle", "hold", "static"))],
)
def test_agents_have_the_tokens_of_an_engine_with_room_for_all(
    model: Any, expected: list[list[int]], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags, recorder = TagChecker(), CommandRecorder()
    jitter = Jitter(seed=1, max_seconds=0.001)
    monkeypatch.setattr(build, "memory_device", lambda _: ThreadsDevice((tags, recorder), jitter=jitter))
    found: dict[int, list[int]] = {}
    barrier = Barrier(AGENTS)  # nobody goes on before all have had their round, so that rooms change hands
    with Engine(model, max_tokens=64, max_batch=4, max_sessions=2, host="1MiB", policy=policy) as engine:

        def work(number: int) -> None:
            found[number] = agent(engine, number, (lambda: None) if policy == "hold" else lambda: barrier.wait(LONG))

        threads = [Thread(target=work, args=(number,), daemon=True) for number in range(AGENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        counts = engine.host.counts
        assert engine.sessions == ()
    assert [found.get(number) for number in range(AGENTS)] == expected
    assert (counts.sessions_in > 0) == (policy != "hold")
    assert engine.host.used == engine.usage["data"].used == 0
    assert not engine.segments.slabs["data"].bytes(0, engine.usage["data"].capacity).any()
    assert not tags.mismatches, tags.mismatches[0]
    assert not races(recorder.log), races(recorder.log)[0]


@pytest.fixture(scope="module")
def engine(model: Any) -> Any:
    with Engine(model, max_tokens=64, max_batch=2, max_sessions=2, host="1MiB", policy="hint", clock=Time()) as engine:
        yield engine


def test_failing_step_leaves_swapped_sessions_exact(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(7)
    with engine.open() as away, engine.open() as failing, engine.open() as other:
        for session in (away, failing, other):
            session.prefill(prompt)
        assert not away.is_resident
        expected_row = other.decode(3)
        step = engine._stacks[0].steps.step(
            next(shape for shape in engine._stacks[0].steps.shapes if shape.rows * shape.tokens == 1)
        )
        with monkeypatch.context() as patch:
            patch.setattr(step, "run", lambda *_: (_ for _ in ()).throw(RuntimeError("half way")))
            with pytest.raises(RuntimeError, match="half way"):
                failing.decode(3)
        assert failing.length == 7
        assert away.decode(3).equal(expected_row)
        assert failing.decode(3).equal(expected_row)
        assert other.length == 8


def still(engine: Engine) -> None:
    swapping_of(engine).wait_until_still()


def test_idle_session_leaves_at_the_end_of_its_time_to_live_and_comes_back_ahead(engine: Engine) -> None:
    clock = engine._leases._clock
    assert isinstance(clock, Time)
    with engine.open() as session, engine.open() as other:
        first = session.prefill(prompt_of(5))
        session.wait(expected=10.0, kind="person")
        clock.now += 69.0
        other.wait()  # has the policy look at the time
        still(engine)
        assert session.is_resident
        clock.now += 2.0
        other.wait()
        still(engine)
        assert not session.is_resident
        before = engine.host.counts.bytes_in
        session.resume_soon(within=5.0)
        still(engine)
        assert session.is_resident
        assert engine.host.counts.bytes_in == before + 5 * engine.geometry.token_bytes + VOCABULARY * 4
        assert session.decode(int(first.argmax())).equal(_decoded(engine, 5, int(first.argmax())))


def _decoded(engine: Engine, tokens: int, token: int) -> Any:
    with engine.open() as alone:
        alone.prefill(prompt_of(tokens))
        return alone.decode(token)


def test_wait_is_refused_for_a_session_that_waits_for_a_step_and_for_odd_times(engine: Engine) -> None:
    with engine.open() as session:
        for call in (lambda: session.wait(expected=-1.0), lambda: session.wait(expected=float("nan")),
                     lambda: session.resume_soon(True), lambda: session.wait(kind=3)):  # type: ignore[arg-type] # fmt: skip
            with pytest.raises(InvalidConfig):
                call()
        engine._submit(session, [1], is_prompt=False)
        with pytest.raises(InvalidConfig, match="waits for a step"):
            session.wait()
        engine.cancel(session)
        session.wait()


def test_engine_without_a_host_tier_takes_words_of_waits_and_moves_nobody(model: Any) -> None:
    with Engine(model, max_tokens=64, max_batch=1, max_sessions=1) as engine, engine.open() as session:
        session.wait(expected=5)
        session.resume_soon()
        assert session.is_resident
        with pytest.raises(SegmentFull, match="no host tier"):
            engine.swap_out(session)


@pytest.mark.parametrize(
    "options",
    [{"policy": "best"}, {"policy": 1}, {"policy": "", "host": 4096}, {"time_to_live": -1}, {"time_to_live": "1"}],
)
def test_policies_and_times_that_are_none_are_refused(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Engine(model, max_tokens=64, max_batch=1, max_sessions=1, **options)


def test_client_that_gives_up_waiting_for_room_leaves_nothing_behind(model: Any) -> None:
    """Under ``hold`` nobody makes room: tasks time out, threads are told to give up, and the next one is served."""
    prompt = prompt_of(6)
    with Engine(model, max_tokens=64, max_batch=1, max_sessions=1, policy="hold") as engine:
        holder, waiting = engine.open(), engine.open()
        holder.prefill(prompt)
        assert not waiting.is_resident

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(waiting.generate_async(prompt, 3, stop=())), 0.05)

        asyncio.run(give_up())
        failures: list[BaseException] = []
        thread = Thread(target=lambda: failures.append(_failure(lambda: waiting.prefill(prompt))), daemon=True)
        thread.start()
        while not engine.cancel(waiting):
            sleep(0.001)
        thread.join(LONG)
        assert isinstance(failures[0], CancelledError)
        assert len(engine.scheduler.queue) == 0
        holder.close()
        assert list(waiting.generate(prompt, 3, stop=())) == reference_tokens(model, prompt, 3)
        last = engine.open()
        thread = Thread(target=lambda: failures.append(_failure(lambda: last.prefill(prompt))), daemon=True)
        thread.start()
        while not len(engine.scheduler.queue):
            sleep(0.001)
    thread.join(LONG)  # the engine was closed
    assert isinstance(failures[1], SessionUnknown)


def test_fork_of_a_session_that_is_closed_meanwhile_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(model, max_tokens=64, max_batch=1, max_sessions=2, host="1MiB") as engine:
        session = engine.open()
        monkeypatch.setattr(swapping_of(engine), "require_room", lambda _: session.close())
        with pytest.raises(SessionUnknown, match="closed"):
            session.fork()
        assert engine.sessions == ()
        swapping_of(engine).wait_until_still()
        assert engine.usage["data"].used == 0


def test_host_tier_that_no_host_has_is_refused(model: Any) -> None:
    for host in (10**18, 10**30):
        with pytest.raises(DeviceMemory, match=f"the host has no {host} bytes"):
            Engine(model, max_tokens=64, max_batch=1, max_sessions=1, host=host)


def _failure(call: Any) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - looked at by the thread of the test
        return error
    raise AssertionError("it did not fail")


def test_tasks_of_one_loop_take_turns_in_less_room_than_they_need(model: Any) -> None:
    async def work(session: Session, number: int) -> list[int]:
        prompt = prompt_of(4 + number, seed=number)
        return [token async for token in session.generate_async(prompt, 5, stop=())]

    async def main(engine: Engine) -> list[list[int]]:
        sessions = [engine.open() for _ in range(5)]
        return await asyncio.wait_for(asyncio.gather(*(work(s, n) for n, s in enumerate(sessions))), LONG)

    with Engine(model, max_tokens=64, max_batch=2, max_sessions=2, host="1MiB") as engine:
        found = asyncio.run(main(engine))
        assert engine.host.counts.sessions_in > 0
    assert found == [reference_tokens(model, prompt_of(4 + n, seed=n), 5) for n in range(5)]
