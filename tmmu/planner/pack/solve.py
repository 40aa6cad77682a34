"""The packing pipeline: canonical form, heuristics, components, reduction, exact search; with a proven lower bound.

State: one ``PackingState`` for the whole problem, then one per component in time. Invariants: a component's result
replaces its offsets only if it is lower; the nodes spent by all components never exceed ``search_nodes``; ``floor``,
the highest peak that some component needs anyway, only rises, and no component is searched below it. Components are
searched once each, by bound. The result depends on the problem and the node budget alone, never on a clock.
See docs/spec/packing.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from tmmu.errors import InvalidConfig
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import overlapping_pairs
from tmmu.planner.pack.bounds import live_bound
from tmmu.planner.pack.obstacles import fit_rounds
from tmmu.planner.pack.portfolio import work_limit
from tmmu.planner.pack.reduce import CanonicalProblem, canonicalize, components, droppable_rounds, select_items
from tmmu.planner.pack.skyline.progress import Report
from tmmu.planner.pack.stages import HEURISTICS, SEARCH, SEARCH_AGAIN, PackingState, keep_lower, run_stages

MAX_SEARCH_NODES: Final = 2_000_000
NODE_WORK: Final = 200_000_000
"""Default budget, in search nodes x items: about a minute, at 0.2 us per node and item."""
MAX_REDUCED_ITEMS: Final = 50_000
"""Components of more items are searched unreduced: finding droppable items would cost more than it saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingResult:
    """Offsets of all items, and their peak in bytes.

    ``live``: the most bytes live at once; ``bound``: the highest proven lower bound of any peak.
    """

    offset: tuple[int, ...]
    peak: int
    live: int
    bound: int
    method: str
    nodes_visited: int

    @property
    def proven(self) -> bool:
        """The peak is known to be minimal."""
        return self.peak == self.bound


