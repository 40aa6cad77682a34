"""The schedule that drops some buffers and makes them again, compiled as one file: numba's cache of it is keyed by it.

Rows run in their order. After each use of a buffer whose gap is dropped its copy is forgotten; before a row that reads
a buffer without a copy the rows that make it run again, and before them whatever they read, depth first. What persists
must not have changed in between. A copy lives from its first write to the last use before the next copy. Bytes live at
each position are summed from these spans; a result that takes over the bytes of an argument that dies is counted once.
O(rows + uses) for each schedule.
"""

from typing import Final

from tmmu.planner.fit.cells import Cells, ScheduleCells, StepCells
from tmmu.planner.pack.exact.jit import jit

ROWS, COPIES, PEAK, FULLEST, TIME, FLOPS, TAKEOVERS, WORK, STAMP = range(9)
"""Indices of ``totals``: positions, copies, bytes live at the fullest position, that position, time and FLOPs of what
runs again, candidates of takeover; rows visited and closures walked in all."""
TOTALS: Final = 9


@jit
def emit(s: StepCells, w: ScheduleCells, row: int, again: int) -> bool:
    """Append a row; False where it would find a persistent buffer changed, or no room is left."""
    k = w.totals[ROWS]
    if k >= len(w.row):
        return False
    w.row[k] = row
    w.again[k] = again
    w.totals[ROWS] = k + 1
    if again:
        for e in range(s.kept_read_at[row], s.kept_read_at[row + 1]):
            if w.version[s.kept_read_of[e]] != s.kept_version[e]:
                return False
        w.totals[TIME] += s.row_time[row]
        w.totals[FLOPS] += s.row_flops[row]
        w.reruns[row] = 1
    else:
        for e in range(s.kept_write_at[row], s.kept_write_at[row + 1]):
            w.version[s.kept_write_of[e]] += 1
    for e in range(s.read_at[row], s.read_at[row + 1]):
        w.death[w.now[s.read_of[e]]] = k + 1
    first = w.totals[TAKEOVERS]
    for e in range(s.over_at[row], s.over_at[row + 1]):
        old = w.now[s.over_old[e]]
        if old >= 0:
            w.took[3 * w.totals[TAKEOVERS]] = s.over_new[e]
            w.took[3 * w.totals[TAKEOVERS] + 1] = old
            w.took[3 * w.totals[TAKEOVERS] + 2] = k
            w.totals[TAKEOVERS] += 1
    for e in range(s.write_at[row], s.write_at[row + 1]):
        b = s.write_of[e]
        if w.now[b] < 0:
            c = w.totals[COPIES]
            w.now[b] = c
            w.birth[c] = k
            w.copied[c] = b
            w.made_again[c] = again
            w.totals[COPIES] = c + 1
        w.death[w.now[b]] = k + 1
    for e in range(first, w.totals[TAKEOVERS]):
        w.took[3 * e] = w.now[w.took[3 * e]]
    return True


@jit
def make_again(s: StepCells, w: ScheduleCells, buffer: int) -> bool:
    """Run again what makes a buffer; False where that cannot be."""
    depth = 0
    w.stack[0] = s.group_of[buffer]
    if w.stack[0] < 0:
        return False
    w.waiting[w.stack[0]] = 1
    while depth >= 0:
        g = w.stack[depth]
        missing = -1
        for r in range(s.group_at[g], s.group_at[g + 1]):
            row = s.group_rows[r]
            for e in range(s.read_at[row], s.read_at[row + 1]):
                b = s.read_of[e]
                if s.group_of[b] != g and w.now[b] < 0:
                    missing = b
                    break
            if missing >= 0:
                break
        if missing >= 0:
            h = s.group_of[missing]
            if h < 0 or w.waiting[h]:
                return False
            depth += 1
            w.stack[depth] = h
            w.waiting[h] = 1
            continue
        for r in range(s.group_at[g], s.group_at[g + 1]):
            row = s.group_rows[r]
            for e in range(s.write_at[row], s.write_at[row + 1]):
                w.now[s.write_of[e]] = -1
        for r in range(s.group_at[g], s.group_at[g + 1]):
            if not emit(s, w, s.group_rows[r], 1):
                return False
        w.waiting[g] = 0
        depth -= 1
    return True


