"""``tmmu.max_size``: the largest size whose plan fits, of whatever makes a plan of a size."""

from collections.abc import Callable

from tmmu.api.arguments import require_kind
from tmmu.api.memory_plan import MaxSize, MemoryPlan, require_plan
from tmmu.api.size_limit import SizeLimit
from tmmu.device_fit import max_on_device
from tmmu.errors import InternalError, InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.ir.plan import ArenaSpec, Plan
from tmmu.passes.lowering.read_calls import read_program
from tmmu.planner.fit.fit_step import PlanSettings
from tmmu.planner.fit.forms import LEVER_NAMES
from tmmu.planner.sizes.largest import MOST
from tmmu.planner.sizes.max_size import SizeRequest
from tmmu.planner.token import token_from_seed
from tmmu.summary.plan_summary import DEFAULT_RESERVE


def max_size(  # noqa: PLR0913 - the options of one search, by name
    make_plan: Callable[[int], MemoryPlan],
    size: str | int,
    *,
    reserve: str | int = DEFAULT_RESERVE,
    starts: tuple[int, ...] = (2, 3),
    fit: bool = False,
    near: bool = False,
) -> MaxSize:
    """The largest batch, sequence or other whole number whose run inside its plan fits in ``size`` beside ``reserve``.

        def plan_of(batch):
            return tmmu.plan(model, torch.empty(batch, 1024, device="meta"), loss="sum", optimizer="adamw")

        tmmu.max_size(plan_of, "24GB").size

    ``make_plan`` makes the plan of a size, each time with the same options: usually of two sizes, the ``starts``, and
    of the answer. What it refuses with a ``TmmuError`` is too large; 1 is tried only where nothing larger fits. Three
    ``starts`` suit sequences, multiples of 64, as what grows with their square is predicted too.
    ``fit``: with the levers of ``tmmu fit``, eager's bits; ``near``: those that are only near too.
    Errors: ``BUDGET_TOO_SMALL`` where not even 1 fits; what ``make_plan`` raises at a start. Takes a trace for a plan.
    """
    first, limit = _sizes_of(starts), SizeLimit.of(size, reserve, fit=fit, near=near)
    return largest_plan(make_plan, limit, first, unit=1, token=token_from_seed(0))


def largest_plan(
    make_plan: Callable[[int], MemoryPlan], limit: SizeLimit, starts: tuple[int, ...], *, unit: int, token: bytes
) -> MaxSize:
    """The largest size within a limit. ``token``: that of plans with levers; ``unit``: of sizes that kernels pad."""
    plans: dict[int, MemoryPlan] = {}

    def trace(at: int) -> tuple[Graph, Plan]:
        if at not in plans:
            plans[at] = require_plan(make_plan(at))
        return plans[at].graph, plans[at].plan

    _, plan = trace(starts[0])
    request = SizeRequest(
        starts=starts,
        limit=limit.size - limit.reserve,
        is_whole=True,
        mode=plan.mode,
        arenas=_specs_of(plan),
        settings=PlanSettings(preset=plan.preset, token=token, budget=limit.size),
        unit=unit,
        levers=LEVER_NAMES if limit.fit else None,
        near=limit.near,
    )
    answers = max_on_device(trace, read_program, request).found
    largest = answers.fitted or answers.as_it_is
    if largest is None:
        raise InternalError("a search that found nothing did not say so")
    traced = next(plan for plan in plans.values() if plan.graph is largest.graph)
    fitted = largest.fitted
    return MaxSize(
        size=largest.size,
        plan=traced
        if fitted is None
        else MemoryPlan(graph=fitted.graph, plan=fitted.plan, assumed=traced.assumed, routings=traced.routings),
        sizes=answers.traces,
        predicted=largest.is_predicted,
        unit=largest.unit,
        extra_time_ppm=largest.extra_time,
        refusal=largest.refusal,
    )


def _sizes_of(starts: object) -> tuple[int, ...]:
    """At least two different sizes from 2 on; ``INVALID_CONFIG`` for anything else."""
    require_kind(starts, tuple, "two sizes or three, such as (2, 3)")
    sizes: tuple[object, ...] = starts  # type: ignore[assignment]
    if len(set(sizes)) < max(2, len(sizes)) or not all(type(size) is int and 2 <= size <= MOST for size in sizes):
        raise InvalidConfig(
            f"starts={sizes!r:.80} are no two different sizes of at least 2", fix="write whole numbers such as (2, 3)"
        )
    return sizes  # type: ignore[return-value]


def _specs_of(plan: Plan) -> tuple[ArenaSpec, ...]:
    """The arenas that a plan was made with."""
    arenas = plan.arenas
    return tuple(
        ArenaSpec(
            name=arenas.name[at],
            segment=arenas.segment[at],
            layout=arenas.layout[at],
            alignment=arenas.alignment[at],
            page=arenas.page[at],
            capacity=arenas.capacity[at],
        )
        for at in range(len(arenas))
    )
