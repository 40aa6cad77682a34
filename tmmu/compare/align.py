"""Aligning two sequences of tokens: which entries of one are which of the other, both in order.

Patience first (tokens that either side has once are anchors, as far as they agree on an order), then Myers' shortest
edit between anchors, ``EDITS`` insertions and deletions at a time. O(N log N + N * EDITS), and far less for sequences
that are much alike; the same answer on every machine.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

Pair: TypeAlias = tuple[int, int]
Gap: TypeAlias = tuple[int, int, int, int]
"""``[low, high)`` of one sequence, then of the other."""

EDITS: Final = 128
"""After so many edits without an anchor the way that came furthest is taken as it is, and the search starts anew."""


def align(one: Sequence[int], other: Sequence[int]) -> list[Pair]:
    """Pairs of positions that hold equal tokens, each position at most once, ascending in both."""
    pairs: list[Pair] = []
    gaps: list[Gap] = [(0, len(one), 0, len(other))]
    while gaps:
        gap, ends = _trim(one, other, gaps.pop())
        pairs += ends
        low, high, start, end = gap
        if low == high or start == end:
            continue
        anchors = _anchors(one, other, gap)
        if anchors:
            pairs += anchors
            gaps += _between(anchors, gap)
        else:
            pairs += _edit(one, other, gap)
    return sorted(pairs)


def _trim(one: Sequence[int], other: Sequence[int], gap: Gap) -> tuple[Gap, list[Pair]]:
    """The gap without what both begin and end with, and the pairs of that."""
    low, high, start, end = gap
    pairs: list[Pair] = []
    while low < high and start < end and one[low] == other[start]:
        pairs.append((low, start))
        low, start = low + 1, start + 1
    while low < high and start < end and one[high - 1] == other[end - 1]:
        high, end = high - 1, end - 1
        pairs.append((high, end))
    return (low, high, start, end), pairs


def _anchors(one: Sequence[int], other: Sequence[int], gap: Gap) -> list[Pair]:
    """The longest ascending run of tokens that both sides of the gap hold once."""
    low, high, start, end = gap
    mine, theirs = Counter(one[low:high]), Counter(other[start:end])
    where = {other[j]: j for j in range(start, end) if theirs[other[j]] == 1}
    return ascending([(i, where[one[i]]) for i in range(low, high) if mine[one[i]] == 1 and one[i] in where])


def ascending(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest subsequence of ``pairs``, which ascend in the first place, that ascends in the second too."""
    tails: list[int] = []
    ends: list[int] = []
    before = [-1] * len(pairs)
    for index, (_, value) in enumerate(pairs):
        length = bisect_left(tails, value)
        before[index] = ends[length - 1] if length else -1
        tails[length : length + 1] = [value]
        ends[length : length + 1] = [index]
    found: list[Pair] = []
    index = ends[-1] if ends else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]


def _between(anchors: Sequence[Pair], gap: Gap) -> Iterator[Gap]:
    low, high, start, end = gap
    for i, j in [*anchors, (high, end)]:
        yield low, i, start, j
        low, start = i + 1, j + 1


def _edit(one: Sequence[int], other: Sequence[int], gap: Gap) -> Iterator[Pair]:
    """The tokens that a short edit from one side of the gap to the other keeps; those of one side alone are none."""
    low, high, start, end = gap
    shared = set(one[low:high]) & set(other[start:end])
    mine = [i for i in range(low, high) if one[i] in shared]
    theirs = [j for j in range(start, end) if other[j] in shared]
    done, made = 0, 0
    while done < len(mine) and made < len(theirs):
        history, x, y = _search([one[i] for i in mine[done:]], [other[j] for j in theirs[made:]])
        yield from ((mine[done + i], theirs[made + j]) for i, j in _walk_back(history, x, y))
        done, made = done + x, made + y


def _search(one: Sequence[int], other: Sequence[int]) -> tuple[list[dict[int, int]], int, int]:
    """Myers' greedy search: by number of edits, how far each diagonal comes; and where the best one ends."""
    ahead: dict[int, int] = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(EDITS + 1):
        history.append(dict(ahead))
        for k in range(-edits, edits + 1, 2):
            x = ahead[k + 1] if _goes_down(ahead, k, edits) else ahead[k - 1] + 1
            while x < len(one) and x - k < len(other) and one[x] == other[x - k]:
                x += 1
            ahead[k] = x
            if x >= len(one) and x - k >= len(other):
                return history, x, x - k
    inside = [k for k in range(-EDITS, EDITS + 1, 2) if ahead[k] <= len(one) and ahead[k] - k <= len(other)]
    best = max(inside, key=lambda k: (2 * ahead[k] - k, k))
    return history, ahead[best], ahead[best] - best


def _goes_down(ahead: dict[int, int], k: int, edits: int) -> bool:
    """Whether diagonal ``k`` is best reached by an insertion, from the diagonal above."""
    return k == -edits or (k != edits and ahead[k - 1] < ahead[k + 1])


def _walk_back(history: Sequence[dict[int, int]], x: int, y: int) -> Iterator[Pair]:
    """The tokens kept on the way that ends at (x, y), last first."""
    for edits in range(len(history) - 1, 0, -1):
        ahead, k = history[edits], x - y
        old = k + 1 if _goes_down(ahead, k, edits) else k - 1
        came = ahead[old]
        while min(x - came, y - (came - old)) > 0:
            x, y = x - 1, y - 1
            yield x, y
        x, y = came, came - old
    while x > 0:
        x, y = x - 1, y - 1
        yield x, y
