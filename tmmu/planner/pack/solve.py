"""Packing as a whole: offsets of the least peak that a number of nodes finds, with what is proven about it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from tmmu.errors import InvalidConfig
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import overlapping_pairs
from tmmu.planner.pack.bounds import live_bound
from tmmu.planner.pack.layers import HEURISTICS, SEARCH, PackingState, keep_lower, run_stages
from tmmu.planner.pack.obstacles import fit_rounds
from tmmu.planner.pack.portfolio import work_limit
from tmmu.planner.pack.reduce import canonical, components, droppable_rounds, take

MAX_NODES: Final = 2_000_000
NODE_WORK: Final = 200_000_000
"""Nodes of the exact search times items, where nobody says how many: a minute, at a fifth of a microsecond each."""
MAX_REDUCED_ITEMS: Final = 50_000
"""A part of more items is searched whole: looking for what does not matter would cost more than it gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Offsets of all items, and their peak.

    ``live``: the most bytes live at once. ``bound``: no packing is lower, by any argument that was found.
    ``nodes``: how many the exact search looked at.
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


def pack(problem: PackProblem, *, search_nodes: int | None = None, capacity: int = 0) -> Packed:
    """The lowest packing found; with ``capacity``, the search ends where it fits or is known not to.

    ``nodes`` limits the exact search; where it is None, the input does.

    Sound always; the same for any order of the items, but that equal ones may swap. ``InvalidConfig`` where offsets
    that are given conflict. No clock is read: work depends on the input and ``nodes`` alone.
    """
    _demand_compatible(problem)
    form = canonical(problem)
    if not form.item:
        return Packed(offset=_spread(problem, (), (), 1), peak=0, live=0, bound=0, method="empty", nodes_visited=0)
    room = capacity // form.unit
    limit = min(MAX_NODES, NODE_WORK // len(form.item)) if search_nodes is None else search_nodes
    start = PackingState(
        problem=form.problem, target=room, capacity=room, search_nodes=limit, work=work_limit(len(form.item))
    )
    final = search_components(run_stages(start, HEURISTICS))
    return Packed(
        offset=_spread(problem, form.item, final.offset, form.unit),
        peak=final.peak * form.unit,
        live=live_bound(form.problem) * form.unit,
        bound=final.bound * form.unit,
        method=final.method,
        nodes_visited=final.nodes_visited,
    )


def improve(problem: PackProblem, offset: Sequence[int], *, search_nodes: int) -> tuple[int, ...]:
    """Offsets that are no higher than ``offset``, after an exact search. Every item holds bytes."""
    form = canonical(problem)
    offset_in_units = tuple(offset[item] // form.unit for item in form.item)
    start = run_stages(PackingState(problem=form.problem, target=0, search_nodes=search_nodes), HEURISTICS[:1])
    return _spread(problem, form.item, search_components(keep_lower(start, offset_in_units, "given")).offset, form.unit)


def _demand_compatible(problem: PackProblem) -> None:
    fixed_items = [item for item, offset in enumerate(problem.fixed) if offset >= 0]
    fixed_problem = take(problem, fixed_items)
    for first, second in overlapping_pairs(fixed_problem, fixed_problem.fixed):
        raise InvalidConfig(
            f"items {fixed_items[first]} and {fixed_items[second]} are given bytes in common while both live",
            fix="move one of them",
        )


def _spread(problem: PackProblem, items: Sequence[int], offset: Sequence[int], unit: int) -> tuple[int, ...]:
    """Offsets by the caller's items; those that hold no byte are where they are given, or at 0."""
    by_item = [max(0, given) for given in problem.fixed]
    for item, low in zip(items, offset, strict=True):
        by_item[item] = low * unit
    return tuple(by_item)


def search_components(whole: PackingState) -> PackingState:
    """The state after each part that is above what can be had has been searched by itself, the fullest first.

    A part need not be lower than the bound of another.
    """
    if whole.is_done:
        return whole
    parts = [_component_state(whole, items) for items in components(whole.problem)]
    floor = max(whole.target, whole.bound)
    results = list(parts)
    for index in sorted(range(len(parts)), key=lambda i: (-parts[i].bound, -parts[i].peak, i)):
        hopeless = whole.capacity and max(part.bound for part in results) > whole.capacity
        if parts[index].peak > floor and not hopeless:
            spent = sum(part.nodes_visited for part in results)
            results[index] = _search_component(
                replace(parts[index], target=floor, search_nodes=whole.search_nodes - spent)
            )
            floor = max(floor, results[index].peak)
    top = max(results, key=lambda part: part.peak)
    return replace(
        whole,
        offset=tuple(chain.from_iterable(part.offset for part in results)),
        peak=top.peak,
        bound=max(whole.bound, *(part.bound for part in results)),
        method=top.method,
        nodes_visited=sum(part.nodes_visited for part in results),
    )


def _component_state(whole: PackingState, items: range) -> PackingState:
    offset = whole.offset[items.start : items.stop]
    problem = take(whole.problem, items)
    ends = (low + size for low, size in zip(offset, problem.size, strict=True))
    work = whole.work * len(items) // len(whole.problem)
    initial = PackingState(problem=problem, target=whole.target, search_nodes=0, work=work, capacity=whole.capacity)
    bounded = run_stages(initial, HEURISTICS[:1])
    return replace(bounded, offset=offset, peak=max(ends), method=whole.method)


def _search_component(part: PackingState) -> PackingState:
    """The part after a search of what matters of it; what does not is put back where there is room."""
    if len(part.problem) > MAX_REDUCED_ITEMS:
        return run_stages(part, SEARCH)
    goal = max(part.target, part.bound)
    core, rounds = droppable_rounds(part.problem, goal)
    if not rounds:
        return run_stages(part, SEARCH)
    if not core:
        return keep_lower(part, fit_rounds(part.problem, rounds, {}), "room")
    core_state = replace(part, problem=take(part.problem, core), target=goal, offset=(), peak=-1)
    core_start = keep_lower(core_state, tuple(part.offset[item] for item in core), part.method)
    core_result = run_stages(core_start, SEARCH)
    offset = fit_rounds(part.problem, rounds, dict(zip(core, core_result.offset, strict=True)))
    better = keep_lower(part, offset, core_result.method)
    return replace(better, bound=max(part.bound, core_result.bound), nodes_visited=core_result.nodes_visited)