def pack(
    problem: PackProblem, *, search_nodes: int | None = None, capacity: int = 0, report: Report | None = None
) -> PackingResult:
    """The lowest packing found; with ``capacity``, the search ends once it fits or provably does not.

    ``search_nodes``: node budget of the exact search, by default ``NODE_WORK`` over the items. The result is the same
    for any order of the items, except that equal items may swap. ``report`` is called with progress in units of the
    problem's bytes. ``InvalidConfig`` if fixed offsets conflict.
    """
    _demand_disjoint_fixed(problem)
    canonical = canonicalize(problem)
    if not canonical.item:
        offset = _offsets_by_item(problem, canonical, ())
        return PackingResult(offset=offset, peak=0, live=0, bound=0, method="empty", nodes_visited=0)
    units = capacity // canonical.unit
    limit = min(MAX_SEARCH_NODES, NODE_WORK // len(canonical.item)) if search_nodes is None else search_nodes
    work = work_limit(len(canonical.item))
    start = PackingState(
        problem=canonical.problem,
        target=units,
        capacity=units,
        search_nodes=limit,
        work=work,
        report=None if report is None else _in_bytes(report, canonical.unit),
    )
    final = search_components(run_stages(start, HEURISTICS))
    return PackingResult(
        offset=_offsets_by_item(problem, canonical, final.offset),
        peak=final.peak * canonical.unit,
        live=live_bound(canonical.problem) * canonical.unit,
        bound=final.bound * canonical.unit,
        method=final.method,
        nodes_visited=final.nodes_visited,
    )


def _in_bytes(report: Report, unit: int) -> Report:
    return lambda progress: report(replace(progress, peak=progress.peak * unit))


def improve(problem: PackProblem, offset: Sequence[int], *, search_nodes: int) -> tuple[int, ...]:
    """Offsets with a peak no higher than that of ``offset``, by exact search. Every item has 1 byte or more."""
    canonical = canonicalize(problem)
    offset_in_units = tuple(offset[item] // canonical.unit for item in canonical.item)
    start = run_stages(PackingState(problem=canonical.problem, target=0, search_nodes=search_nodes), HEURISTICS[:1])
    final = search_components(keep_lower(start, offset_in_units, "given"))
    return _offsets_by_item(problem, canonical, final.offset)


def _demand_disjoint_fixed(problem: PackProblem) -> None:
    fixed_items = [item for item, offset in enumerate(problem.fixed) if offset >= 0]
    fixed_problem = select_items(problem, fixed_items)
    for first, second in overlapping_pairs(fixed_problem, fixed_problem.fixed):
        raise InvalidConfig(
            f"items {fixed_items[first]} and {fixed_items[second]} are given bytes in common while both live",
            fix="move one of them",
        )


def _offsets_by_item(problem: PackProblem, canonical: CanonicalProblem, offset: Sequence[int]) -> tuple[int, ...]:
    """Offsets in bytes by the caller's items; items without bytes or span are at their fixed offset, or at 0."""
    by_item = [max(0, fixed) for fixed in problem.fixed]
    for item, low in zip(canonical.item, offset, strict=True):
        by_item[item] = low * canonical.unit
    return tuple(by_item)


def search_components(whole: PackingState) -> PackingState:
    """The state after the components above the floor have been searched by themselves, always the highest next.

    One budget for all: where several are above the floor, each first gets its part of half the nodes, and twice as
    many whenever it is the highest again. Ends where the highest is at the floor or can be lowered no more.
    """
    if whole.is_done:
        return whole
    results = [_component_state(whole, items) for items in components(whole.problem)]
    above = sum(part.peak > max(whole.target, whole.bound) for part in results)
    share = whole.search_nodes if above == 1 else whole.search_nodes // (2 * max(above, 1))
    visits = [0] * len(results)
    nodes_left = whole.search_nodes
    while (index := _highest_above_floor(whole, results)) >= 0 and (nodes_left or not visits[index]):
        part = results[index]
        nodes = min(share << visits[index], nodes_left)
        found = _search_component(part, _floor(whole, results), nodes, is_first=not visits[index])
        nodes_left -= found.nodes_visited
        visits[index] += 1
        results[index] = replace(found, nodes_visited=part.nodes_visited + found.nodes_visited)
        is_exhausted = found.nodes_visited < nodes and (found.peak, found.bound) == (part.peak, part.bound)
        if is_exhausted:
            break
    top = max(results, key=lambda part: part.peak)
    return replace(
        whole,
        offset=tuple(chain.from_iterable(part.offset for part in results)),
        peak=top.peak,
        bound=max(whole.bound, *(part.bound for part in results)),
        method=top.method,
        nodes_visited=sum(part.nodes_visited for part in results),
    )


def _floor(whole: PackingState, results: Sequence[PackingState]) -> int:
    """The highest peak that some component needs, as far as is proven, or that is good enough."""
    return max(whole.target, whole.bound, *(part.bound for part in results))


def _highest_above_floor(whole: PackingState, results: Sequence[PackingState]) -> int:
    """The component of the highest peak, the fullest of equals; -1 if it need not be lowered, or no capacity fits."""
    index = max(range(len(results)), key=lambda i: (results[i].peak, results[i].bound, -i))
    exceeds_capacity = whole.capacity and max(part.bound for part in results) > whole.capacity
    return -1 if exceeds_capacity or results[index].peak <= _floor(whole, results) else index


def _component_state(whole: PackingState, items: range) -> PackingState:
    offset = whole.offset[items.start : items.stop]
    problem = select_items(whole.problem, items)
    ends = (low + size for low, size in zip(offset, problem.size, strict=True))
    work = whole.work * len(items) // len(whole.problem)
    initial = replace(
        whole,
        problem=problem,
        search_nodes=0,
        work=work,
        items=len(whole.problem),
        offset=(),
        peak=-1,
        bound=0,
        nodes_visited=0,
    )
    bounded = run_stages(initial, HEURISTICS[:1])
    return replace(bounded, offset=offset, peak=max(ends), method=whole.method)


def _search_component(part: PackingState, floor: int, nodes: int, *, is_first: bool) -> PackingState:
    """The component after a search of its core; dropped items are put back into their gaps."""
    part = replace(part, target=floor, search_nodes=nodes, nodes_visited=0)
    stages = SEARCH if is_first else SEARCH_AGAIN
    if len(part.problem) > MAX_REDUCED_ITEMS:
        return run_stages(part, stages)
    goal = max(part.target, part.bound)
    core, rounds = droppable_rounds(part.problem, goal)
    if not rounds:
        return run_stages(part, stages)
    if not core:
        return keep_lower(part, fit_rounds(part.problem, rounds, {}), "room")
    core_state = replace(part, problem=select_items(part.problem, core), target=goal, offset=(), peak=-1)
    core_start = keep_lower(core_state, tuple(part.offset[item] for item in core), part.method)
    core_result = run_stages(core_start, stages)
    offset = fit_rounds(part.problem, rounds, dict(zip(core, core_result.offset, strict=True)))
    better = keep_lower(part, offset, core_result.method)
    return replace(better, bound=max(part.bound, core_result.bound), nodes_visited=core_result.nodes_visited)
