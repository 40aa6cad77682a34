"""Skyline construction, compiled as one file: numba's cache of it is dropped when this file changes.

Question: which items next, in the order of their offsets, so that none ends above the cap? A state has placed some
items; its *skyline* is the highest end per section, in segments of equal height. An item is placed on a *valley*, a
segment whose neighbours both are higher, within which it lives: whatever lies elsewhere, some order of any packing
does only that. What no open item can fill is closed at once: the valley, or the part of it that no open item within it
covers, rises to the lower wall, and its sections are charged the units between. A section whose waste and load
exceed the cap ends the state.

Invariants: segments are not empty, neighbours differ in height; the height of a section is what is placed there plus
its waste; a section with nothing left to place is charged nothing. Every move places an item or removes a segment, so
that every chain of moves ends. A move costs O(segments + items born in the valley). See docs/spec/packing.md.
"""

from typing import Final

from tmmu.planner.pack.exact.jit import jit
from tmmu.planner.pack.skyline.state import Cells, SkylineItems, SkylineStates

INFINITE: Final = 1 << 61
"""Above every height: the wall at either end of time."""
ITEMS, SECTIONS, BOUND, CAP, BRANCH, WORK, SHIFT, CONVEX, UNDO, SCRATCH, MOVES = range(11)
"""Indices of ``parameter``: sizes of the problem, the cap in units, children per state, cells looked at, bits that
weights drop, weight of the squared waste, cells used in ``undo``, the spare slot, and the number of ``moves``."""
MOVE_CELLS: Final = 6
"""A move: slot, item (or -1 - section: close its valley), height, then cost, area and hash of the child."""
CLOSED_LAST: Final = 1_000
"""Options of a valley at whose edges no open item fits."""


@jit
def copy_state(items: SkylineItems, states: SkylineStates, source: int, target: int) -> None:
    """Copy a slot."""
    n, s = items.parameter[ITEMS], items.parameter[SECTIONS]
    states.offset[target * n : target * n + n] = states.offset[source * n : source * n + n]
    states.waste[target * s : target * s + s] = states.waste[source * s : source * s + s]
    items.parameter[WORK] += (n + s) // 32
    copy_skyline(items, states, source, target)


@jit
def copy_skyline(items: SkylineItems, states: SkylineStates, source: int, target: int) -> None:
    """Copy the skyline and the numbers of a slot, but neither offsets nor waste."""
    cells = states.segments[source] + 1
    a, b = source * (items.parameter[SECTIONS] + 2), target * (items.parameter[SECTIONS] + 2)
    states.start[b : b + cells] = states.start[a : a + cells]
    states.height[b : b + cells] = states.height[a : a + cells]
    states.segments[target] = states.segments[source]
    states.cost[target] = states.cost[source]
    states.area[target] = states.area[source]
    states.hash[target] = states.hash[source]
    states.placed[target] = states.placed[source]
    items.parameter[WORK] += cells // 8 + 4


