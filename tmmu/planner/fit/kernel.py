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
def begin_again(s: StepCells, w: ScheduleCells, group: int) -> bool:
    """Forget the copies of what the rows of a group make; False where they would not read of what persists what they
    read at first.
    """
    version, now, reruns, totals, row_time, row_flops = w.version, w.now, w.reruns, w.totals, s.row_time, s.row_flops
    read_at, read_of, first_version, write_at, write_of, rows = (
        s.kept_read_at, s.kept_read_of, s.kept_version, s.write_at, s.write_of, s.group_rows,
    )  # fmt: skip
    for r in range(s.group_at[group], s.group_at[group + 1]):
        row = rows[r]
        for e in range(read_at[row], read_at[row + 1]):
            if version[read_of[e]] != first_version[e]:
                return False
        reruns[row], totals[TIME], totals[FLOPS] = 1, totals[TIME] + row_time[row], totals[FLOPS] + row_flops[row]
        for e in range(write_at[row], write_at[row + 1]):
            now[write_of[e]] = -1
    return True


@jit
def schedule(s: StepCells, dropped: Cells, w: ScheduleCells) -> bool:
    """Fill ``w``; False where something that was dropped cannot be made again."""
    clear(w)
    is_made = run_rows(s, dropped, w)
    if is_made:
        sum_spans(s, w)
    return is_made


@jit
def run_rows(s: StepCells, dropped: Cells, w: ScheduleCells) -> bool:
    """The row that comes next, or the group on top of the stack, runs once it finds all that it reads."""
    # Fields are taken from their tuples once: numba counts references each time.
    read_at, read_of, write_at, write_of = s.read_at, s.read_of, s.write_at, s.write_of
    touch_at, touch_of, group_of, group_at, group_rows = s.touch_at, s.touch_of, s.group_of, s.group_at, s.group_rows
    over_at, over_new, over_old, changed_at = s.over_at, s.over_new, s.over_old, s.kept_write_at
    now, death, birth, copied, made_again, took = w.now, w.death, w.birth, w.copied, w.made_again, w.took
    row_of, again_of, version, stack, waiting = w.row, w.again, w.version, w.stack, w.waiting
    row, depth, rows, k, copies, pairs = 0, -1, len(touch_at) - 1, 0, 0, 0
    while True:
        again, group, first, last, missing = int(depth >= 0), -1, row, min(row + 1, rows), -1
        if again:
            group = stack[depth]
            first, last = group_at[group], group_at[group + 1]
        for r in range(first, last):
            t = group_rows[r] if again else r
            for e in range(read_at[t], read_at[t + 1]):
                if missing < 0 and now[read_of[e]] < 0 and (not again or group_of[read_of[e]] != group):
                    missing = read_of[e]
        if first == rows and not again:
            for b in s.outputs:
                missing = b if now[b] < 0 else missing
            if missing < 0:
                break
        if missing >= 0:
            group, depth = group_of[missing], depth + 1
            if group < 0 or waiting[group]:
                return False
            waiting[group], stack[depth] = 1, group
            continue
        if again and not begin_again(s, w, group):
            return False
        for r in range(first, last):
            t = group_rows[r] if again else r
            new, over = write_at[t + 1] - write_at[t], over_at[t + 1] - over_at[t]
            if k >= len(row_of) or copies + new > len(birth) or pairs + 3 * over > len(took):
                return False
            row_of[k], again_of[k], k = t, again, k + 1
            for e in range(read_at[t], read_at[t + 1]):
                death[now[read_of[e]]] = k
            for e in range(write_at[t], write_at[t + 1]):
                b = write_of[e]
                if now[b] < 0:
                    now[b], birth[copies], copied[copies], made_again[copies] = copies, k - 1, b, again
                    copies += 1
                death[now[b]] = k
            for e in range(over_at[t], over_at[t + 1]):
                took[pairs], took[pairs + 1], took[pairs + 2] = now[over_new[e]], now[over_old[e]], k - 1
                pairs += 3
        if again:
            waiting[group], depth = 0, depth - 1
            continue
        for e in range(changed_at[row], changed_at[row + 1]):
            version[s.kept_write_of[e]] += 1
        for e in range(touch_at[row], touch_at[row + 1]):
            if dropped[e]:
                now[touch_of[e]] = -1
        row += 1
    w.totals[ROWS], w.totals[COPIES], w.totals[TAKEOVERS], w.totals[WORK] = k, copies, pairs // 3, w.totals[WORK] + k
    return True


