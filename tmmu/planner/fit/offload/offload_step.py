"""A point of the curve with values on the host, in a plan that stays within a limit."""

from dataclasses import replace
from itertools import accumulate
from typing import Final

from tmmu.ir.fit import FitRecord
from tmmu.ir.plan import Plan
from tmmu.ir.rebuild import rebuild_graph
from tmmu.judge.rules import require_legal
from tmmu.planner.fit.curve import StepCurve
from tmmu.planner.fit.fit_step import PPM, FittedStep, PlanSettings, fit_point, judge_step, plan_of_step
from tmmu.planner.fit.forms import OFFLOAD
from tmmu.planner.fit.offload.choose_trips import choose_trips, live_bytes
from tmmu.planner.fit.offload.host_copies import with_host_copies
from tmmu.planner.fit.offload.timetable import Timetable
from tmmu.planner.fit.offload.trips import trips
from tmmu.planner.fit.step_facts import op_times
from tmmu.planner.ring.profile import Profile

LINK: Final = Profile()
"""By which copies are estimated: 24 GB/s each way, and 10 µs for a copy."""
MOST_POINTS: Final = 4
"""Points of the curve that are tried with values on the host."""
MOST_PACKINGS: Final = 4
"""Times that fewer bytes are asked for because the packing took more than what is live."""


def offload_step(curve: StepCurve, limit: int, settings: PlanSettings) -> FittedStep | None:
    """The step in at most ``limit`` bytes of stack at the least time, values on the host; ``None`` where none fits.

    Tried are a few points of the curve, from the cheapest to the least. Both judges have passed what is returned.
    """
    last = len(curve.points) - 1
    places = sorted({last * place // (MOST_POINTS - 1) for place in range(MOST_POINTS)})
    best: FittedStep | None = None
    for place in places:
        if best is not None and curve.points[place].time >= best.time:
            continue
        fitted = _with_copies(curve, fit_point(curve, place, settings), limit, settings)
        if fitted is not None and (best is None or fitted.time < best.time):
            best = fitted
    return None if best is None else judge_step(curve, best, settings)


def _with_copies(curve: StepCurve, fitted: FittedStep, limit: int, settings: PlanSettings) -> FittedStep | None:
    """The step with values on the host; ``None`` where that does not go below the limit, or no plan packs it.

    Rows of rewrite and graph are positions of the plan: what is rebuilt runs in the order of its rows.
    """
    if fitted.plan.order != tuple(fitted.graph.ops.ids):
        return None
    start = tuple(accumulate(op_times(fitted.graph), initial=0))
    timetable = Timetable(start=start, profile=LINK)
    candidates = trips(curve.base, fitted.rewrite, fitted.graph)
    target = limit
    for _ in range(MOST_PACKINGS):
        stays = choose_trips(fitted.plan, candidates, timetable, target)
        if not stays:
            return None
        rewrite = with_host_copies(fitted.rewrite, stays)
        graph = rebuild_graph(curve.base, rewrite)
        require_legal(graph)
        plan = plan_of_step(curve, graph, settings)
        moved = replace(fitted, rewrite=rewrite, graph=graph, live=int(live_bytes(plan).max()), plan=plan)
        over = moved.stack_bytes - limit
        if over <= 0:
            time = fitted.time + timetable.extra_time(stays)
            return replace(moved, time=time, plan=replace(plan, fit=_record(fitted.plan, moved, time, curve)))
        if moved.live > target:
            return None
        target -= over
    return None


def _record(before: Plan, moved: FittedStep, time: int, curve: StepCurve) -> FitRecord:
    """The key ``fit`` of the step without copies, with them."""
    assert before.fit is not None
    cost = replace(before.fit.cost, time_ppm=max(0, time * PPM // max(1, curve.time)))
    return replace(before.fit, rewrite=moved.rewrite, cost=cost, levers=(*before.fit.levers, OFFLOAD))