@jit
def clear(w: ScheduleCells) -> None:
    """Begin again; what is counted in all goes on."""
    for i in range(WORK):
        w.totals[i] = 0
    for b in range(len(w.now)):
        w.now[b] = -1
    for p in range(len(w.version)):
        w.version[p] = 0
    for g in range(len(w.waiting)):
        w.waiting[g] = 0
    for row in range(len(w.reruns)):
        w.reruns[row] = 0


@jit
def schedule(s: StepCells, dropped: Cells, w: ScheduleCells) -> bool:
    """Fill ``w``; False where something that was dropped cannot be made again."""
    clear(w)
    for row in range(len(s.read_at) - 1):
        for e in range(s.read_at[row], s.read_at[row + 1]):
            if w.now[s.read_of[e]] < 0 and not make_again(s, w, s.read_of[e]):
                return False
        if not emit(s, w, row, 0):
            return False
        for e in range(s.touch_at[row], s.touch_at[row + 1]):
            if dropped[e]:
                w.now[s.touch_of[e]] = -1
    for b in s.outputs:
        if w.now[b] < 0 and not make_again(s, w, b):
            return False
    for b in s.outputs:
        w.death[w.now[b]] = w.totals[ROWS]
    w.totals[WORK] += w.totals[ROWS]
    sum_spans(s, w)
    return True


@jit
def sum_spans(s: StepCells, w: ScheduleCells) -> None:
    """Bytes live at each position, and the fullest one."""
    rows = w.totals[ROWS]
    for k in range(rows + 1):
        w.profile[k] = 0
    for c in range(w.totals[COPIES]):
        size = s.size[w.copied[c]]
        w.profile[w.birth[c]] += size
        w.profile[w.death[c]] -= size
        w.taken[c] = 0
    for k in range(1, rows):
        w.profile[k] += w.profile[k - 1]
    for e in range(w.totals[TAKEOVERS]):
        new, old, k = w.took[3 * e], w.took[3 * e + 1], w.took[3 * e + 2]
        if w.birth[new] == k and w.death[old] == k + 1 and not w.taken[new] & 1 and not w.taken[old] & 2:
            kind_new = 0 if w.made_again[new] else s.kind[w.copied[new]]
            kind_old = 0 if w.made_again[old] else s.kind[w.copied[old]]
            if kind_new == kind_old:
                w.taken[new] |= 1
                w.taken[old] |= 2
                w.profile[k] -= s.size[w.copied[new]]
    w.totals[PEAK] = 0
    for k in range(rows):
        if w.profile[k] > w.totals[PEAK]:
            w.totals[PEAK] = w.profile[k]
            w.totals[FULLEST] = k


@jit
def latest_gap(s: StepCells, buffer: int, row: int) -> int:
    """The gap of a buffer that lies before a row; -1 where nothing has written it by then."""
    low, high = s.use_at[buffer], s.use_at[buffer + 1]
    while low < high:
        middle = (low + high) // 2
        if s.touch_row[s.use_of[middle]] < row:
            low = middle + 1
        else:
            high = middle
    return -1 if low == s.use_at[buffer] else s.use_of[low - 1]


@jit
def closure_time(s: StepCells, dropped: Cells, w: ScheduleCells, gap: int) -> int:
    """Time of the rows that would run again beside those that do where a gap is dropped; -1: it cannot be."""
    row, depth, total = s.next_use[gap], 0, 0
    w.totals[STAMP] += 1
    stamp = w.totals[STAMP]
    w.stack[0] = s.group_of[s.touch_of[gap]]
    w.seen[w.stack[0]] = stamp
    while depth >= 0:
        g = w.stack[depth]
        depth -= 1
        for r in range(s.group_at[g], s.group_at[g + 1]):
            again = s.group_rows[r]
            total += s.row_time[again]
            for e in range(s.read_at[again], s.read_at[again + 1]):
                b = s.read_of[e]
                h = s.group_of[b]
                if h == g or (h >= 0 and w.seen[h] == stamp):
                    continue
                before = latest_gap(s, b, row)
                if before >= 0 and not dropped[before]:
                    continue
                if h < 0:
                    return -1
                w.seen[h] = stamp
                if not w.reruns[s.group_rows[s.group_at[h]]]:
                    depth += 1
                    w.stack[depth] = h
    return total


@jit
def closure_times(s: StepCells, dropped: Cells, w: ScheduleCells, gaps: Cells, times: Cells) -> None:
    """``closure_time`` of each of the gaps, whose buffers can be made again."""
    for i in range(len(gaps)):
        times[i] = closure_time(s, dropped, w, gaps[i])