@jit
def sum_spans(s: StepCells, w: ScheduleCells) -> None:
    """Bytes live at each position, and the fullest one."""
    size_of, kind_of, outputs = s.size, s.kind, s.outputs
    totals, profile, birth, death, copied, now = w.totals, w.profile, w.birth, w.death, w.copied, w.now
    made_again, took, taken = w.made_again, w.took, w.taken
    rows = totals[ROWS]
    for b in outputs:
        death[now[b]] = rows
    for k in range(rows + 1):
        profile[k] = 0
    for c in range(totals[COPIES]):
        size = size_of[copied[c]]
        profile[birth[c]] += size
        profile[death[c]] -= size
        taken[c] = 0
    for b in outputs:
        taken[now[b]] |= 2
    for k in range(1, rows):
        profile[k] += profile[k - 1]
    for e in range(totals[TAKEOVERS]):
        new, old, k = took[3 * e], took[3 * e + 1], took[3 * e + 2]
        if birth[new] == k and death[old] == k + 1 and not taken[new] & 1 and not taken[old] & 2:
            kind_new = 0 if made_again[new] else kind_of[copied[new]]
            kind_old = 0 if made_again[old] else kind_of[copied[old]]
            if kind_new == kind_old:
                taken[new] |= 1
                taken[old] |= 2
                profile[k] -= size_of[copied[new]]
    totals[PEAK] = 0
    for k in range(rows):
        if profile[k] > totals[PEAK]:
            totals[PEAK] = profile[k]
            totals[FULLEST] = k


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
def closure_times(s: StepCells, dropped: Cells, w: ScheduleCells, gaps: Cells, times: Cells) -> None:
    """Of each of the gaps, whose buffers can be made again, the time of the rows that would run again beside those that
    do where it is dropped; -1: it cannot be.
    """
    group_of, group_at, group_rows, touch_of, next_use = s.group_of, s.group_at, s.group_rows, s.touch_of, s.next_use
    read_at, read_of, row_time, use_at, use_of, touch_row = (
        s.read_at, s.read_of, s.row_time, s.use_at, s.use_of, s.touch_row,
    )  # fmt: skip
    stack, seen, reruns, stamp = w.stack, w.seen, w.reruns, w.totals[STAMP]
    for i in range(len(gaps)):
        row, depth, total = next_use[gaps[i]], 0, 0
        stamp += 1
        stack[0] = group_of[touch_of[gaps[i]]]
        seen[stack[0]] = stamp
        while depth >= 0:
            g = stack[depth]
            depth -= 1
            for r in range(group_at[g], group_at[g + 1]):
                again = group_rows[r]
                total += row_time[again]
                for e in range(read_at[again], read_at[again + 1]):
                    b = read_of[e]
                    h = group_of[b]
                    if h == g or (h >= 0 and seen[h] == stamp):
                        continue
                    before = latest_gap(use_at, use_of, touch_row, b, row)
                    if before >= 0 and not dropped[before]:
                        continue
                    if h < 0:
                        total, depth = -1, -1
                        break
                    seen[h] = stamp
                    if not reruns[group_rows[group_at[h]]]:
                        depth += 1
                        stack[depth] = h
                if total < 0:
                    break
        times[i] = total
    w.totals[STAMP] = stamp
