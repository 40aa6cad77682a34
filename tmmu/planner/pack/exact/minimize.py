"""Anytime minimization: lower capacities are tried until none is left or the nodes are spent."""

from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from tmmu.planner.pack.exact.answers import Minimum
from tmmu.planner.pack.exact.instance import Instance, spread
from tmmu.planner.pack.exact.portfolio import Desk, desk_of, solve

FIRST_NODES: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets in bytes per item, the peak that they need, and what every placement needs."""

    offset: tuple[int, ...]
    peak: int
    bound: int


def peak_of(instance: Instance, offset: tuple[int, ...]) -> int:
    """The highest end, in bytes."""
    return max(start + size for start, size in zip(offset, instance.byte, strict=True))


def minimize_parts(parts: tuple[Instance, ...], incumbent: tuple[int, ...], nodes: int) -> Minimum:
    """The least peak found from the incumbent's offsets: the most loaded part first, in fair shares."""
    ranges = [first_range(part, incumbent) for part in parts]
    spent, goal = 0, max((known.bound for known in ranges), default=0)
    order = sorted(range(len(parts)), key=lambda index: (-ranges[index].bound, index))
    for turn, index in enumerate(order):
        share = (nodes - spent) // (len(parts) - turn)
        if ranges[index].peak > goal and parts[index].searchable:
            ranges[index], used = narrow(parts[index], ranges[index], goal, share)
            spent += used
        goal = max(goal, ranges[index].peak)
    peak = max((known.peak for known in ranges), default=0)
    bound = max((known.bound for known in ranges), default=0)
    offset = spread(parts, [known.offset for known in ranges], incumbent)
    return Minimum(offset=offset, peak=peak, bound=bound, proven=peak == bound, nodes=spent)


def first_range(instance: Instance, incumbent: tuple[int, ...]) -> Range:
    """What is known before any search."""
    offset = tuple(incumbent[row] for row in instance.row)
    return Range(offset=offset, peak=peak_of(instance, offset), bound=instance.bound)


def narrow(instance: Instance, known: Range, goal: int, nodes: int) -> tuple[Range, int]:
    """A range no wider than ``known``, and the nodes spent: no more once the peak is at ``goal`` or the bound.

    In each round a capacity may cost twice the nodes that it could in the round before.
    """
    desk = desk_of(instance)
    spent, share = 0, FIRST_NODES
    while known.peak > max(known.bound, goal) and spent < nodes:
        known, used = bisect(desk, known, max(known.bound, goal), share, nodes - spent)
        spent += used
        share *= 2
    return known, spent


def bisect(desk: Desk, known: Range, goal: int, share: int, nodes: int) -> tuple[Range, int]:
    """One round: the goal itself, then halfway to the peak; what stays open counts as too low in this round."""
    grain = gcd(desk.instance.unit, *desk.instance.byte)
    low = target = goal
    spent = 0
    while target < known.peak and spent < nodes:
        found = solve(desk, target, min(share, nodes - spent))
        spent += found.nodes
        if found.state == "placed":
            offset = tuple(value * desk.instance.unit for value in found.offset)
            known = replace(known, offset=offset, peak=peak_of(desk.instance, offset))
        else:
            low = target
        if found.state == "impossible":
            known = replace(known, bound=max(known.bound, (target // grain + 1) * grain))
        target = low + max((known.peak - low) // 2 // grain, 1) * grain
    return known, spent
