"""Figures of an engine and of who watches its room: each is moved by what it counts."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests.engine.models import model_of, prompt_of
from tests.engine.swaps import swapping_of
from tmmu.engine.engine import Engine
from tmmu.engine.queue.fair_queue import FairQueue
from tmmu.errors import DeadlineExceeded
from tmmu.server.engine_figures import read_figures
from tmmu.server.pressure.budget_tuner import COLLECTED
from tmmu.server.pressure.watch import WINDOW_SECONDS, PressureWatch


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Figures:
    """An engine with room for three sessions and a host tier, in virtual time."""

    def __init__(self, engine: Engine, time: Time) -> None:
        self.engine, self.time = engine, time
        self.watch = PressureWatch("a", engine, acts=False, adapts=True, headroom=0.1, clock=time)

    def read(self) -> dict[str, float]:
        return {
            " ".join([figure.name, *figure.labels.values()]): figure.value
            for figure in read_figures("a", self.engine, self.watch).figures
        }

    def run(self, *futures: "Future[Any]") -> None:
        self.engine.scheduler.run_until(lambda: all(future.done() for future in futures))


@pytest.fixture(scope="module")
def figures() -> Iterator[Figures]:
    time = Time()
    options: dict[str, Any] = {"max_tokens": 128, "max_batch": 2, "max_sessions": 3, "host": "8MiB"}
    queue: FairQueue[Any] = FairQueue(escalation=0.3)
    with Engine(model_of("Llama"), policy="lru", time_to_live=1e6, clock=time, queue=queue, **options) as engine:
        yield Figures(engine, time)


def test_steps_phases_and_plans(figures: Figures) -> None:
    before = figures.read()
    with figures.engine.open() as session:
        session.prefill([1, 2, 3])
        session.decode(4)
        session.prefill([5])
        live = figures.read()
    after = figures.read()
    moved = {name: after[name] - before[name] for name in after}
    assert (moved["tmmu_steps"], moved["tmmu_decoded_rows"], moved["tmmu_phase_switches"]) == (3, 1, 2)
    assert moved["tmmu_step_plan_hits"] + moved["tmmu_step_plan_misses"] == 3
    assert after["tmmu_step_plan_misses"] >= 2
    assert live["tmmu_bytes weights"] == figures.engine.usage["text"].used > 0
    assert live["tmmu_bytes state"] == session.arena_bytes
    row = figures.engine.geometry.token_bytes
    assert live["tmmu_bytes live state"] - before["tmmu_bytes live state"] == 5 * row
    assert after["tmmu_bytes activations"] == figures.engine.usage["stack"].peak > 0


def test_time_of_look_ups_is_that_of_the_clock(figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = figures.engine._stacks[0].steps
    bind = steps._bind

    def bind_slowly(shape: Any, planned: Any) -> Any:
        figures.time.now += 2
        return bind(shape, planned)

    monkeypatch.setattr(steps, "_bind", bind_slowly)
    before, misses = figures.read()["tmmu_lookup_seconds"], figures.engine.bound_shapes
    with figures.engine.open() as session:
        session.prefill(prompt_of(80))
    planned = figures.engine.bound_shapes - misses
    assert planned
    assert figures.read()["tmmu_lookup_seconds"] - before == 2 * planned


def test_queue_counts_by_class(figures: Figures) -> None:
    engine = figures.engine
    before = figures.read()
    with engine.open(qos="batch") as batch, engine.open(qos="realtime") as quick, engine.open(deadline=9) as late:
        futures = [engine.enqueue(session, [1]) for session in (batch, quick, late)]
        waiting = figures.read()
        assert [waiting[f"tmmu_waiting_requests {qos}"] for qos in ("realtime", "interactive", "batch")] == [1, 1, 1]
        figures.time.now += 10
        figures.run(*futures)
        with pytest.raises(DeadlineExceeded):
            futures[2].result()
        prompt, steps = engine.enqueue(batch, prompt_of(70)), engine.scheduler.steps
        engine.scheduler.run_until(lambda: engine.scheduler.steps > steps)  # which has news
        figures.run(prompt)
        futures = [engine.enqueue(session, [1]) for session in (late, batch)]  # of other lengths: two steps
        engine.scheduler.queue._classes["batch"].virtual += 1 << 40  # as after much work of its own
        for request in engine.scheduler.queue._items():
            request.since -= request.terms.qos == "batch"
        figures.run(*futures)
    after = figures.read()
    moved = {name: after[name] - before[name] for name in after}
    assert moved["tmmu_late_requests"] == 1
    assert moved["tmmu_yields"] >= 1
    assert moved["tmmu_escalated_steps"] >= 1


def test_state_of_the_room_is_another_whenever_a_session_gets_or_leaves_it(figures: Figures) -> None:
    engine = figures.engine
    swapping = swapping_of(engine)
    swapping.wait_until_still()
    states = [engine.room_state]
    sessions = [engine.open() for _ in range(3)]
    states.append(engine.room_state)
    futures = [engine.enqueue(session, [1]) for session in sessions]  # needed: nobody may leave
    swapping.wait_until_still()
    assert engine.room_state == states[-1]
    waiting = engine.open()
    engine.enqueue(waiting, [1])
    states.append(engine.room_state)
    engine.cancel(waiting)
    waiting.close()
    states.append(engine.room_state)
    figures.run(*futures)
    assert engine.room_state == states[-1]
    for session in sessions:
        session.close()
    swapping.wait_until_still()
    states.append(engine.room_state)
    assert [changes - states[0][0] for changes, _ in states] == [0, 3, 3, 3, 6]
    assert [missed for _, missed in states] == [0, 0, 1, 0, 0]


def test_evictions_are_early_and_late(figures: Figures) -> None:
    engine, before = figures.engine, figures.read()
    sessions = [engine.open() for _ in range(3)]
    for session in sessions:
        session.prefill([1])
    engine.swap_out(sessions[0])
    swapping_of(engine).wait_until_still()
    early = figures.read()
    assert early["tmmu_evictions early"] - before["tmmu_evictions early"] == 1
    assert early["tmmu_bytes host copies"] > 0
    with engine.open() as other, engine.open() as another:
        for session in (other, another):
            session.prefill([1])
        late = figures.read()
    assert late["tmmu_evictions late"] - before["tmmu_evictions late"] >= 1
    assert late["tmmu_waiting_sessions"] == 0
    for session in sessions:
        session.close()


def test_pressure_and_budgets(figures: Figures) -> None:
    engine = figures.engine
    swapping_of(engine).wait_until_still()
    before = figures.read()
    assert before["tmmu_efficiency_score"] == 100
    assert before["tmmu_headroom_ratio realtime"] == before["tmmu_suggested_headroom_ratio realtime"] == 0.1
    sessions = [engine.open(qos="realtime") for _ in range(3)]
    futures = [engine.enqueue(session, [1]) for session in sessions]  # needed: nobody may leave
    figures.watch.note()
    full = figures.read()
    assert full["tmmu_pressure_level"] == 3
    figures.run(*futures)
    for session in sessions:
        session.close()
    swapping_of(engine).wait_until_still()
    figures.time.now += 4
    figures.watch.note()
    for _ in range(COLLECTED):
        figures.time.now += WINDOW_SECONDS
        figures.watch.note()
    after = figures.read()
    moved = {name: after[name] - before[name] for name in after}
    assert [moved[f"tmmu_pressure_events {level}"] for level in ("warning", "critical", "full")] == [1, 1, 1]
    assert (moved["tmmu_recoveries"], moved["tmmu_recovery_seconds"], after["tmmu_pressure_level"]) == (1, 4, 0)
    assert moved["tmmu_budget_violations realtime"] == 1
    assert moved["tmmu_budget_shifts"] >= 1
    assert after["tmmu_headroom_ratio realtime"] > 0.1 > after["tmmu_headroom_ratio interactive"]
    assert after["tmmu_suggested_headroom_ratio realtime"] == 0.4
    assert after["tmmu_efficiency_score"] < 100
