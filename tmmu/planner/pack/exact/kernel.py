"""The search itself, compiled as one file: what is kept on disk of it is dropped when this file changes.

Depth first, one item at a time: the lowest of those yet to place rests on its support, or it lies on a neighbour yet
to place. Both sides are searched, so what is not found does not exist. In between, bounds rise and items
fall into place by rules that hold for one particular solution, if there is any: the one of least weighted total offset,
with weights such that of two items that could change places the one of lower rank lies lower. In it no item can move
down. Parts of the timeline that no item connects any more are searched apart: where one has no solution, nothing in
the others is tried again.
"""

from typing import Final

from tmmu.planner.pack.exact.jit import jit
from tmmu.planner.pack.exact.state import Items, Sections, Stack, State

FAR: Final = 1 << 60
"""Above every offset: the minimum of nothing."""
PLACED: Final = 1
IMPOSSIBLE: Final = 0
UNKNOWN: Final = 2
FREE: Final = -1
"""In ``fixed``: no given offset, and none among the neighbours either."""
CAP, FIRST, END, COUNT, PARENT, PENDING, CELLS, FRAMES = range(8)
"""Where the search is, in ``stack.at``: capacity, sections and number of items of the part at hand, its last choice."""


@jit
def search(it: Items, st: State, se: Sections, stack: Stack, limit: int) -> tuple[int, int]:
    """Offsets of all items in ``st.offset``, none above its ``last``: (PLACED, IMPOSSIBLE or UNKNOWN, nodes).

    ``stack.at`` has the capacity in units and the number of sections as CAP and END.
    """
    if not begin(it, st, stack):
        return IMPOSSIBLE, 0
    at = stack.at
    for node in range(limit):
        bad = propagate(it, st, se, stack)
        if bad < 0:
            if at[COUNT]:
                split(it, se, stack)
            if at[PENDING] < 0:
                return PLACED, node + 1
            enter(stack)
            collect(it, st, stack)
            item = choose(it, st, stack)
            push(st, stack, item)
            bad = place(it, st, item)
        while bad >= 0:
            if at[PARENT] < 0:
                return IMPOSSIBLE, node + 1
            bad = go_back(it, st, stack)
    return UNKNOWN, limit


@jit
def begin(it: Items, st: State, stack: Stack) -> bool:
    """No choice is made, all sections are open, no bound is within a given offset: whether each item fits alone."""
    at = stack.at
    at[FIRST] = 0
    at[PARENT] = -1
    at[PENDING] = -1
    at[CELLS] = 0
    at[FRAMES] = 0
    stack.mark[0] = 0
    for i in range(len(st.low)):
        if it.fixed[i] < FREE:
            st.low[i] = clear(it, st, i, 0)
        if st.low[i] > it.last[i]:
            return False
    return True


@jit
def collect(it: Items, st: State, stack: Stack) -> None:
    """List the items yet to place in the part at hand."""
    active, offset, lo, hi = stack.active, st.offset, it.lo, it.hi
    first, end = stack.at[FIRST], stack.at[END]
    count = 0
    for i in range(len(offset)):
        if offset[i] < 0 and lo[i] >= first and hi[i] <= end:
            active[count] = i
            count += 1
    stack.at[COUNT] = count


@jit
def split(it: Items, se: Sections, stack: Stack) -> None:
    """Put off every independent part of the part at hand, to enter the first one first."""
    at, cross = stack.at, se.cross
    first, end = at[FIRST], at[END]
    for s in range(first, end + 1):
        cross[s] = 0
    for x in range(at[COUNT]):
        i = stack.active[x]
        cross[it.lo[i] + 1] += 1
        cross[it.hi[i]] -= 1
    for s in range(first + 1, end + 1):
        cross[s] += cross[s - 1]
    stop = end
    for s in range(end - 1, first - 1, -1):
        if cross[s] > 0:
            continue
        if se.rest[s] > 0:
            c = at[CELLS]
            stack.cell_first[c] = s
            stack.cell_end[c] = stop
            stack.cell_parent[c] = at[PARENT]
            stack.cell_next[c] = at[PENDING]
            at[PENDING] = c
            at[CELLS] = c + 1
        stop = s


@jit
def enter(stack: Stack) -> None:
    """Be in the part that was put off last."""
    at = stack.at
    c = at[PENDING]
    at[FIRST] = stack.cell_first[c]
    at[END] = stack.cell_end[c]
    at[PARENT] = stack.cell_parent[c]
    at[PENDING] = stack.cell_next[c]


@jit
def choose(it: Items, st: State, stack: Stack) -> int:
    """The item to branch on: the lowest, then the first in rank.

    No neighbour fits below it, so the rules leave it on its support; and they have placed it if its offset is given.
    """
    low, rank, active = st.low, it.rank, stack.active
    best = active[0]
    for x in range(1, stack.at[COUNT]):
        i = active[x]
        if low[i] < low[best] or (low[i] == low[best] and rank[i] < rank[best]):
            best = i
    return best


