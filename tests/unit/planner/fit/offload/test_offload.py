"""Values on the host: which go, when they go and come, what ops wait for them, and the bits of the step."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.runtime.harness import same_bits
from tests.strategies import seeded
from tests.tagged import TaggedRun
from tests.unit.judge.rewrite.programs import convolutions
from tests.unit.judge.rewrite.test_runs import run
from tests.unit.planner.fit.random_steps import meaning_fault, random_step
from tests.unit.planner.fit.test_fit_graph import REQUEST, fit
from tmmu.errors import BudgetTooSmall
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.rewrite import FROM_HOST, TO_HOST, identity_rewrite
from tmmu.planner.fit.curve import step_curve
from tmmu.planner.fit.fit_graph import Fitting
from tmmu.planner.fit.fit_step import PPM
from tmmu.planner.fit.forms import OFFLOAD, RECOMPUTE
from tmmu.planner.fit.offload import offload_step as module
from tmmu.planner.fit.offload.choose_trips import choose_trips, live_bytes
from tmmu.planner.fit.offload.timetable import Stay, Timetable
from tmmu.planner.fit.offload.trips import Trip, trips
from tmmu.planner.ring.profile import Profile

NANOSECOND = 1_000
FAST = Profile(link=10**18, copy_ns=0)
BYTE_A_NANOSECOND = Profile(link=10**9, copy_ns=0)


def trip(writer: int, last: int, first: int, size: int, buffer: int = 0) -> Trip:
    return Trip(
        buffer=BufferId(buffer), value=ValueId(0), origin=OpId(0), writer=writer, last=last, first=first, size=size
    )


def rows(*nanoseconds: int) -> Timetable:
    """Rows of so many nanoseconds, and a link of a byte a nanosecond."""
    start = [0]
    for each in nanoseconds:
        start.append(start[-1] + each * NANOSECOND)
    return Timetable(start=start, profile=BYTE_A_NANOSECOND)


def offloaded(limit: int, levers: tuple[str, ...] = ("takeover", OFFLOAD)) -> Fitting:
    return fit(convolutions("sgd"), replace(REQUEST, limit=limit, levers=levers))


def test_stays_are_the_longest_for_which_nobody_waits() -> None:
    table, one = rows(*[10] * 10), trip(0, 1, 9, 25)
    assert table.stays({one: range(5, 6)}) == {one: Stay(4, 6)}
    assert table.extra_time({one: Stay(4, 6)}) == 0
    assert table.extra_time({one: Stay(3, 6)}) == 5 * NANOSECOND, "it has gone at 35, and the ops come to it at 30"
    assert table.extra_time({one: Stay(4, 7)}) == 5 * NANOSECOND, "it begins at 70 and is wanted at 90"


def test_copies_share_the_link_one_at_a_time_each_way() -> None:
    table, one, other = rows(*[10] * 12), trip(0, 1, 10, 25), trip(1, 2, 11, 20, buffer=1)
    stays = table.stays({one: range(4, 5), other: range(6, 7)})
    assert stays == {one: Stay(4, 6), other: Stay(6, 9)}, "gone at 35, then at 55; back from 90 on, and from 65"
    assert table.extra_time(stays) == 0
    assert table.extra_time({one: Stay(4, 6), other: Stay(5, 9)}) == 5 * NANOSECOND
    assert table.extra_time({one: Stay(4, 7), other: Stay(6, 9)}) == 5 * NANOSECOND


def test_what_has_to_be_away_is_away_though_ops_wait() -> None:
    table, one = rows(*[10] * 10), trip(0, 1, 9, 60)
    assert table.stays({one: range(3, 7)}) == {one: Stay(3, 7)}
    assert table.extra_time({one: Stay(3, 7)}) == (70 - 30 + 60 - 20) * NANOSECOND


@pytest.mark.parametrize("seed", range(20))
def test_stays_that_nobody_waits_for_take_no_time(seed: int) -> None:
    """Link and gaps have room for all of them."""
    pick = seeded(seed)
    table, needed = rows(*(10 + pick(20) for _ in range(40))), dict[Trip, range]()
    for buffer in range(6):
        writer = pick(10)
        one = trip(writer, writer + 1 + pick(3), 30 + pick(9), 1 + pick(10), buffer=buffer)
        needed[one] = range(20, 21)
    stays = table.stays(needed)
    assert table.extra_time(stays) == 0
    assert all(one.last < stay.out <= 20 < stay.back <= one.first for one, stay in stays.items())
    for one, stay in stays.items():
        if stay.out > one.last + 1:
            assert table.extra_time(stays | {one: Stay(stay.out - 1, stay.back)}) > 0


def test_no_position_has_more_than_the_limit() -> None:
    base = convolutions("sgd")
    plan = fit(base, replace(REQUEST, limit=10**9)).fitted.plan
    candidates = trips(base, identity_rewrite(base), base)
    assert len(candidates) > 20
    table = Timetable(start=range(0, len(base.ops) * 10**6 + 1, 10**6), profile=FAST)
    for share in (9, 7, 6):
        limit = int(live_bytes(plan).max()) * share // 10
        stays, live = choose_trips(plan, candidates, table, limit), live_bytes(plan)
        for one, stay in stays.items():
            live[stay.out : stay.back] -= one.size
        assert live.max() <= limit
        assert len({one.buffer for one in stays}) == len(stays)
        assert table.extra_time(stays) <= 2 * len(base.ops)


def test_plan_stays_below_the_limit_and_has_the_bits_of_the_step() -> None:
    base = convolutions("sgd")
    plain = fit(base, replace(REQUEST, limit=10**9))
    found = offloaded(plain.base_stack * 6 // 10)
    fitted = found.fitted
    assert fitted.stack_bytes <= plain.base_stack * 6 // 10 < found.stages[-2].stack_bytes
    assert [stage.lever for stage in found.stages] == ["", "takeover", OFFLOAD]
    assert fitted.rewrite.kind.count(TO_HOST) == fitted.rewrite.kind.count(FROM_HOST) > 1
    assert fitted.host_bytes > 0 == fitted.flops == fitted.reruns
    assert fitted.plan.fit is not None
    assert fitted.plan.fit.levers == ("takeover", OFFLOAD)
    assert fitted.plan.fit.cost.time_ppm == fitted.time * PPM // found.base_time
    assert offloaded(plain.base_stack * 6 // 10).fitted.plan.digest == fitted.plan.digest
    assert all(map(same_bits, run(base), run(fitted.graph)))


def test_cheaper_of_host_and_reruns_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    base = convolutions("sgd")
    limit = fit(base).base_stack * 6 // 10
    both = replace(REQUEST, limit=limit, levers=("takeover", RECOMPUTE, OFFLOAD))
    again = fit(base, both)
    assert again.fitted.host_bytes == 0 < again.fitted.reruns, "ten microseconds a copy are more than these ops take"
    monkeypatch.setattr(module, "LINK", FAST)
    moved = fit(base, both)
    assert moved.fitted.host_bytes > 0
    assert moved.fitted.time < again.fitted.time
    assert [stage.lever for stage in moved.stages] == ["", "takeover", RECOMPUTE, OFFLOAD]
    with pytest.raises(BudgetTooSmall, match="more time to fit"):
        fit(base, replace(both, levers=("takeover", RECOMPUTE), at_most=moved.fitted.time * PPM // moved.base_time))


def test_what_does_not_fit_is_refused_and_what_is_not_asked_for_stays() -> None:
    base = convolutions("sgd")
    with pytest.raises(BudgetTooSmall, match="too few"):
        offloaded(1_000)
    assert fit(base).fitted.host_bytes == 0
    assert OFFLOAD not in REQUEST.levers


def test_refusal_names_the_least_that_fits_with_values_on_the_host() -> None:
    limit, most = 130_000, fit(convolutions("sgd"), replace(REQUEST, limit=10**9, levers=("takeover",))).base_stack
    with pytest.raises(BudgetTooSmall, match="at the least") as refusal:
        offloaded(limit)
    least = refusal.value.fields["least_bytes"]
    assert isinstance(least, int)
    found = offloaded(least)
    assert found.fitted.host_bytes > 0
    assert found.fitted.stack_bytes <= least
    with pytest.raises(BudgetTooSmall):
        offloaded(least - (most - limit) // 64 - 1)


SHARDS = [pytest.param(range(first, first + 200), marks=pytest.mark.long) for first in range(0, 10_000, 200)]


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 140), marks=pytest.mark.slow), *SHARDS])
def test_random_steps_with_values_on_the_host_are_sound_and_mean_the_step(seeds: Sequence[int]) -> None:
    """Both judges, an execution in tagged bytes, and one that knows no judge; no plan above its limit."""
    trip_count = 0
    for seed in seeds:
        base = random_step(seed)
        curve = step_curve(base, REQUEST.arenas, ("takeover", "recompute") if seed % 4 == 0 else ("takeover",))
        limit = curve.points[-1].peak * (5 + seed % 5) // 10
        fitted = module.offload_step(curve, limit, REQUEST.settings)
        if fitted is not None:
            assert fitted.stack_bytes <= limit, f"seed {seed}"
            assert meaning_fault(base, fitted.graph, fitted.rewrite) == "", f"seed {seed}"
            assert TaggedRun(fitted.graph, fitted.plan).fault == "", f"seed {seed}"
            trip_count += fitted.rewrite.kind.count(TO_HOST)
    assert trip_count > len(seeds) // 2
