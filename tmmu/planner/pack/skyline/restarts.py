"""Beams in turn, each round wider than the one before, under a cap that falls while they succeed.

Invariants: the best peak never rises; a beam ends where the work does. What is kept from one beam to the next is the
cap: states that cannot end below it are dropped, so that the same width looks deeper. It falls from what beams have
reached, not from the peak that they were given: where all of a round fail below a lucky start, the next round begins
above it. Ends at the goal, when the work is spent, or when the widest beams that memory allows fail as well.
"""

from dataclasses import dataclass, replace
from typing import Final

from tmmu.planner.pack.exact.instance import SearchInstance
from tmmu.planner.pack.skyline.beam import BeamConfig, SkylineWorkspace, make_workspace, run_beam
from tmmu.planner.pack.skyline.progress import Report, SearchProgress

MAX_CELLS: Final = 12_000_000
"""Cells of one generation of states: 100 MB."""
FIRST_WIDTH: Final = 16
FIRST_SHARE: Final = 32
"""A beam of the first round takes about this part of the work, where it can be so narrow."""
MOVE_WORK: Final = 400
"""Cells that a level looks at for a state, but to copy it."""
HIGHEST_REACH: Final = 2
"""Times the goal, from which no beam begins."""
STEPS: Final = 16
FIRST_STEP: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamVariant:
    """Time forwards or mirrored, children per state, weight of squared waste, haste."""

    mirrored: bool
    branch: int
    convex: int
    haste: int


CYCLE: Final = (
    BeamVariant(mirrored=False, branch=3, convex=16, haste=1),
    BeamVariant(mirrored=True, branch=3, convex=16, haste=1),
    BeamVariant(mirrored=False, branch=2, convex=4, haste=0),
    BeamVariant(mirrored=True, branch=2, convex=4, haste=0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkylinePacking:
    """Offsets in units per item of the instance, none if no beam got below the given peak; and the work spent.

    ``reach``: where the beams' own packings end, the given peak before any.
    """

    offset: tuple[int, ...]
    peak: int
    work: int
    reach: int


def lower_peak(
    instance: SearchInstance, peak: int, goal: int, work: int, report: Report | None = None
) -> SkylinePacking:
    """The lowest packing found below ``peak`` units; one at ``goal`` or below ends the search."""
    best = SkylinePacking(offset=(), peak=peak, work=0, reach=peak)
    widest = max(MAX_CELLS // (len(instance) + 3 * instance.sections + 6), 1)
    width = min(_first_width(instance, work), widest)
    while True:
        pair = tuple(make_workspace(instance, width=width, branch=3, mirrored=mirrored) for mirrored in (False, True))
        reached, is_widest = best.reach, width == widest
        best = _run_round(pair, best, goal, work)
        if report is not None:
            permille = min(1000 * best.work // max(work, 1), 1000)
            report(SearchProgress(width=width, peak=best.peak * instance.unit, permille=permille))
        if best.peak <= goal or best.work >= work:
            return best
        if best.reach == reached:
            if is_widest and (best.offset or reached >= goal * HIGHEST_REACH):
                return best
            if not best.offset:
                best = replace(best, reach=reached + (reached - goal) // 4 + 1)
        width = min(2 * width, widest)


def _first_width(instance: SearchInstance, work: int) -> int:
    state_work = len(instance) * ((len(instance) + instance.sections) // 32 + MOVE_WORK)
    return max(min(work // FIRST_SHARE // state_work, FIRST_WIDTH), 1)


def _run_round(pair: tuple[SkylineWorkspace, ...], best: SkylinePacking, goal: int, work: int) -> SkylinePacking:
    """The best after each variant has been tried until it fails; a failed cap is followed by a higher one."""
    step = FIRST_STEP
    for variant in CYCLE:
        workspace = pair[variant.mirrored]
        config = BeamConfig(width=workspace.width, branch=variant.branch, convex=variant.convex, haste=variant.haste)
        tries = 0
        while best.peak > goal and best.work < work and tries < 3:
            tries += 1
            cap = max(goal, min(goal + (best.reach - goal) * step // STEPS, best.reach - 1))
            offset, spent = run_beam(workspace, config, cap, work - best.work)
            best = replace(best, work=best.work + spent)
            if not offset:
                step = min(step + 1, STEPS - 1)
                break
            best = replace(best, reach=_peak(workspace, offset))
            if best.reach < best.peak:
                best = replace(best, offset=offset, peak=best.reach)
    return best


def _peak(workspace: SkylineWorkspace, offset: tuple[int, ...]) -> int:
    return max(int(size) + low for size, low in zip(workspace.items.size, offset, strict=True))
