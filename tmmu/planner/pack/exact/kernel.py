"""The exact search, compiled as one file: numba's cache of it is dropped when this file changes.

Question: is there an offset per item with no end above the capacity? Answer: offsets, a proof that there are none, or
neither once the node limit or the work limit is reached.

Canonical solution. If any solution exists, so does one of least weighted total offset, with weights such that of two
items that could change places the one of lower rank lies lower. In it no item can move down: each lies at 0, or on
another item. Every rule below (``raise_bounds``, ``place_forced``, ``is_outranked``) holds in that solution alone, so
that what contradicts a rule is cut off, and a search that ends without a solution is a proof.

State. Per item its offset (-1: not placed), its ``support`` (highest end placed below it) and ``low``, a lower bound of
its offset. Invariants: ``support <= low``; both only rise within a node; every placed item lies below
all of its neighbours yet to place, since items are placed in the order of their lower bounds.

Branching. The open item of least bound rests on its support (first side), or lies on a neighbour yet to place (second
side): both are searched, depth first, with the trail in ``SearchStack.saved``. Once no open item spans a section
boundary, the parts of the timeline are independent: they are searched one after another, and a part without a solution
backtracks to the last choice within it (``parent``), never into its siblings.

Termination. A first side places an item, a second side raises an integer bound that the capacity limits; the node limit
bounds the rest. A node costs O(rounds x sections of the open items), and no bound in the items holds for its rounds:
sizes of one unit beside huge ones raise bounds by a unit a round. So work is counted and limited too: per round the
sections of the open items, per placed or moved item the neighbours looked at. It passes its limit by a round at most.
Sources: docs/spec/packing-exact.md.
"""

from typing import Final

from tmmu.planner.pack.exact.jit import jit
from tmmu.planner.pack.exact.state import SearchItems, SearchStack, SearchState, SectionBounds

MAX_OFFSET: Final = 1 << 60
"""Above every offset: the minimum of nothing."""
PLACED: Final = 1
IMPOSSIBLE: Final = 0
UNKNOWN: Final = 2
FREE: Final = -1
"""In ``fixed``: no fixed offset, and none among the neighbours either."""
CURSOR_CELLS: Final = 11
SPENT: Final = -2
"""In place of an item in contradiction: the work limit is reached, and nothing is known."""
CAP, FIRST, END, COUNT, PARENT, PENDING, PARTS, FRAMES, CELLS, WORK, LIMIT = range(CURSOR_CELLS)
"""Indices of ``stack.cursor``: capacity, sections and open items of the current part, its last choice, list tops.

``CELLS``: sections of the open items together; ``WORK`` and ``LIMIT``: cells looked at so far, and the most of them.
"""


@jit
def search(
    items: SearchItems, state: SearchState, sections: SectionBounds, stack: SearchStack, max_nodes: int
) -> tuple[int, int]:
    """Offsets in ``state.offset``, none above its ``last``: (PLACED, IMPOSSIBLE or UNKNOWN, nodes visited).

    ``stack.cursor`` has the capacity in units, the number of sections and the work limit as CAP, END and LIMIT; the
    work done is left as WORK.
    """
    if not initialize(items, state, stack):
        return IMPOSSIBLE, 0
    cursor = stack.cursor
    for node in range(max_nodes):
        conflict = propagate(items, state, sections, stack)
        if conflict == SPENT:
            return UNKNOWN, node + 1
        if conflict < 0:
            if cursor[COUNT]:
                split_parts(items, sections, stack)
            if cursor[PENDING] < 0:
                return PLACED, node + 1
            enter_part(stack)
            collect_unplaced(items, state, stack)
            item = choose_item(items, state, stack)
            push_choice(state, stack, item)
            conflict = place_item(items, state, stack, item)
        while conflict >= 0:
            if cursor[PARENT] < 0:
                return IMPOSSIBLE, node + 1
            conflict = backtrack(items, state, stack)
    return UNKNOWN, max_nodes


@jit
def initialize(items: SearchItems, state: SearchState, stack: SearchStack) -> bool:
    """Reset to no choice and all sections open; clear bounds of fixed offsets. False if an item does not fit alone."""
    cursor = stack.cursor
    cursor[FIRST] = 0
    cursor[PARENT] = -1
    cursor[PENDING] = -1
    cursor[PARTS] = 0
    cursor[FRAMES] = 0
    cursor[WORK] = 0
    stack.saved_start[0] = 0
    for i in range(len(state.low)):
        if items.fixed[i] < FREE:
            state.low[i] = clear_of_fixed(items, state, stack, i, 0)
        if state.low[i] > items.last[i]:
            return False
    return True