@jit
def push(st: State, stack: Stack, item: int) -> None:
    """Remember the other side of a choice, and what all items of the part were before it."""
    at, saved, active, low, support = stack.at, stack.saved, stack.active, st.low, st.support
    f = at[FRAMES]
    stack.item[f] = item
    stack.lift[f] = st.end_near[item]
    stack.first[f] = at[FIRST]
    stack.end[f] = at[END]
    stack.parent[f] = at[PARENT]
    stack.pending[f] = at[PENDING]
    stack.cells[f] = at[CELLS]
    m = stack.mark[f]
    for x in range(at[COUNT]):
        i = active[x]
        saved[m] = i
        saved[m + 1] = low[i]
        saved[m + 2] = support[i]
        m += 3
    stack.mark[f + 1] = m
    at[PARENT] = f
    at[FRAMES] = f + 1


@jit
def go_back(it: Items, st: State, stack: Stack) -> int:
    """Take the other side of the last choice in this part: the item itself where it has nowhere to go, or -1."""
    at, saved, low, support, offset = stack.at, stack.saved, st.low, st.support, st.offset
    f = at[PARENT]
    for m in range(stack.mark[f], stack.mark[f + 1], 3):
        i = saved[m]
        offset[i] = -1
        low[i] = saved[m + 1]
        support[i] = saved[m + 2]
    at[FIRST] = stack.first[f]
    at[END] = stack.end[f]
    at[PARENT] = stack.parent[f]
    at[PENDING] = stack.pending[f]
    at[CELLS] = stack.cells[f]
    at[FRAMES] = f
    item = stack.item[f]
    if stack.lift[f] > it.last[item]:
        return item
    low[item] = clear(it, st, item, stack.lift[f])
    return item if low[item] > it.last[item] else -1