@jit
def segment_at(states: SkylineStates, base: int, count: int, section: int) -> int:
    """The segment of a section."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if states.start[base + middle] <= section:
            low = middle
        else:
            high = middle
    return low


@jit
def lower_wall(states: SkylineStates, base: int, count: int, v: int) -> int:
    """The lower of the heights beside segment ``v``."""
    left = states.height[base + v - 1] if v > 0 else INFINITE
    right = states.height[base + v + 1] if v + 1 < count else INFINITE
    return min(left, right)


@jit
def move_segments(states: SkylineStates, base: int, count: int, source: int, target: int) -> None:
    """Move the segments from ``source`` on, and the end of time, to ``target``."""
    start, height = states.start, states.height
    if target > source:
        for k in range(count, source - 1, -1):
            start[base + k + target - source] = start[base + k]
            height[base + k + target - source] = height[base + k]
    elif target < source:
        for k in range(source, count + 1):
            start[base + k + target - source] = start[base + k]
            height[base + k + target - source] = height[base + k]


@jit
def set_height(items: SkylineItems, states: SkylineStates, slot: int, span: tuple[int, int], top: int) -> int:
    """Raise the sections of ``span``, all of one segment, to ``top``; merge equal neighbours; their segment."""
    first, end = span
    base = slot * (items.parameter[SECTIONS] + 2)
    start, height = states.start, states.height
    count = states.segments[slot]
    v = segment_at(states, base, count, first)
    low, a, b = height[base + v], start[base + v], start[base + v + 1]
    keep_left, keep_right = a < first, end < b
    from_segment, to_segment, new_start = v, v + 1, first
    if not keep_left and v > 0 and height[base + v - 1] == top:
        from_segment = v - 1
        new_start = start[base + v - 1]
    if not keep_right and v + 1 < count and height[base + v + 1] == top:
        to_segment = v + 2
    index = from_segment + 1 if keep_left else from_segment
    after = index + 2 if keep_right else index + 1
    move_segments(states, base, count, to_segment, after)
    if keep_left:
        start[base + from_segment] = a
        height[base + from_segment] = low
    start[base + index] = new_start
    height[base + index] = top
    if keep_right:
        start[base + index + 1] = end
        height[base + index + 1] = low
    states.segments[slot] = count + after - to_segment
    return index


@jit
def charge(
    items: SkylineItems, states: SkylineStates, slot: int, span: tuple[int, int], heights: tuple[int, int]
) -> bool:
    """Charge the sections of ``span`` the units between two heights; False if one then exceeds the cap.

    False, too, where the ranges of one move fill ``undo``: such a move is not made. The cost is linear in the waste
    that the fullest section would not leave free, plus CONVEX quarters of its square over the room between bound and
    cap: waste that piles up in one section raises the peak.
    """
    first, end = span
    low, high = heights
    base, load, waste = slot * items.parameter[SECTIONS], items.load, states.waste
    if items.parameter[UNDO] + 3 > len(items.undo):
        return False
    bound, cap, shift = items.parameter[BOUND], items.parameter[CAP], items.parameter[SHIFT]
    room = 4 * max((cap - bound) >> shift, 1)
    convex = items.parameter[CONVEX]
    fits, cost = True, 0
    for s in range(first, end):
        before = waste[base + s]
        waste[base + s] = before + high - low
        # Nothing is left to place here: only the items of other sections can reach higher.
        if load[s] + before <= low:
            continue
        over_before = max(load[s] + before - bound, 0) >> shift
        over = max(load[s] + before + high - low - bound, 0) >> shift
        cost += over - over_before + (over * over - over_before * over_before) * convex // room
        if load[s] + before + high - low > cap:
            fits = False
    states.cost[slot] += cost
    entry = items.parameter[UNDO]
    items.undo[entry] = first
    items.undo[entry + 1] = end
    items.undo[entry + 2] = high - low
    items.parameter[UNDO] = entry + 3
    items.parameter[WORK] += end - first
    return fits


@jit
def uncovered(items: SkylineItems, states: SkylineStates, slot: int, a: int, b: int) -> tuple[int, int]:
    """The first sections within [a, b) that no open item within [a, b) covers; (b, b) if there are none."""
    offset_base = slot * items.parameter[ITEMS]
    reach = a
    first, end = items.first_at[a], items.first_at[b]
    for k in range(first, end):
        i = items.by_first[k]
        if states.offset[offset_base + i] < 0 and items.end[i] <= b:
            if items.first[i] > reach:
                items.parameter[WORK] += k - first
                return reach, items.first[i]
            reach = max(reach, items.end[i])
            if reach == b:
                end = k
                break
    items.parameter[WORK] += end - first + 4
    return reach, b


@jit
def close_valleys(items: SkylineItems, states: SkylineStates, slot: int, section: int) -> bool:
    """Close what no open item can fill in the segments around ``section``; False if that exceeds the cap."""
    base = slot * (items.parameter[SECTIONS] + 2)
    v = max(segment_at(states, base, states.segments[slot], section) - 1, 0)
    left = 4
    while left > 0 and v < states.segments[slot]:
        low = states.height[base + v]
        wall = lower_wall(states, base, states.segments[slot], v)
        b = states.start[base + v + 1]
        first, end = b, b
        if low < wall < INFINITE:
            first, end = uncovered(items, states, slot, states.start[base + v], b)
        if first == end:
            v += 1
            left -= 1
            continue
        if not charge(items, states, slot, (first, end), (low, wall)):
            return False
        v = max(set_height(items, states, slot, (first, end), wall) - 1, 0)
        left = 4
    return True


@jit
def place(items: SkylineItems, states: SkylineStates, slot: int, item: int, low: int) -> bool:
    """Place an item on the valley of height ``low`` that it lives in; False if that exceeds the cap."""
    align, first, end = items.align[item], items.first[item], items.end[item]
    offset = low if align <= 1 else -(-low // align) * align
    fits = True
    if offset > low:
        fits = charge(items, states, slot, (first, end), (low, offset))
    states.offset[slot * items.parameter[ITEMS] + item] = offset
    states.area[slot] += (items.size[item] >> items.parameter[SHIFT]) * (end - first)
    states.hash[slot] ^= items.key[item]
    states.placed[slot] += 1
    set_height(items, states, slot, (first, end), offset + items.size[item])
    return fits and close_valleys(items, states, slot, first)


@jit
def close_valley(items: SkylineItems, states: SkylineStates, slot: int, section: int) -> bool:
    """Give up the valley that begins at ``section``; False if it has no wall, or if that exceeds the cap."""
    base = slot * (items.parameter[SECTIONS] + 2)
    v = segment_at(states, base, states.segments[slot], section)
    wall = lower_wall(states, base, states.segments[slot], v)
    a, b = states.start[base + v], states.start[base + v + 1]
    if wall >= INFINITE or not charge(items, states, slot, (a, b), (states.height[base + v], wall)):
        return False
    set_height(items, states, slot, (a, b), wall)
    return close_valleys(items, states, slot, a)


@jit
def apply_move(items: SkylineItems, states: SkylineStates, slot: int, move: int, low: int) -> bool:
    """Place an item, or close a valley."""
    items.parameter[UNDO] = 0
    if move >= 0:
        return place(items, states, slot, move, low)
    return close_valley(items, states, slot, -1 - move)


@jit
def revert_move(items: SkylineItems, states: SkylineStates, slot: int, move: int) -> None:
    """Undo the last move of a slot whose skyline before it is in the spare slot."""
    base = slot * items.parameter[SECTIONS]
    for entry in range(0, items.parameter[UNDO], 3):
        for s in range(items.undo[entry], items.undo[entry + 1]):
            states.waste[base + s] -= items.undo[entry + 2]
    if move >= 0:
        states.offset[slot * items.parameter[ITEMS] + move] = -1
    copy_skyline(items, states, items.parameter[SCRATCH], slot)


@jit
def edge_options(items: SkylineItems, states: SkylineStates, slot: int, a: int, b: int) -> tuple[int, int]:
    """Open items within [a, b) that begin at a, and that end at b."""
    offset_base = slot * items.parameter[ITEMS]
    left = 0
    for k in range(items.first_at[a], items.first_at[a + 1]):
        i = items.by_first[k]
        if states.offset[offset_base + i] < 0 and items.end[i] <= b:
            left += 1
    right = 0
    for k in range(items.end_at[b], items.end_at[b + 1]):
        i = items.by_end[k]
        if states.offset[offset_base + i] < 0 and items.first[i] >= a:
            right += 1
    items.parameter[WORK] += items.first_at[a + 1] - items.first_at[a] + items.end_at[b + 1] - items.end_at[b] + 4
    return left, right


@jit
def choose_valley(items: SkylineItems, states: SkylineStates, slot: int) -> tuple[int, int, int, bool]:
    """(first, end, height, from the right) of the valley with the fewest items at an edge, the lowest of equals.

    Every valley must be filled or closed in the end; the one with the fewest options decides the most. First is -1 if
    there is none.
    """
    base = slot * (items.parameter[SECTIONS] + 2)
    count = states.segments[slot]
    best = (-1, -1, 0, False)
    best_options, best_low = INFINITE, INFINITE
    for v in range(count):
        low = states.height[base + v]
        if lower_wall(states, base, count, v) <= low:
            continue
        a, b = states.start[base + v], states.start[base + v + 1]
        left, right = edge_options(items, states, slot, a, b)
        from_right = left == 0 or 0 < right < left
        options = right if from_right else left
        if options == 0:
            options = CLOSED_LAST
        if options < best_options or (options == best_options and low < best_low):
            best_options, best_low = options, low
            best = (a, b, low, from_right)
    items.parameter[WORK] += count
    return best


@jit
def try_move(items: SkylineItems, states: SkylineStates, slot: int, move: int, low: int) -> None:
    """Record a move in ``moves`` if it keeps below the cap. The slot, whose skyline is in the spare one, stays."""
    if apply_move(items, states, slot, move, low):
        base, moves = items.parameter[MOVES] * MOVE_CELLS, items.moves
        moves[base] = slot
        moves[base + 1] = move
        moves[base + 2] = low
        moves[base + 3] = states.cost[slot]
        moves[base + 4] = states.area[slot]
        moves[base + 5] = states.hash[slot]
        items.parameter[MOVES] += 1
    revert_move(items, states, slot, move)


@jit
def expand_state(items: SkylineItems, states: SkylineStates, slot: int) -> None:
    """Record the moves of a state.

    They are the items nearest to the chosen edge, BRANCH of them and up to three times as many that share the last
    one's edge; and to close the valley.
    """
    a, b, low, from_right = choose_valley(items, states, slot)
    if a < 0:
        return
    copy_skyline(items, states, slot, items.parameter[SCRATCH])
    branch, taken, last_edge = items.parameter[BRANCH], 0, -1
    k, stop, step = items.first_at[a], items.first_at[b], 1
    if from_right:
        k, stop, step = items.end_at[b + 1] - 1, items.end_at[a + 1] - 1, -1
    while k != stop:
        i = items.by_end[k] if from_right else items.by_first[k]
        k += step
        items.parameter[WORK] += 1
        if states.offset[slot * items.parameter[ITEMS] + i] >= 0 or items.first[i] < a or items.end[i] > b:
            continue
        edge = items.end[i] if from_right else items.first[i]
        if taken >= branch and (edge != last_edge or taken >= 3 * branch):
            break
        last_edge = edge
        taken += 1
        try_move(items, states, slot, i, low)
    try_move(items, states, slot, -1 - a, low)


@jit
def expand_states(items: SkylineItems, states: SkylineStates, slot: int, count: int) -> int:
    """Record the moves of ``count`` states from ``slot`` on; the number of moves."""
    items.parameter[MOVES] = 0
    for k in range(slot, slot + count):
        expand_state(items, states, k)
    return items.parameter[MOVES]


@jit
def apply_moves(items: SkylineItems, states: SkylineStates, chosen: Cells, slot: int) -> None:
    """Make the states of the chosen moves, from ``slot`` on."""
    for k in range(len(chosen)):
        base = chosen[k] * MOVE_CELLS
        copy_state(items, states, items.moves[base], slot + k)
        apply_move(items, states, slot + k, items.moves[base + 1], items.moves[base + 2])