@jit
def collect_unplaced(items: SearchItems, state: SearchState, stack: SearchStack) -> None:
    """List the open items of the current part in ``stack.active``, and count their sections."""
    active, offset, first_section, end_section = stack.active, state.offset, items.first_section, items.end_section
    first, end = stack.cursor[FIRST], stack.cursor[END]
    count = 0
    cells = 0
    for i in range(len(offset)):
        if offset[i] < 0 and first_section[i] >= first and end_section[i] <= end:
            active[count] = i
            count += 1
            cells += end_section[i] - first_section[i]
    stack.cursor[COUNT] = count
    stack.cursor[CELLS] = cells
    stack.cursor[WORK] += len(offset)


@jit
def split_parts(items: SearchItems, sections: SectionBounds, stack: SearchStack) -> None:
    """Push every independent part of the current part onto the pending list, the earliest last, to be entered first."""
    cursor, crossing = stack.cursor, sections.crossing
    first, end = cursor[FIRST], cursor[END]
    for s in range(first, end + 1):
        crossing[s] = 0
    for x in range(cursor[COUNT]):
        i = stack.active[x]
        crossing[items.first_section[i] + 1] += 1
        crossing[items.end_section[i]] -= 1
    for s in range(first + 1, end + 1):
        crossing[s] += crossing[s - 1]
    stop = end
    # Backwards, so that the earliest part is pushed last and entered first.
    for s in range(end - 1, first - 1, -1):
        if crossing[s] > 0:
            continue
        if sections.load[s] > 0:
            part = cursor[PARTS]
            stack.part_first[part] = s
            stack.part_end[part] = stop
            stack.part_parent[part] = cursor[PARENT]
            stack.part_next[part] = cursor[PENDING]
            cursor[PENDING] = part
            cursor[PARTS] = part + 1
        stop = s


@jit
def enter_part(stack: SearchStack) -> None:
    """Pop the last pending part and make it the current one."""
    cursor = stack.cursor
    part = cursor[PENDING]
    cursor[FIRST] = stack.part_first[part]
    cursor[END] = stack.part_end[part]
    cursor[PARENT] = stack.part_parent[part]
    cursor[PENDING] = stack.part_next[part]


@jit
def choose_item(items: SearchItems, state: SearchState, stack: SearchStack) -> int:
    """The item to branch on: the lowest, then the first in rank.

    No neighbour fits below it, so the rules leave it on its support; and they have placed it if its offset is given.
    """
    low, rank, active = state.low, items.rank, stack.active
    best = active[0]
    for x in range(1, stack.cursor[COUNT]):
        i = active[x]
        if low[i] < low[best] or (low[i] == low[best] and rank[i] < rank[best]):
            best = i
    return best


@jit
def push_choice(state: SearchState, stack: SearchStack, item: int) -> None:
    """Push a frame: the second side of the choice, and the bounds of all open items of the part before it."""
    cursor, saved, active, low, support = stack.cursor, stack.saved, stack.active, state.low, state.support
    frame = cursor[FRAMES]
    stack.item[frame] = item
    stack.lift[frame] = state.neighbor_end[item]
    stack.first[frame] = cursor[FIRST]
    stack.end[frame] = cursor[END]
    stack.parent[frame] = cursor[PARENT]
    stack.pending[frame] = cursor[PENDING]
    stack.parts[frame] = cursor[PARTS]
    index = stack.saved_start[frame]
    for x in range(cursor[COUNT]):
        i = active[x]
        saved[index] = i
        saved[index + 1] = low[i]
        saved[index + 2] = support[i]
        index += 3
    stack.saved_start[frame + 1] = index
    cursor[PARENT] = frame
    cursor[FRAMES] = frame + 1


@jit
def backtrack(items: SearchItems, state: SearchState, stack: SearchStack) -> int:
    """Undo the last choice in this part and take its second side; the item if that contradicts too, or -1."""
    cursor, saved, low, support, offset = stack.cursor, stack.saved, state.low, state.support, state.offset
    frame = cursor[PARENT]
    for index in range(stack.saved_start[frame], stack.saved_start[frame + 1], 3):
        i = saved[index]
        offset[i] = -1
        low[i] = saved[index + 1]
        support[i] = saved[index + 2]
    cursor[FIRST] = stack.first[frame]
    cursor[END] = stack.end[frame]
    cursor[PARENT] = stack.parent[frame]
    cursor[PENDING] = stack.pending[frame]
    cursor[PARTS] = stack.parts[frame]
    cursor[FRAMES] = frame
    item = stack.item[frame]
    # The first side is refuted: the item lies on an open neighbour, whose lowest end is ``lift``.
    if stack.lift[frame] > items.last[item]:
        return item
    low[item] = clear_of_fixed(items, state, stack, item, stack.lift[frame])
    return item if low[item] > items.last[item] else -1


