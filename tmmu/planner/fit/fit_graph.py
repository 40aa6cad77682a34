"""What a step takes within a limit: levers are pulled one after another, least harm first, until it fits.

The first levers cost nothing, so that each of them in turn is tried without anything that runs again; only where all of
them do not suffice is the whole curve searched.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, Never

from tmmu.codec.percents import exact_percent, tenths_above
from tmmu.errors import BudgetTooSmall, InternalError
from tmmu.ir.fit import FitRecord, fit_cost
from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.ir.plan import ArenaSpec, Plan, segment_bytes
from tmmu.ir.rewrite import identity_rewrite
from tmmu.judge.rewrite.check import near_rules
from tmmu.planner.arenas import readable_size
from tmmu.planner.fit.curve import StepCurve, StepFrames
from tmmu.planner.fit.early_updates import gradient_readers
from tmmu.planner.fit.fit_step import MOST_PLANS, PPM, FittedStep, PlanSettings, fit_step, fit_within
from tmmu.planner.fit.floor import Floor, stack_floor
from tmmu.planner.fit.forms import FREE_NAMES, LEVER_NAMES, OFFLOAD, RECOMPUTE, TAKEOVER, UPDATES, StepForms
from tmmu.planner.fit.offload.offload_step import offload_step
from tmmu.planner.fit.orders import ORDERS

HALVES: Final = 6
"""Steps of the search for the least with values on the host, where not even that fits: to about a hundredth."""
FREE: Final = 1 / 200
"""Share of the step's time that is taken for nothing: what costs more stands against what runs again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """``limit``: bytes of stack; ``at_most``: extra time in ppm. One of the two, or both, or neither: the least."""

    limit: int | None
    at_most: int | None
    levers: tuple[str, ...]
    arenas: tuple[ArenaSpec, ...]
    settings: PlanSettings
    near: bool = False
    """Whether rewrites that have other bits than the step are allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The step with the levers up to this one, and nothing after it: bytes, extra FLOPs, extra picoseconds.

    ``stack_bytes``: as planned, of the step as it is and of what was taken; else the bytes live where they are most,
    which a plan may miss by a little.
    """

    lever: str
    stack_bytes: int
    flops: int
    time: int
    near: tuple[str, ...] = ()
    """The rules by which it is only near."""

    @property
    def bits(self) -> str:
        """Whose bits its results have."""
        return f"near: {', '.join(self.near)}" if self.near else "eager's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """``fitted``: what was found; ``curve``: ``None`` where it was not needed; ``floor``: an op of ``floor_graph``.

    Of the base: bytes of its stack, picoseconds by the roofline, FLOPs, the ops that keep updates behind all gradients.
    """

    base_stack: int
    base_time: int
    base_flops: int
    gradient_readers: tuple[OpId, ...]
    fitted: FittedStep
    stages: tuple[Stage, ...]
    curve: StepCurve | None
    floor: Floor
    floor_graph: Graph


def fit_graph(base: Graph, base_plan: Plan, request: FitRequest, *, whole_curve: bool = False) -> Fitting:
    """The step within the request. ``base_plan`` is sound, and of the whole ``base``, which is legal and has calls.

    ``whole_curve``: search it even where it is not needed. ``BUDGET_TOO_SMALL`` where nothing fits.
    """
    forms = StepForms(base=base, arenas=request.arenas, near=request.near)
    stages, fitted, frames = _without_reruns(forms, base_plan, request)
    if frames is None:
        frames = StepFrames.of(forms, request.levers)
    curve = frames.curve(again=RECOMPUTE in request.levers) if fitted is None or whole_curve else None
    some_curve = curve or frames.curve(again=False)
    floor, floor_graph = _least_floor(some_curve)
    if fitted is None and curve is not None:
        fitted = _searched(curve, request, stages) or _refuse(base, curve, request, floor, floor_graph)
    if fitted is None:
        raise InternalError("a curve was searched that is not there")
    return Fitting(
        base_stack=stages[0].stack_bytes,
        base_time=some_curve.time,
        base_flops=some_curve.flops,
        gradient_readers=_gradient_readers(base, request),
        fitted=fitted,
        stages=tuple(stages),
        curve=curve,
        floor=floor,
        floor_graph=floor_graph,
    )


def _gradient_readers(base: Graph, request: FitRequest) -> tuple[OpId, ...]:
    return gradient_readers(base) if UPDATES in request.levers else ()


def op_text(graph: Graph, op: OpId | int) -> str:
    """An op as reports name it, with the line that makes it."""
    source = graph.notes.ops.source[op]
    return graph.ops.target[op] + (f" ({source})" if source else "")


def _least_floor(curve: StepCurve) -> tuple[Floor, Graph]:
    """Of the forms of the step, the floor that is lowest, and its graph: a head in parts goes below a whole one."""
    forms = [frame.form.facts for frame in curve.frames if frame.order == ORDERS[0][0]]
    floors = [(stack_floor(facts, takes_over=TAKEOVER in curve.levers), facts.graph) for facts in forms]
    return min(floors, key=lambda pair: pair[0].bytes)


def _free(levers: Collection[str]) -> list[str]:
    """The levers without which nothing runs again."""
    return [name for name in FREE_NAMES if name in levers]


def _without_reruns(
    forms: StepForms, base_plan: Plan, request: FitRequest
) -> tuple[list[Stage], FittedStep | None, StepFrames | None]:
    """The step as it is, and with one free lever after another; the first of them that fits; the frames of all."""
    base_stack = segment_bytes(base_plan.arenas, "stack")
    stages = [Stage(lever="", stack_bytes=base_stack, flops=0, time=0)]
    limit, free, frames = request.limit, _free(request.levers), None
    if limit is not None and base_stack <= limit:
        return stages, _as_it_is(forms.base, base_plan, base_stack, request.settings), None
    for count, lever in enumerate(free, 1):
        frames = StepFrames.of(forms, free[:count])
        curve = frames.curve(again=False)
        point = curve.points[-1]
        near = tuple(sorted(near_rules(curve.frames[point.frame].rewrite)))
        figures = {"stack_bytes": point.peak, "flops": point.flops, "time": point.time}
        stages.append(Stage(lever=lever, near=near, **figures))
        if limit is None or not _is_within(request, curve, point.time):
            continue
        fitted = fit_step(curve, limit, request.settings)
        if fitted is not None and (fitted.time <= FREE * curve.time or RECOMPUTE not in request.levers):
            stages[-1] = _stage(lever, fitted, near_rules(fitted.rewrite))
            return stages, fitted, frames if count == len(free) else None
    return stages, None, frames


def _is_within(request: FitRequest, curve: StepCurve, time: int) -> bool:
    return request.at_most is None or time * PPM <= request.at_most * curve.time


def _searched(curve: StepCurve, request: FitRequest, stages: list[Stage]) -> FittedStep | None:
    """What takes time: on the curve alone, or with values on the host where that takes less of it; notes both stages.

    Without a limit nothing says how much has to go, so that nothing does.
    """
    if request.limit is None:
        time = curve.points[-1].time if request.at_most is None else request.at_most * curve.time // PPM
        fitted = fit_within(curve, time, request.settings)
    else:
        fitted = fit_step(curve, request.limit, request.settings)
    if RECOMPUTE in request.levers:
        least = curve.points[-1]
        near = near_rules(fitted.rewrite if fitted else curve.frames[least.frame].rewrite)
        stages.append(_stage(RECOMPUTE, fitted, near, (least.peak, least.flops, least.time)))
    if OFFLOAD in request.levers and request.limit is not None:
        moved = offload_step(curve, request.limit, request.settings)
        if moved is not None and (fitted is None or moved.time < fitted.time):
            fitted = moved
            stages.append(_stage(OFFLOAD, moved, near_rules(moved.rewrite)))
    if request.limit is not None and fitted is not None and not _is_within(request, curve, fitted.time):
        extra = -(-fitted.time * PPM // max(1, curve.time))
        raise BudgetTooSmall(
            f"it takes about {tenths_above(extra)} % more time to fit, and {exact_percent(request.at_most or 0)} % is "
            "allowed",
            fix=f"allow it: --at-most {tenths_above(extra)}%, or give more room",
            extra_time_ppm=extra,
        )
    return fitted


def _stage(
    lever: str, fitted: FittedStep | None, near: frozenset[str], least: tuple[int, int, int] = (0, 0, 0)
) -> Stage:
    """Of what fits, or of the least that there is: bytes live, extra FLOPs, extra time."""
    stack_bytes, flops, time = least if fitted is None else (fitted.stack_bytes, fitted.flops, fitted.time)
    return Stage(lever=lever, stack_bytes=stack_bytes, flops=flops, time=time, near=tuple(sorted(near)))


def _refuse(base: Graph, curve: StepCurve, request: FitRequest, floor: Floor, graph: Graph) -> Never:
    """Says how much is missing, and what the least is that holds it."""
    least, limit = curve.points[-1], request.limit
    if limit is None:
        raise InternalError("a curve has no point that takes no time")
    if least.peak <= limit:
        raise BudgetTooSmall(
            f"the bytes that are live go down to {readable_size(least.peak)} and fit in {readable_size(limit)}, but "
            f"none of {MOST_PLANS} plans packs them in that",
            fix="give a little more room, or search for offsets: --nodes 1000000",
            least_bytes=least.peak,
            limit_bytes=limit,
        )
    moved = _least_with_host(curve, request)
    peak = least.peak if moved is None else moved.stack_bytes
    left_out = [name for name in LEVER_NAMES if name not in request.levers]
    readers = [op_text(base, op) for op in _gradient_readers(base, request)]
    raise BudgetTooSmall(
        f"the stack takes {readable_size(peak)} at the least{_for_time(curve, moved)}, and has room for "
        f"{readable_size(limit)}: "
        f"{readable_size(peak - limit)} too few; nothing goes below {readable_size(floor.bytes)}, which "
        f"{op_text(graph, floor.op)} takes"
        + (f"; updates wait for all gradients, which {', '.join(readers)} reads" if readers else ""),
        fix="give that much more, or a smaller batch or sequence"
        + (f", or leave the other levers in: {', '.join(left_out)}" if left_out else ""),
        least_bytes=peak,
        limit_bytes=limit,
        floor_bytes=floor.bytes,
    )


def _least_with_host(curve: StepCurve, request: FitRequest) -> FittedStep | None:
    """About the fewest bytes with values on the host, by halves of what is between; ``None`` where that gains none."""
    if OFFLOAD not in request.levers or request.limit is None:
        return None
    too_few, found, fitted = request.limit, curve.points[-1].peak, None
    for _ in range(HALVES):
        moved = offload_step(curve, (too_few + found) // 2, request.settings)
        if moved is None or not _is_within(request, curve, moved.time):
            too_few = (too_few + found) // 2
        else:
            fitted, found = moved, moved.stack_bytes
    return fitted


def _for_time(curve: StepCurve, moved: FittedStep | None) -> str:
    """What the least takes in time, where that is worth a word."""
    extra = (curve.points[-1].time if moved is None else moved.time) * PPM // max(1, curve.time)
    return f", for about {extra / 10_000:.1f} % more time" if extra >= PPM // 2_000 else ""


def _as_it_is(base: Graph, plan: Plan, stack: int, settings: PlanSettings) -> FittedStep:
    """The base itself, as a rewrite that changes nothing."""
    rewrite = identity_rewrite(base)
    record = FitRecord(rewrite=rewrite, cost=fit_cost(base, rewrite, time_ppm=0), budget_bytes=settings.budget)
    return FittedStep(
        rewrite=rewrite,
        graph=base,
        plan=replace(plan, fit=record),
        order="as it is",
        live=stack,
        time=0,
        flops=0,
        reruns=0,
    )
