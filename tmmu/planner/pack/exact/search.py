"""Depth-first search for offsets below a capacity: one item at a time on its support, or above it.

Of every item that may rest on its support one is chosen; either it does, or it lies on a neighbour yet to place. Both
sides are searched, so that what is not found does not exist. Parts of the timeline that no item connects any more are
searched apart: where one has no solution, nothing in the others is tried again.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from tmmu.planner.pack.exact.jit import jit
from tmmu.planner.pack.exact.propagate import clear, nearest_end, place, propagate
from tmmu.planner.pack.exact.state import FAR

PLACED = 1
IMPOSSIBLE = 0
UNKNOWN = 2


@jit
def split(it, se, stack, count, first, end, parent, pending, cells):
    """Push the independent parts of ``[first, end)``, the first one last: (pending, cells)."""
    for s in range(first, end + 1):
        se.cross[s] = 0
    for x in range(count):
        i = stack.active[x]
        se.cross[it.lo[i] + 1] += 1
        se.cross[it.hi[i]] -= 1
    stop = -1
    inside = 0
    for s in range(first, end + 1):
        inside += se.cross[s]
        se.cross[s] = inside
    for s in range(end, first - 1, -1):
        if se.cross[s] > 0:
            continue
        if stop >= 0 and se.rest[s] > 0:
            stack.cell_first[cells] = s
            stack.cell_end[cells] = stop
            stack.cell_parent[cells] = parent
            stack.cell_next[cells] = pending
            pending = cells
            cells += 1
        stop = s
    return pending, cells


@jit
def choose(it, st, se, stack, count, first, end, cap, mode):
    """The item to branch on and where it goes if not on its support."""
    best = -1
    key = FAR
    lift = FAR
    best_rank = FAR
    for x in range(count):
        i = stack.active[x]
        if it.fixed[i] >= 0 or st.low[i] > st.support[i] or it.lo[i] < first or it.hi[i] > end:
            continue
        t = nearest_end(it, se, i)
        if st.low[i] >= t:
            continue
        if mode == 0:
            k = st.low[i]
        elif mode == 1:
            k = FAR
            for s in range(it.lo[i], it.hi[i]):
                k = min(k, cap - se.floor[s] - se.rest[s])
        elif mode == 2:
            k = FAR
            for s in range(it.lo[i], it.hi[i]):
                if se.floor[s] == st.low[i]:
                    k = min(k, cap - se.floor[s] - se.rest[s])
        elif mode == 3:
            k = 0
        elif mode == 4:
            k = -st.blame[i]
        elif mode == 5:
            k = st.low[i] - 4 * st.blame[i]
        else:
            k = -it.size[i] * (it.hi[i] - it.lo[i])
        r = it.rank[i]
        if k < key or (k == key and r < best_rank):
            best = i
            key = k
            best_rank = r
            lift = t
    return best, lift


@jit
def push(it, st, stack, count, frames, parent, pending, cells, first, end, item, lift):
    """Remember the other side of a choice, and what all items of the part were before it."""
    stack.item[frames] = item
    stack.lift[frames] = lift
    stack.first[frames] = first
    stack.end[frames] = end
    stack.parent[frames] = parent
    stack.pending[frames] = pending
    stack.cells[frames] = cells
    m = stack.mark[frames]
    for x in range(count):
        i = stack.active[x]
        if it.lo[i] >= first and it.hi[i] <= end:
            stack.saved[m] = i
            stack.saved[m + 1] = st.low[i]
            stack.saved[m + 2] = st.support[i]
            m += 3
    stack.mark[frames + 1] = m


@jit
def restore(st, stack, frame):
    """All items of the frame's part as they were before its choice."""
    for m in range(stack.mark[frame], stack.mark[frame + 1], 3):
        i = stack.saved[m]
        st.offset[i] = -1
        st.low[i] = stack.saved[m + 1]
        st.support[i] = stack.saved[m + 2]


@jit
def search(it, st, se, stack, sections, cap, limit, mode):
    """Offsets of all items in ``st.offset``, none above ``last``: (PLACED, IMPOSSIBLE or UNKNOWN, nodes)."""
    first = 0
    end = sections
    parent = -1
    pending = -1
    cells = 0
    frames = 0
    nodes = 0
    stack.mark[0] = 0
    while True:
        if nodes == limit:
            return UNKNOWN, nodes
        nodes += 1
        count, bad = propagate(it, st, se, stack.active, first, end, cap)
        while bad < 0:
            if count:
                pending, cells = split(it, se, stack, count, first, end, parent, pending, cells)
            if pending < 0:
                return PLACED, nodes
            c = pending
            whole = count > 0
            first = stack.cell_first[c]
            end = stack.cell_end[c]
            parent = stack.cell_parent[c]
            pending = stack.cell_next[c]
            if not whole:
                count, bad = propagate(it, st, se, stack.active, first, end, cap)
                if bad >= 0 or not count:
                    continue
            item, lift = choose(it, st, se, stack, count, first, end, cap, mode)
            push(it, st, stack, count, frames, parent, pending, cells, first, end, item, lift)
            parent = frames
            frames += 1
            bad = place(it, st, item)
            break
        while bad >= 0:
            st.blame[bad] += 1
            if parent < 0:
                return IMPOSSIBLE, nodes
            frames = parent
            restore(st, stack, frames)
            first = stack.first[frames]
            end = stack.end[frames]
            parent = stack.parent[frames]
            pending = stack.pending[frames]
            cells = stack.cells[frames]
            item = stack.item[frames]
            st.low[item] = clear(it, st, item, min(stack.lift[frames], it.last[item] + 1))
            bad = item if st.low[item] > it.last[item] else -1
