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
def missing_read(read_at: Cells, read_of: Cells, group_of: Cells, now: Cells, row: int, group: int) -> int:
    """A buffer without a copy that a row reads and its group does not make; -1 where there is none."""
    for e in range(read_at[row], read_at[row + 1]):
        if now[read_of[e]] < 0 and (group < 0 or group_of[read_of[e]] != group):
            return read_of[e]
    return -1


@jit
def finds_versions(s: StepCells, w: ScheduleCells, group: int) -> bool:
    """Whether the rows of a group would read of what persists what they read at first."""
    for r in range(s.group_at[group], s.group_at[group + 1]):
        row = s.group_rows[r]
        for e in range(s.kept_read_at[row], s.kept_read_at[row + 1]):
            if w.version[s.kept_read_of[e]] != s.kept_version[e]:
                return False
        w.totals[TIME] += s.row_time[row]
        w.totals[FLOPS] += s.row_flops[row]
        w.reruns[row] = 1
        for e in range(s.write_at[row], s.write_at[row + 1]):
            w.now[s.write_of[e]] = -1
    return True


@jit
def wait_for(s: StepCells, w: ScheduleCells, buffer: int, depth: int) -> bool:
    """Put the group that makes a buffer on the stack; False where there is none, or it waits for itself."""
    group = s.group_of[buffer]
    if group < 0 or w.waiting[group]:
        return False
    w.waiting[group] = 1
    w.stack[depth] = group
    return True


@jit
def schedule(s: StepCells, dropped: Cells, w: ScheduleCells) -> bool:
    """Fill ``w``; False where something that was dropped cannot be made again.

    The row that comes next, or the group on top of the stack, runs once it finds all that it reads.
    """
    clear(w)
    read_at, read_of, write_at, write_of, now, death = s.read_at, s.read_of, s.write_at, s.write_of, w.now, w.death
    row, depth, rows, k, copies, pairs = 0, -1, len(s.touch_at) - 1, 0, 0, 0
    while True:
        group = w.stack[depth] if depth >= 0 else -1
        first, last = (s.group_at[group], s.group_at[group + 1]) if depth >= 0 else (row, min(row + 1, rows))
        missing = -1
        for r in range(first, last):
            if missing < 0:
                missing = missing_read(read_at, read_of, s.group_of, now, s.group_rows[r] if depth >= 0 else r, group)
        if depth < 0 and row == rows:
            for b in s.outputs:
                missing = b if now[b] < 0 else missing
            if missing < 0:
                break
        if missing >= 0:
            depth += 1
            if not wait_for(s, w, missing, depth):
                return False
            continue
        if depth >= 0 and not finds_versions(s, w, group):
            return False
        for r in range(first, last):
            t = s.group_rows[r] if depth >= 0 else r
            new, over = write_at[t + 1] - write_at[t], s.over_at[t + 1] - s.over_at[t]
            if k >= len(w.row) or copies + new > len(w.birth) or pairs + 3 * over > len(w.took):
                return False
            w.row[k], w.again[k] = t, int(depth >= 0)
            k += 1
            for e in range(read_at[t], read_at[t + 1]):
                death[now[read_of[e]]] = k
            for e in range(write_at[t], write_at[t + 1]):
                b = write_of[e]
                if now[b] < 0:
                    now[b], w.birth[copies], w.copied[copies], w.made_again[copies] = copies, k - 1, b, int(depth >= 0)
                    copies += 1
                death[now[b]] = k
            for e in range(s.over_at[t], s.over_at[t + 1]):
                w.took[pairs], w.took[pairs + 1], w.took[pairs + 2] = now[s.over_new[e]], now[s.over_old[e]], k - 1
                pairs += 3
        if depth >= 0:
            w.waiting[group] = 0
            depth -= 1
            continue
        for e in range(s.kept_write_at[row], s.kept_write_at[row + 1]):
            w.version[s.kept_write_of[e]] += 1
        for e in range(s.touch_at[row], s.touch_at[row + 1]):
            if dropped[e]:
                now[s.touch_of[e]] = -1
        row += 1
    w.totals[ROWS], w.totals[COPIES], w.totals[TAKEOVERS] = k, copies, pairs // 3
    w.totals[WORK] += k
    sum_spans(s, w)
    return True


@jit
def sum_spans(s: StepCells, w: ScheduleCells) -> None:
    """Bytes live at each position, and the fullest one."""
    rows = w.totals[ROWS]
    for b in s.outputs:
        w.death[w.now[b]] = rows
    for k in range(rows + 1):
        w.profile[k] = 0
    for c in range(w.totals[COPIES]):
        size = s.size[w.copied[c]]
        w.profile[w.birth[c]] += size
        w.profile[w.death[c]] -= size
        w.taken[c] = 0
    for b in s.outputs:
        w.taken[w.now[b]] |= 2
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
def latest_gap(use_at: Cells, use_of: Cells, touch_row: Cells, buffer: int, row: int) -> int:
    """The gap of a buffer that lies before a row; -1 where nothing has written it by then."""
    low, high = use_at[buffer], use_at[buffer + 1]
    while low < high:
        middle = (low + high) // 2
        if touch_row[use_of[middle]] < row:
            low = middle + 1
        else:
            high = middle
    return -1 if low == use_at[buffer] else use_of[low - 1]


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
                before = latest_gap(s.use_at, s.use_of, s.touch_row, b, row)
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
