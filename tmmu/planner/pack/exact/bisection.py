"""Anytime minimization: bisection over the capacity between the proven bound and the best peak.

State: per component a ``PeakRange`` (offsets, peak, bound). Invariants: the peak never rises, the bound never falls,
bound <= peak. A capacity that a search places lowers the peak; one that it refutes raises the bound; one left open
counts as too low for this round only, and is tried again with twice the nodes in the next. Ends when peak and bound
meet, when the goal is reached or when the nodes are spent.
"""

from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from tmmu.planner.pack.exact.answers import Minimum
from tmmu.planner.pack.exact.instance import SearchInstance, offsets_by_row
from tmmu.planner.pack.exact.portfolio import SearchWorkspace, make_workspace, solve

FIRST_NODES: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRange:
    """Offsets in bytes per item, their peak, and the proven lower bound."""

    offset: tuple[int, ...]
    peak: int
    bound: int


def peak_of(instance: SearchInstance, offset: tuple[int, ...]) -> int:
    """The highest end, in bytes."""
    return max(start + size for start, size in zip(offset, instance.bytes, strict=True))


def minimize_parts(parts: tuple[SearchInstance, ...], incumbent: tuple[int, ...], search_nodes: int) -> Minimum:
    """The least peak found from the incumbent's offsets: components by bound, the nodes left shared among the rest."""
    ranges = [first_range(part, incumbent) for part in parts]
    spent, goal = 0, max((part.bound for part in ranges), default=0)
    order = sorted(range(len(parts)), key=lambda index: (-ranges[index].bound, index))
    for parts_searched, index in enumerate(order):
        share = (search_nodes - spent) // (len(parts) - parts_searched)
        if ranges[index].peak > goal and parts[index].is_searchable:
            ranges[index], used = narrow_range(parts[index], ranges[index], goal, share)
            spent += used
        goal = max(goal, ranges[index].peak)
    peak = max((part.peak for part in ranges), default=0)
    bound = max((part.bound for part in ranges), default=0)
    offset = offsets_by_row(parts, [part.offset for part in ranges], incumbent)
    return Minimum(offset=offset, peak=peak, bound=bound, proven=peak == bound, nodes_visited=spent)


def first_range(instance: SearchInstance, incumbent: tuple[int, ...]) -> PeakRange:
    """The range before any search: the incumbent's offsets and the instance's bound."""
    offset = tuple(incumbent[row] for row in instance.row)
    return PeakRange(offset=offset, peak=peak_of(instance, offset), bound=instance.bound)


def narrow_range(
    instance: SearchInstance, peak_range: PeakRange, goal: int, search_nodes: int
) -> tuple[PeakRange, int]:
    """A range no wider than ``peak_range``, and the nodes spent; ends early once the peak is at ``goal`` or the bound.

    Each round doubles the nodes that one capacity may cost.
    """
    workspace = make_workspace(instance)
    spent, share = 0, FIRST_NODES
    while peak_range.peak > max(peak_range.bound, goal) and spent < search_nodes:
        peak_range, used = bisect_peak(workspace, peak_range, max(peak_range.bound, goal), share, search_nodes - spent)
        spent += used
        share *= 2
    return peak_range, spent


def bisect_peak(
    workspace: SearchWorkspace, peak_range: PeakRange, goal: int, share: int, nodes_left: int
) -> tuple[PeakRange, int]:
    """One round: the goal first, then halfway to the peak; (range, nodes spent)."""
    grain = gcd(workspace.instance.unit, *workspace.instance.bytes)
    low = target = goal
    spent = 0
    while target < peak_range.peak and spent < nodes_left:
        result = solve(workspace, target, min(share, nodes_left - spent))
        spent += result.nodes_visited
        if result.status == "placed":
            offset = tuple(value * workspace.instance.unit for value in result.offset)
            peak_range = replace(peak_range, offset=offset, peak=peak_of(workspace.instance, offset))
        else:
            low = target
        if result.status == "impossible":
            # Ends are multiples of ``grain``: the next capacity worth asking for is one grain up.
            peak_range = replace(peak_range, bound=max(peak_range.bound, (target // grain + 1) * grain))
        target = low + max((peak_range.peak - low) // 2 // grain, 1) * grain
    return peak_range, spent