@jit
def align_up(value: int, unit: int) -> int:
    """``value`` rounded up to a multiple of ``unit``."""
    return value if unit <= 1 else -(-value // unit) * unit


@jit
def place_item(items: SearchItems, state: SearchState, stack: SearchStack, i: int) -> int:
    """Place item ``i`` at its lower bound, below its open neighbours; a neighbour that no longer fits, or -1."""
    offset, low, support = state.offset, state.low, state.support
    neighbors, fixed, align, last = items.neighbors, items.fixed, items.align, items.last
    offset[i] = low[i]
    end = low[i] + items.size[i]
    stack.cursor[WORK] += items.neighbor_start[i + 1] - items.neighbor_start[i]
    for k in range(items.neighbor_start[i], items.neighbor_start[i + 1]):
        j = neighbors[k]
        if offset[j] >= 0:
            continue
        if fixed[j] >= 0:
            if end > fixed[j]:
                return j
            continue
        next_start = end if align[j] <= 1 else align_up(end, align[j])
        if support[j] < next_start:
            support[j] = next_start
            if low[j] < next_start:
                low[j] = next_start if fixed[j] == FREE else clear_of_fixed(items, state, stack, j, next_start)
                if low[j] > last[j]:
                    return j
    return -1


@jit
def clear_of_fixed(items: SearchItems, state: SearchState, stack: SearchStack, i: int, value: int) -> int:
    """The least aligned offset from ``value`` up that overlaps no fixed neighbour; one that was in the way supports."""
    offset = align_up(value, items.align[i])
    if items.fixed[i] == FREE:
        return offset
    # By offset: one that is passed stays below, and all after one that lies above lie above too.
    for k in range(items.neighbor_start[i], items.neighbor_start[i + 1]):
        stack.cursor[WORK] += 1
        j = items.neighbors[k]
        if items.fixed[j] < 0 or offset + items.size[i] <= items.fixed[j]:
            break
        if offset < items.fixed[j] + items.size[j]:
            offset = align_up(items.fixed[j] + items.size[j], items.align[i])
            state.support[i] = max(state.support[i], offset)
    return offset


@jit
def summarize_sections(items: SearchItems, state: SearchState, sections: SectionBounds, stack: SearchStack) -> int:
    """Recompute all section bounds from the open items; a section that overflows, or -1."""
    active, size, low = stack.active, items.size, state.low
    first_section, end_section = items.first_section, items.end_section
    capacity, first, end, count = stack.cursor[CAP], stack.cursor[FIRST], stack.cursor[END], stack.cursor[COUNT]
    load, floor, floor2, floor_of = sections.load, sections.floor, sections.floor2, sections.floor_of
    top, top2, top_of, first_end = sections.top, sections.top2, sections.top_of, sections.first_end
    for s in range(first, end):
        load[s] = 0
        first_end[s] = MAX_OFFSET
        floor[s] = MAX_OFFSET
        floor2[s] = MAX_OFFSET
        floor_of[s] = -1
        top[s] = MAX_OFFSET
        top2[s] = MAX_OFFSET
        top_of[s] = -1
    for x in range(count):
        i = active[x]
        start = low[i]
        item_end = start + size[i]
        for s in range(first_section[i], end_section[i]):
            load[s] += size[i]
            if start < floor[s]:
                floor2[s] = floor[s]
                floor[s] = start
                floor_of[s] = i
            elif start < floor2[s]:
                floor2[s] = start
            if item_end < top[s]:
                top2[s] = top[s]
                top[s] = item_end
                top_of[s] = i
            elif item_end < top2[s]:
                top2[s] = item_end
    for s in range(first, end):
        if load[s] > 0 and floor[s] + load[s] > capacity:
            return s
    for x in range(count):
        i = active[x]
        slack = capacity - low[i]
        item_end = low[i] + size[i]
        for s in range(first_section[i], end_section[i]):
            if load[s] <= slack and item_end < first_end[s]:
                first_end[s] = item_end
    return -1


@jit
def is_outranked(items: SearchItems, state: SearchState, stack: SearchStack, i: int) -> bool:
    """Whether item ``i`` would lie right on an item of the same span and higher rank: exchanged they end no higher."""
    k = items.peer[i]
    while k != i:
        if state.offset[k] >= 0 and items.rank[k] > items.rank[i] and state.offset[k] + items.size[k] == state.low[i]:
            return True
        k = items.peer[k]
        stack.cursor[WORK] += 1
    return False


@jit
def raise_bounds(
    items: SearchItems, state: SearchState, sections: SectionBounds, stack: SearchStack
) -> tuple[int, int]:
    """Raise lower bounds by three rules: (number raised, an item that no longer fits or -1).

    An item is not the lowest of a section that then would overflow; off its support it lies on some neighbour yet to
    place; and it follows its twin. What neighbours leave, their lowest end and bound, is kept in ``state``.
    """
    size, first_section, end_section, fixed = items.size, items.first_section, items.end_section, items.fixed
    last, twin, align, low = items.last, items.twin, items.align, state.low
    load, floor, floor2, floor_of = sections.load, sections.floor, sections.floor2, sections.floor_of
    top, top2, top_of, first_end = sections.top, sections.top2, sections.top_of, sections.first_end
    support, offset, neighbor_end, neighbor_low = state.support, state.offset, state.neighbor_end, state.neighbor_low
    capacity = stack.cursor[CAP]
    raised = 0
    for x in range(stack.cursor[COUNT]):
        i = stack.active[x]
        old_low = low[i]
        new_low = old_low
        ends = MAX_OFFSET
        starts = MAX_OFFSET
        for s in range(first_section[i], end_section[i]):
            lowest_end = top2[s] if top_of[s] == i else top[s]
            lowest_start = floor2[s] if floor_of[s] == i else floor[s]
            ends = min(ends, lowest_end)
            starts = min(starts, lowest_start)
            if old_low + load[s] > capacity and first_end[s] > new_low:
                new_low = first_end[s]
        neighbor_end[i] = ends
        neighbor_low[i] = starts
        if fixed[i] >= 0:
            continue
        # Off its support, an item lies on an open neighbour: not below the lowest end among them.
        if ends > new_low and (old_low > support[i] or is_outranked(items, state, stack, i)):
            new_low = ends
        # Of two equal items the one of lower rank is the lower.
        k = twin[i]
        if k >= 0 and offset[k] < 0 and low[k] + size[k] > new_low:
            new_low = low[k] + size[k]
        if new_low > old_low:
            if new_low > last[i]:
                return raised, i
            if align[i] > 1 or fixed[i] != FREE:
                new_low = clear_of_fixed(items, state, stack, i, new_low)
                if new_low > last[i]:
                    return raised, i
            low[i] = new_low
            raised += 1
    return raised, -1


@jit
def must_rest_on_support(
    items: SearchItems, state: SearchState, sections: SectionBounds, i: int, capacity: int
) -> bool:
    """Whether some section would overflow if item ``i`` did not rest on its support."""
    floor2, floor_of, load, above = sections.floor2, sections.floor_of, sections.load, state.neighbor_end[i]
    for s in range(items.first_section[i], items.end_section[i]):
        if floor_of[s] == i and min(floor2[s], above) + load[s] > capacity:
            return True
    return False


@jit
def place_forced(
    items: SearchItems, state: SearchState, sections: SectionBounds, stack: SearchStack
) -> tuple[int, int]:
    """Place the items that must be on their support: (number placed, an item in contradiction or -1).

    That is where every neighbour lies above it anyway, so that it could move down; and where a section would overflow.
    """
    placed = 0
    size, low, support, fixed = items.size, state.low, state.support, items.fixed
    neighbor_end, neighbor_low = state.neighbor_end, state.neighbor_low
    for x in range(stack.cursor[COUNT]):
        i = stack.active[x]
        if fixed[i] >= 0:
            if low[i] >= neighbor_end[i]:
                continue
        elif support[i] + size[i] > neighbor_low[i]:
            if (
                low[i] > support[i]
                or low[i] >= neighbor_end[i]
                or not must_rest_on_support(items, state, sections, i, stack.cursor[CAP])
            ):
                continue
        elif low[i] > support[i]:
            return placed, i
        conflict = place_item(items, state, stack, i)
        if conflict >= 0:
            return placed, conflict
        placed += 1
    return placed, -1


@jit
def propagate(items: SearchItems, state: SearchState, sections: SectionBounds, stack: SearchStack) -> int:
    """Apply all rules in the current part to a fixed point: an item in contradiction, or -1; ``SPENT`` at the limit."""
    cursor = stack.cursor
    collect_unplaced(items, state, stack)
    while cursor[COUNT]:
        if cursor[WORK] >= cursor[LIMIT]:
            return SPENT
        cursor[WORK] += cursor[CELLS] + cursor[END] - cursor[FIRST]
        s = summarize_sections(items, state, sections, stack)
        if s >= 0:
            return sections.floor_of[s]
        raised, conflict = raise_bounds(items, state, sections, stack)
        if conflict >= 0:
            return conflict
        if raised:
            continue
        placed, conflict = place_forced(items, state, sections, stack)
        if conflict >= 0 or not placed:
            return conflict
        collect_unplaced(items, state, stack)
    return -1