@jit
def aligned(value: int, unit: int) -> int:
    """``value`` rounded up to a multiple of ``unit``."""
    return value if unit <= 1 else -(-value // unit) * unit


@jit
def place(it: Items, st: State, i: int) -> int:
    """Put item ``i`` on its lower bound, below all its neighbours; a neighbour that no longer fits, or -1."""
    offset, low, support = st.offset, st.low, st.support
    near, fixed, align, last = it.near, it.fixed, it.align, it.last
    offset[i] = low[i]
    end = low[i] + it.size[i]
    for k in range(it.start[i], it.start[i + 1]):
        j = near[k]
        if offset[j] >= 0:
            continue
        if fixed[j] >= 0:
            if end > fixed[j]:
                return j
            continue
        h = end if align[j] <= 1 else aligned(end, align[j])
        if support[j] < h:
            support[j] = h
            if low[j] < h:
                low[j] = h if fixed[j] == FREE else clear(it, st, j, h)
                if low[j] > last[j]:
                    return j
    return -1


@jit
def clear(it: Items, st: State, i: int, value: int) -> int:
    """The least aligned offset from ``value`` up with no given offset in its way; what was in the way supports."""
    v = aligned(value, it.align[i])
    if it.fixed[i] == FREE:
        return v
    moved = True
    while moved:
        moved = False
        for k in range(it.start[i], it.start[i + 1]):
            j = it.near[k]
            if it.fixed[j] >= 0 and v < it.fixed[j] + it.size[j] and v + it.size[i] > it.fixed[j]:
                v = aligned(it.fixed[j] + it.size[j], it.align[i])
                st.support[i] = max(st.support[i], v)
                moved = True
    return v


@jit
def survey(it: Items, st: State, se: Sections, stack: Stack) -> int:
    """Fill the sections from the items yet to place; a section that they overflow, or -1."""
    active, size, low, lo, hi = stack.active, it.size, st.low, it.lo, it.hi
    cap, first, end, count = stack.at[CAP], stack.at[FIRST], stack.at[END], stack.at[COUNT]
    rest, floor, floor2, floor_of = se.rest, se.floor, se.floor2, se.floor_of
    top, top2, top_of, first_end = se.top, se.top2, se.top_of, se.first_end
    for s in range(first, end):
        rest[s] = 0
        first_end[s] = FAR
        floor[s] = FAR
        floor2[s] = FAR
        floor_of[s] = -1
        top[s] = FAR
        top2[s] = FAR
        top_of[s] = -1
    for x in range(count):
        i = active[x]
        o = low[i]
        h = o + size[i]
        for s in range(lo[i], hi[i]):
            rest[s] += size[i]
            if o < floor[s]:
                floor2[s] = floor[s]
                floor[s] = o
                floor_of[s] = i
            elif o < floor2[s]:
                floor2[s] = o
            if h < top[s]:
                top2[s] = top[s]
                top[s] = h
                top_of[s] = i
            elif h < top2[s]:
                top2[s] = h
    for s in range(first, end):
        if rest[s] > 0 and floor[s] + rest[s] > cap:
            return s
    for x in range(count):
        i = active[x]
        spare = cap - low[i]
        h = low[i] + size[i]
        for s in range(lo[i], hi[i]):
            if rest[s] <= spare and h < first_end[s]:
                first_end[s] = h
    return -1


@jit
def outranked(it: Items, st: State, i: int) -> bool:
    """Whether item ``i`` would lie right on a smaller one of the same span: the other way round is no worse."""
    k = it.peer[i]
    while k != i:
        if st.offset[k] >= 0 and it.rank[k] > it.rank[i] and st.offset[k] + it.size[k] == st.low[i]:
            return True
        k = it.peer[k]
    return False


@jit
def lift_all(it: Items, st: State, se: Sections, stack: Stack) -> tuple[int, int]:
    """Raise bounds by three rules: (how many rose, an item that no longer fits or -1).

    An item is not the lowest of a section that then would overflow; off its support it lies on some neighbour yet to
    place; and it follows its twin. What neighbours leave, their lowest end and bound, is kept in ``st``.
    """
    size, low, lo, hi, fixed, last, twin, align = it.size, st.low, it.lo, it.hi, it.fixed, it.last, it.twin, it.align
    rest, floor, floor2, floor_of = se.rest, se.floor, se.floor2, se.floor_of
    top, top2, top_of, first_end = se.top, se.top2, se.top_of, se.first_end
    support, offset, end_near, low_near = st.support, st.offset, st.end_near, st.low_near
    cap = stack.at[CAP]
    rose = 0
    for x in range(stack.at[COUNT]):
        i = stack.active[x]
        old = low[i]
        v = old
        ends = FAR
        lows = FAR
        for s in range(lo[i], hi[i]):
            t = top2[s] if top_of[s] == i else top[s]
            f = floor2[s] if floor_of[s] == i else floor[s]
            ends = min(ends, t)
            lows = min(lows, f)
            if old + rest[s] > cap and first_end[s] > v:
                v = first_end[s]
        end_near[i] = ends
        low_near[i] = lows
        if fixed[i] >= 0:
            continue
        if ends > v and (old > support[i] or outranked(it, st, i)):
            v = ends
        k = twin[i]
        if k >= 0 and offset[k] < 0 and low[k] + size[k] > v:
            v = low[k] + size[k]
        if v > old:
            if v > last[i]:
                return rose, i
            if align[i] > 1 or fixed[i] != FREE:
                v = clear(it, st, i, v)
                if v > last[i]:
                    return rose, i
            low[i] = v
            rose += 1
    return rose, -1


@jit
def needed(it: Items, st: State, se: Sections, i: int, cap: int) -> bool:
    """Whether some section would overflow if item ``i`` did not rest on its support."""
    floor2, floor_of, rest, above = se.floor2, se.floor_of, se.rest, st.end_near[i]
    for s in range(it.lo[i], it.hi[i]):  # noqa: SIM110  numba compiles no generator expression that well
        if floor_of[s] == i and min(floor2[s], above) + rest[s] > cap:
            return True
    return False


@jit
def settle(it: Items, st: State, se: Sections, stack: Stack) -> tuple[int, int]:
    """Place what must be on its support: (how many, an item in contradiction or -1).

    That is where every neighbour lies above it anyway, so that it could move down; and where a section would overflow.
    """
    placed = 0
    size, low, support, fixed = it.size, st.low, st.support, it.fixed
    end_near, low_near = st.end_near, st.low_near
    for x in range(stack.at[COUNT]):
        i = stack.active[x]
        if fixed[i] >= 0:
            if low[i] >= end_near[i]:
                continue
        elif support[i] + size[i] > low_near[i]:
            if low[i] > support[i] or low[i] >= end_near[i] or not needed(it, st, se, i, stack.at[CAP]):
                continue
        elif low[i] > support[i]:
            return placed, i
        bad = place(it, st, i)
        if bad >= 0:
            return placed, bad
        placed += 1
    return placed, -1


@jit
def propagate(it: Items, st: State, se: Sections, stack: Stack) -> int:
    """Apply all rules in the part at hand until none does more: an item in contradiction, or -1."""
    at = stack.at
    collect(it, st, stack)
    while at[COUNT]:
        s = survey(it, st, se, stack)
        if s >= 0:
            return se.floor_of[s]
        rose, bad = lift_all(it, st, se, stack)
        if bad >= 0:
            return bad
        if rose:
            continue
        placed, bad = settle(it, st, se, stack)
        if bad >= 0 or not placed:
            return bad
        collect(it, st, stack)
    return -1
