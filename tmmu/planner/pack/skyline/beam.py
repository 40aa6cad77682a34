"""Beam search over skylines: the states of one level have made as many moves; the best ``width`` go on.

State: ``SkylineWorkspace``, the items and two generations of states. Of states that have placed the same set of items
the cheapest goes on; ties go to the earlier move, so that the result depends on the items alone. See ``kernel.py``.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tmmu.planner.pack.exact.instance import SearchInstance
from tmmu.planner.pack.exact.jit import make_cells, zero_cells
from tmmu.planner.pack.exact.orders import splitmix64
from tmmu.planner.pack.skyline import kernel
from tmmu.planner.pack.skyline.kernel import MOVE_CELLS, apply_moves, expand_states
from tmmu.planner.pack.skyline.state import SkylineItems, SkylineStates

WASTE_BITS: Final = 24
COST_BITS: Final = 34
"""Weighted waste stays below 2^24 in a section and 2^34 in all, so that squares and scaled keys fit a word."""
KEY_BITS: Final = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamConfig:
    """One beam: states per level, children per state, weights of squared waste and of area still open (thousandths)."""

    width: int
    branch: int
    convex: int
    haste: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkylineWorkspace:
    """The items of an instance, forwards or with time reversed, and cells for beams up to ``width``."""

    items: SkylineItems
    states: SkylineStates
    width: int


def make_workspace(instance: SearchInstance, *, width: int, branch: int, mirrored: bool) -> SkylineWorkspace:
    """The cells for beams of an instance without fixed offsets."""
    moves = zero_cells(MOVE_CELLS * width * (3 * branch + 1))
    items = make_items(instance, mirrored=mirrored)._replace(moves=moves)
    items.parameter[kernel.SCRATCH] = 2 * width
    count, sections, slots = len(instance), instance.sections, 2 * width + 1
    cells = {"offset": slots * count, "waste": slots * sections}
    cells |= dict.fromkeys(("start", "height"), slots * (sections + 2))
    states = SkylineStates(*(zero_cells(cells.get(name, slots)) for name in SkylineStates._fields))
    return SkylineWorkspace(items=items, states=states, width=width)


def make_items(instance: SearchInstance, *, mirrored: bool) -> SkylineItems:
    """Constant columns of an instance."""
    count, sections, loads = len(instance), instance.sections, instance.loads
    first, end = np.array(instance.first_section), np.array(instance.end_section)
    if mirrored:
        first, end, loads = sections - end, sections - first, loads[::-1]
    size = np.array(instance.units, dtype=np.int64)
    by_first = np.lexsort((np.arange(count), -size, -end, first))
    by_end = np.lexsort((np.arange(count), -size, -first, end))
    parameter = [0] * (kernel.MOVES + 1)
    parameter[kernel.ITEMS], parameter[kernel.SECTIONS], parameter[kernel.BOUND] = count, sections, max(loads)
    columns = {
        "size": instance.units,
        "align": instance.align,
        "first": first.tolist(),
        "end": end.tolist(),
        "by_first": by_first.tolist(),
        "first_at": np.searchsorted(first[by_first], np.arange(sections + 2)).tolist(),
        "by_end": by_end.tolist(),
        "end_at": np.searchsorted(end[by_end], np.arange(sections + 3)).tolist(),
        "load": loads,
        "key": [splitmix64(item) >> 2 for item in range(count)],
        "parameter": parameter,
        "undo": [0] * (12 * sections + 24),
        "moves": [0],
    }
    return SkylineItems(**{name: make_cells(column) for name, column in columns.items()})


def run_beam(workspace: SkylineWorkspace, config: BeamConfig, cap: int, work: int) -> tuple[tuple[int, ...], int]:
    """(offsets in units with no end above ``cap``, work spent); no offsets if the beam or its work ended before."""
    items, states = workspace.items, workspace.states
    parameter, count = items.parameter, int(items.parameter[kernel.ITEMS])
    parameter[kernel.CAP], parameter[kernel.BRANCH] = cap, config.branch
    parameter[kernel.CONVEX], parameter[kernel.WORK] = config.convex, 0
    sections_bits = int(parameter[kernel.SECTIONS]).bit_length()
    parameter[kernel.SHIFT] = max(cap.bit_length() - min(WASTE_BITS, COST_BITS - sections_bits), 0)
    _clear_state(workspace)
    slot, live = 0, 1
    while live and parameter[kernel.WORK] < work:
        rows = expand_states(items, states, slot, live)
        chosen = choose_moves(items.moves, rows, config)
        slot, live = workspace.width - slot, len(chosen)
        apply_moves(items, states, make_cells(chosen), slot)
        for done in range(slot, slot + live):
            if states.placed[done] == count:
                offset = states.offset[done * count : (done + 1) * count]
                return tuple(int(low) for low in offset), int(parameter[kernel.WORK])
    return (), int(parameter[kernel.WORK])


def _clear_state(workspace: SkylineWorkspace) -> None:
    states, sections = workspace.states, workspace.items.parameter[kernel.SECTIONS]
    for item in range(workspace.items.parameter[kernel.ITEMS]):
        states.offset[item] = -1
    for section in range(sections):
        states.waste[section] = 0
    states.start[0], states.height[0], states.start[1], states.segments[0] = 0, 0, sections, 1
    states.cost[0] = states.area[0] = states.hash[0] = states.placed[0] = 0


def choose_moves(moves: Any, rows: int, config: BeamConfig) -> list[int]:
    """Rows of the moves that go on: by cost over area, one per set of items placed."""
    if not rows:
        return []
    table = np.array(moves[: rows * MOVE_CELLS], dtype=np.int64).reshape(rows, MOVE_CELLS)
    cost, area, key = table[:, 3], table[:, 4], table[:, 5]
    rank = ((cost + int(area.max()) * config.haste // 1000) << KEY_BITS) // np.maximum(area, 1)
    order = np.lexsort((np.arange(rows), rank))
    _, index = np.unique(key[order], return_index=True)
    chosen: list[int] = order[np.sort(index)][: config.width].tolist()
    return chosen
