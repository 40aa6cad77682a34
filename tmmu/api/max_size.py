"""``tmmu.max_size``: the largest size whose plan fits, of whatever makes a plan of a size."""

from collections.abc import Callable
from dataclasses import dataclass

from tmmu.api.arguments import bytes_of, require_kind
from tmmu.api.memory_plan import MemoryPlan, require_plan
from tmmu.errors import BudgetTooSmall, InternalError, InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.ir.plan import ArenaSpec, Plan
from tmmu.planner.arenas import readable_size
from tmmu.planner.fit.fit_step import PlanSettings
from tmmu.planner.sizes.largest import MOST
from tmmu.planner.sizes.max_size import SizeRequest, max_sizes
from tmmu.planner.token import token_from_seed
from tmmu.summary.plan_summary import DEFAULT_RESERVE


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSize:
    """``plan``: that of the largest ``size``; ``sizes``: those that plans were made of, in that order.

    ``predicted``: the plan's graph is what was predicted of the first ones, byte for byte; else plans were searched.
    """

    size: int
    plan: MemoryPlan
    sizes: tuple[int, ...]
    predicted: bool


def max_size(
    make_plan: Callable[[int], MemoryPlan],
    size: str | int,
    *,
    reserve: str | int = DEFAULT_RESERVE,
    starts: tuple[int, ...] = (2, 3),
) -> MaxSize:
    """The largest batch, sequence or other whole number whose run inside its plan fits in ``size`` beside ``reserve``.

        def plan_of(batch):
            return tmmu.plan(model, torch.empty(batch, 1024, device="meta"), loss="sum", optimizer="adamw")

        tmmu.max_size(plan_of, "24GB").size

    ``make_plan`` makes the plan of a size, each time with the same options: usually of two sizes, the ``starts``, and
    of the answer. What it refuses with a ``TmmuError`` is too large; 1 is tried only where nothing larger fits. Three
    ``starts`` suit sequences, multiples of 64, as what grows with their square is predicted too.
    Errors: ``BUDGET_TOO_SMALL`` where not even 1 fits; what ``make_plan`` raises at a start. Takes a trace for a plan.
    """
    budget, kept, first = bytes_of(size), bytes_of(reserve), _sizes_of(starts)
    if budget < kept:
        raise BudgetTooSmall(
            f"the reserve of {readable_size(kept)} is more than {readable_size(budget)}", fix="give a smaller reserve"
        )
    plans: dict[int, MemoryPlan] = {}

    def trace(at: int) -> tuple[Graph, Plan]:
        if at not in plans:
            plans[at] = require_plan(make_plan(at))
        return plans[at].graph, plans[at].plan

    _, plan = trace(first[0])
    request = SizeRequest(
        starts=first,
        limit=budget - kept,
        is_whole=True,
        mode=plan.mode,
        arenas=_specs_of(plan),
        settings=PlanSettings(preset=plan.preset, token=token_from_seed(0)),
    )
    found = max_sizes(trace, request).as_it_is
    if found is None:
        raise InternalError("a search that found nothing did not say so")
    return MaxSize(size=found.size, plan=plans[found.size], sizes=tuple(plans), predicted=found.is_predicted)


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
