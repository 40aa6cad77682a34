"""Packing as a whole: offsets of the least peak that a number of nodes finds, with what is proven about it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from tmmu.errors import InvalidConfig
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import overlapping_pairs
from tmmu.planner.pack.bounds import live_bound
from tmmu.planner.pack.layers import HEURISTICS, SEARCH, State, improved, run_layers
from tmmu.planner.pack.obstacles import fit_rounds
from tmmu.planner.pack.portfolio import work_limit
from tmmu.planner.pack.reduce import canonical, components, droppable_rounds, take

MOST_NODES: Final = 2_000_000
NODE_WORK: Final = 200_000_000
"""Nodes of the exact search times items, where nobody says how many: a minute, at a fifth of a microsecond each."""
KERNEL_ITEMS: Final = 50_000
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
    nodes: int

    @property
    def proven(self) -> bool:
        """The peak is known to be minimal."""
        return self.peak == self.bound


def pack(problem: PackProblem, *, nodes: int | None = None, capacity: int = 0) -> Packed:
    """The lowest packing found; with ``capacity``, the search ends where it fits or is known not to.

    ``nodes`` limits the exact search; where it is None, the input does.

    Sound always; the same for any order of the items, but that equal ones may swap. ``InvalidConfig`` where offsets
    that are given conflict. No clock is read: work depends on the input and ``nodes`` alone.
    """
    _demand_compatible(problem)
    form = canonical(problem)
    if not form.item:
        return Packed(offset=_spread(problem, (), (), 1), peak=0, live=0, bound=0, method="empty", nodes=0)
    room = capacity // form.unit
    limit = min(MOST_NODES, NODE_WORK // len(form.item)) if nodes is None else nodes
    start = State(problem=form.problem, target=room, capacity=room, limit=limit, work=work_limit(len(form.item)))
    final = searched(run_layers(start, HEURISTICS))
    return Packed(
        offset=_spread(problem, form.item, final.offset, form.unit),
        peak=final.peak * form.unit,
        live=live_bound(form.problem) * form.unit,
        bound=final.bound * form.unit,
        method=final.method,
        nodes=final.nodes,
    )


def improve(problem: PackProblem, offset: Sequence[int], *, nodes: int) -> tuple[int, ...]:
    """Offsets that are no higher than ``offset``, after an exact search. Every item holds bytes."""
    form = canonical(problem)
    known = tuple(offset[item] // form.unit for item in form.item)
    start = run_layers(State(problem=form.problem, target=0, limit=nodes), HEURISTICS[:1])
    return _spread(problem, form.item, searched(improved(start, known, "given")).offset, form.unit)


def _demand_compatible(problem: PackProblem) -> None:
    given = [item for item, offset in enumerate(problem.fixed) if offset >= 0]
    held = take(problem, given)
    for one, other in overlapping_pairs(held, held.fixed):
        raise InvalidConfig(
            f"items {given[one]} and {given[other]} are given bytes in common while both live", fix="move one of them"
        )


def _spread(problem: PackProblem, items: Sequence[int], offset: Sequence[int], unit: int) -> tuple[int, ...]:
    """Offsets by the caller's items; those that hold no byte are where they are given, or at 0."""
    found = [max(0, given) for given in problem.fixed]
    for item, low in zip(items, offset, strict=True):
        found[item] = low * unit
    return tuple(found)


def searched(whole: State) -> State:
    """The state after each part that is above what can be had has been searched by itself, the fullest first.

    A part need not be lower than the bound of another.
    """
    if whole.done:
        return whole
    parts = [_part(whole, items) for items in components(whole.problem)]
    floor = max(whole.target, whole.bound)
    done = list(parts)
    for at in sorted(range(len(parts)), key=lambda i: (-parts[i].bound, -parts[i].peak, i)):
        hopeless = whole.capacity and max(part.bound for part in done) > whole.capacity
        if parts[at].peak > floor and not hopeless:
            spent = sum(part.nodes for part in done)
            done[at] = _searched(replace(parts[at], target=floor, limit=whole.limit - spent))
            floor = max(floor, done[at].peak)
    top = max(done, key=lambda part: part.peak)
    return replace(
        whole,
        offset=tuple(chain.from_iterable(part.offset for part in done)),
        peak=top.peak,
        bound=max(whole.bound, *(part.bound for part in done)),
        method=top.method,
        nodes=sum(part.nodes for part in done),
    )


def _part(whole: State, items: range) -> State:
    offset = whole.offset[items.start : items.stop]
    problem = take(whole.problem, items)
    ends = (low + size for low, size in zip(offset, problem.size, strict=True))
    work = whole.work * len(items) // len(whole.problem)
    alone = State(problem=problem, target=whole.target, limit=0, work=work, capacity=whole.capacity)
    found = run_layers(alone, HEURISTICS[:1])
    return replace(found, offset=offset, peak=max(ends), method=whole.method)


def _searched(part: State) -> State:
    """The part after a search of what matters of it; what does not is put back where there is room."""
    if len(part.problem) > KERNEL_ITEMS:
        return run_layers(part, SEARCH)
    goal = max(part.target, part.bound)
    core, rounds = droppable_rounds(part.problem, goal)
    if not rounds:
        return run_layers(part, SEARCH)
    if not core:
        return improved(part, fit_rounds(part.problem, rounds, {}), "room")
    bare = replace(part, problem=take(part.problem, core), target=goal, offset=(), peak=-1)
    small = improved(bare, tuple(part.offset[item] for item in core), part.method)
    found = run_layers(small, SEARCH)
    offset = fit_rounds(part.problem, rounds, dict(zip(core, found.offset, strict=True)))
    better = improved(part, offset, found.method)
    return replace(better, bound=max(part.bound, found.bound), nodes=found.nodes)
