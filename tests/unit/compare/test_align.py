"""Alignments: pairs of equal tokens in order, as many as a shortest edit keeps, and for any sequences at all."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.compare import align as module
from tmmu.compare.align import align, longest_ascending

TOKENS = st.lists(st.integers(0, 4), max_size=24)


def longest(left: list[int], right: list[int]) -> int:
    """The length of a longest common subsequence, by its definition."""
    row = [0] * (len(right) + 1)
    for token in left:
        before = row
        row = [0]
        for j, their in enumerate(right):
            row.append(before[j] + 1 if token == their else max(before[j + 1], row[-1]))
    return row[-1]


def demand_alignment(pairs: list[tuple[int, int]], left: list[int], right: list[int]) -> None:
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))


@given(TOKENS, TOKENS)
def test_any_two_sequences_align(left: list[int], right: list[int]) -> None:
    demand_alignment(align(left, right), left, right)


@given(TOKENS, TOKENS)
def test_edit_without_anchors_is_shortest(left: list[int], right: list[int]) -> None:
    pairs = sorted(module._shortest_edit(left, right, (0, len(left), 0, len(right))))
    demand_alignment(pairs, left, right)
    assert len(pairs) == longest(left, right)


@given(TOKENS, TOKENS, st.sampled_from([1, 2, 3, 5]))
def test_long_edit_is_taken_in_pieces(left: list[int], right: list[int], edits: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EDITS", edits)
        demand_alignment(align(left, right), left, right)


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=40), st.data())
def test_deletions_and_insertions_leave_all_else_aligned(tokens: list[int], data: st.DataObject) -> None:
    shorter = [token for token in tokens if data.draw(st.booleans())]
    longer = [new for token in tokens for new in ([-token - 1, token] if token % 3 == 0 else [token])]
    assert align(tokens, shorter) == [(tokens.index(token), shorter.index(token)) for token in shorter]
    assert align(tokens, longer) == [(tokens.index(token), longer.index(token)) for token in tokens]


def test_insertion_among_equal_tokens_costs_one() -> None:
    assert len(align([1] * 50, [1] * 51)) == 50
    assert align([1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 1, 2]) == [(0, 0), (1, 1), (2, 3), (3, 4), (4, 5), (5, 6)]


def test_longest_ascending_run() -> None:
    assert longest_ascending([(0, 3), (1, 1), (2, 2), (3, 0), (4, 5)]) == [(1, 1), (2, 2), (4, 5)]
    assert longest_ascending([]) == []


def test_work_is_bounded_where_nothing_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs of 6,000 ops that have only common operators: counted in steps, no square of the length."""
    draw, steps = Random(1), [0]
    is_insertion = module._is_insertion

    def count_calls(*arguments: object) -> bool:
        steps[0] += 1
        return is_insertion(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_is_insertion", count_calls)
    left, right = ([draw.randrange(50) for _ in range(6000)] for _ in range(2))
    pairs = align(left, right)
    demand_alignment(pairs, left, right)
    assert len(pairs) > 1000
    assert steps[0] < 2 * 12000 * module.EDITS
