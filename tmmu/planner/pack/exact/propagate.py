"""What follows from a state of the search: bounds rise, items fall into place, or there is no way on.

Everything here holds for one particular solution, if there is any at all: the one of least total offset, twins in
the order of their index. In it no item can move down.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,type-var"

from tmmu.planner.pack.exact.jit import jit
from tmmu.planner.pack.exact.state import FAR


@jit
def aligned(value, unit):
    """``value`` rounded up to a multiple of ``unit``."""
    return value if unit <= 1 else -(-value // unit) * unit


@jit
def place(it, st, i):
    """Put item ``i`` on its lower bound, below all its neighbours; a neighbour that no longer fits, or -1."""
    st.offset[i] = st.low[i]
    end = st.low[i] + it.size[i]
    for k in range(it.start[i], it.start[i + 1]):
        j = it.near[k]
        if st.offset[j] >= 0:
            continue
        if it.fixed[j] >= 0:
            if end > it.fixed[j]:
                return j
            continue
        h = aligned(end, it.align[j])
        if st.support[j] < h:
            st.support[j] = h
            if st.low[j] < h:
                st.low[j] = clear(it, st, j, h)
                if st.low[j] > it.last[j]:
                    return j
    return -1


@jit
def clear(it, st, i, value):
    """The least aligned offset from ``value`` up with no given offset in its way; what was in the way supports."""
    v = aligned(value, it.align[i])
    if it.fixed[i] != -1:  # no given offset nearby
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
def survey(it, st, se, active, count, first, end, cap):
    """Fill the sections from the items yet to place; a section that they overflow, or -1."""
    for s in range(first, end):
        se.rest[s] = 0
        se.floor[s] = FAR
        se.floor2[s] = FAR
        se.floor_of[s] = -1
        se.top[s] = FAR
        se.top2[s] = FAR
        se.top_of[s] = -1
    for x in range(count):
        i = active[x]
        o = st.low[i]
        h = o + it.size[i]
        for s in range(it.lo[i], it.hi[i]):
            se.rest[s] += it.size[i]
            if o < se.floor[s]:
                se.floor2[s] = se.floor[s]
                se.floor[s] = o
                se.floor_of[s] = i
            elif o < se.floor2[s]:
                se.floor2[s] = o
            if h < se.top[s]:
                se.top2[s] = se.top[s]
                se.top[s] = h
                se.top_of[s] = i
            elif h < se.top2[s]:
                se.top2[s] = h
    for s in range(first, end):
        if se.floor[s] + se.rest[s] > cap and se.rest[s] > 0:
            return s
    return -1


@jit
def nearest_end(it, se, i):
    """The lowest end that a neighbour of item ``i`` can have, or FAR."""
    least = FAR
    for s in range(it.lo[i], it.hi[i]):
        t = se.top2[s] if se.top_of[s] == i else se.top[s]
        least = min(least, t)
    return least


@jit
def nearest_floor(it, se, i):
    """The lowest offset that a neighbour of item ``i`` can have, or FAR."""
    least = FAR
    for s in range(it.lo[i], it.hi[i]):
        f = se.floor2[s] if se.floor_of[s] == i else se.floor[s]
        least = min(least, f)
    return least


@jit
def lifted(it, st, se, i, cap):
    """The least offset of item ``i`` after three rules; FAR where it has none.

    It is not the lowest of a section that then would overflow; off its support it lies on some neighbour yet to place;
    and it follows its twin.
    """
    low = st.low[i]
    v = low
    least = FAR
    for s in range(it.lo[i], it.hi[i]):
        t = se.top2[s] if se.top_of[s] == i else se.top[s]
        least = min(least, t)
        if low + se.rest[s] > cap:
            v = max(v, t)
    if low > st.support[i]:
        v = max(v, least)
    k = it.twin[i]
    if k >= 0 and st.offset[k] < 0:
        v = max(v, st.low[k] + it.size[k])
    return v


@jit
def lift_all(it, st, se, active, count, cap):
    """Raise every bound by those rules: (how many rose, an item that no longer fits or -1)."""
    rose = 0
    for x in range(count):
        i = active[x]
        if it.fixed[i] >= 0:
            continue
        v = lifted(it, st, se, i, cap)
        if v > st.low[i]:
            if v > it.last[i]:
                return rose, i
            st.low[i] = clear(it, st, i, v)
            if st.low[i] > it.last[i]:
                return rose, i
            rose += 1
    return rose, -1


@jit
def settle(it, st, se, active, count):
    """Place what all neighbours lie above of anyway: (how many, an item in contradiction or -1)."""
    placed = 0
    for x in range(count):
        i = active[x]
        if it.fixed[i] >= 0:
            if st.low[i] >= nearest_end(it, se, i):
                continue
        else:
            floor = nearest_floor(it, se, i)
            if st.support[i] + it.size[i] > floor:
                continue
            if st.low[i] > st.support[i]:
                return placed, i
        bad = place(it, st, i)
        if bad >= 0:
            return placed, bad
        placed += 1
    return placed, -1


@jit
def propagate(it, st, se, active, first, end, cap):
    """Apply all rules in sections ``[first, end)`` until none does more: (items left, item in contradiction or -1)."""
    count = 0
    for i in range(len(it.size)):
        if st.offset[i] < 0 and it.lo[i] >= first and it.hi[i] <= end:
            active[count] = i
            count += 1
    while True:
        s = survey(it, st, se, active, count, first, end, cap)
        if s >= 0:
            return count, se.floor_of[s]
        rose, bad = lift_all(it, st, se, active, count, cap)
        if bad >= 0:
            return count, bad
        if rose:
            continue
        placed, bad = settle(it, st, se, active, count)
        if bad >= 0:
            return count, bad
        if not placed:
            return count, -1
        kept = 0
        for x in range(count):
            if st.offset[active[x]] < 0:
                active[kept] = active[x]
                kept += 1
        count = kept
        if not count:
            return 0, -1
