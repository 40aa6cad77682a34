"""Alignment of two sequences of tokens: pairs of positions that hold equal tokens, ascending in both.

Patience first, then Myers. The state is the list of *gaps*, ranges of both sequences that are still to be aligned. A
gap first loses what both of its sides begin and end with. Then tokens that each side has exactly once are *anchors*, as
many as agree on an order, and what lies between two anchors is a new gap. A gap without anchors goes to Myers' greedy
search for a shortest edit, at most ``EDITS`` insertions and deletions at a time.

Invariants: a pair is made of equal tokens; gaps overlap in neither sequence, and every pair so far lies outside of
them, so sorting the pairs by one side sorts the other. It ends because each gap is replaced by gaps without the anchor
between them, and each round of the search goes at least one token forward on a side.

O(N log N + N * EDITS), and far less for sequences that are much alike. Ties are decided by position, so the answer is
the same on every machine.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

Pair: TypeAlias = tuple[int, int]
"""(position on the left, position on the right)"""
Gap: TypeAlias = tuple[int, int, int, int]
"""``[low, high)`` of the left sequence, then ``[start, end)`` of the right one."""

EDITS: Final = 128
"""After so many edits the way that came furthest is taken, and the search starts anew behind it."""


def align(left: Sequence[int], right: Sequence[int]) -> list[Pair]:
    """Pairs of positions that hold equal tokens, each position at most once, ascending in both."""
    pairs: list[Pair] = []
    gaps: list[Gap] = [(0, len(left), 0, len(right))]
    while gaps:
        gap, ends = _trim(left, right, gaps.pop())
        pairs += ends
        low, high, start, end = gap
        if low == high or start == end:
            continue
        anchors = _anchors(left, right, gap)
        if anchors:
            pairs += anchors
            gaps += _gaps_between(anchors, gap)
        else:
            pairs += _shortest_edit(left, right, gap)
    return sorted(pairs)


def _trim(left: Sequence[int], right: Sequence[int], gap: Gap) -> tuple[Gap, list[Pair]]:
    """The gap without the tokens that both sides begin and end with, and the pairs of these."""
    low, high, start, end = gap
    pairs: list[Pair] = []
    while low < high and start < end and left[low] == right[start]:
        pairs.append((low, start))
        low, start = low + 1, start + 1
    while low < high and start < end and left[high - 1] == right[end - 1]:
        high, end = high - 1, end - 1
        pairs.append((high, end))
    return (low, high, start, end), pairs


def _anchors(left: Sequence[int], right: Sequence[int], gap: Gap) -> list[Pair]:
    """The longest ascending run of tokens that each side of the gap has exactly once."""
    low, high, start, end = gap
    left_counts, right_counts = Counter(left[low:high]), Counter(right[start:end])
    position = {right[j]: j for j in range(start, end) if right_counts[right[j]] == 1}
    unique = (i for i in range(low, high) if left_counts[left[i]] == 1)
    return longest_ascending([(i, position[left[i]]) for i in unique if left[i] in position])


def longest_ascending(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest subsequence of ``pairs``, which ascend on the left, that ascends on the right too."""
    # Of all ascending runs of n pairs so far, ``tails[n - 1]`` is the least right end and ``ends[n - 1]`` its index.
    tails: list[int] = []
    ends: list[int] = []
    previous = [-1] * len(pairs)
    for index, (_, value) in enumerate(pairs):
        length = bisect_left(tails, value)
        previous[index] = ends[length - 1] if length else -1
        tails[length : length + 1] = [value]
        ends[length : length + 1] = [index]
    run: list[Pair] = []
    index = ends[-1] if ends else -1
    while index >= 0:
        run.append(pairs[index])
        index = previous[index]
    return run[::-1]


def _gaps_between(anchors: Sequence[Pair], gap: Gap) -> Iterator[Gap]:
    low, high, start, end = gap
    for i, j in [*anchors, (high, end)]:
        yield low, i, start, j
        low, start = i + 1, j + 1


def _shortest_edit(left: Sequence[int], right: Sequence[int], gap: Gap) -> Iterator[Pair]:
    """The tokens of the gap that a shortest edit keeps. Tokens of one side alone are left out of the search."""
    low, high, start, end = gap
    shared = set(left[low:high]) & set(right[start:end])
    left_positions = [i for i in range(low, high) if left[i] in shared]
    right_positions = [j for j in range(start, end) if right[j] in shared]
    a, b = 0, 0
    while a < len(left_positions) and b < len(right_positions):
        history, x, y = _search([left[i] for i in left_positions[a:]], [right[j] for j in right_positions[b:]])
        yield from ((left_positions[a + i], right_positions[b + j]) for i, j in _walk_back(history, x, y))
        a, b = a + x, b + y


def _search(left: Sequence[int], right: Sequence[int]) -> tuple[list[dict[int, int]], int, int]:
    """Myers' greedy search: per number of edits, the reach of each diagonal; and the point (x, y) where it ends.

    ``reach[k]`` is the furthest ``x`` on diagonal ``k = x - y``. The end is that of both sequences, or after ``EDITS``
    edits the point of the largest ``x + y``.
    """
    reach: dict[int, int] = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(EDITS + 1):
        history.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            x = reach[k + 1] if _is_insertion(reach, k, edits) else reach[k - 1] + 1
            while x < len(left) and x - k < len(right) and left[x] == right[x - k]:
                x += 1
            reach[k] = x
            if x >= len(left) and x - k >= len(right):
                return history, x, x - k
    valid = [k for k in range(-EDITS, EDITS + 1, 2) if reach[k] <= len(left) and reach[k] - k <= len(right)]
    best = max(valid, key=lambda k: (2 * reach[k] - k, k))
    return history, reach[best], reach[best] - best


def _is_insertion(reach: dict[int, int], k: int, edits: int) -> bool:
    """Whether diagonal ``k`` is best reached by an insertion, from the diagonal above."""
    return k == -edits or (k != edits and reach[k - 1] < reach[k + 1])


def _walk_back(history: Sequence[dict[int, int]], x: int, y: int) -> Iterator[Pair]:
    """The tokens kept on the way that ends at (x, y), last first."""
    for edits in range(len(history) - 1, 0, -1):
        reach, k = history[edits], x - y
        origin = k + 1 if _is_insertion(reach, k, edits) else k - 1
        start = reach[origin]
        while min(x - start, y - (start - origin)) > 0:
            x, y = x - 1, y - 1
            yield x, y
        x, y = start, start - origin
    while x > 0:
        x, y = x - 1, y - 1
        yield x, y
