"""Alignments: pairs of equal tokens in order, as many as a shortest edit keeps, and for any sequences at all."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.compare import align as module
from tmmu.compare.align import align, longest_ascending

TOKENS = st.lists(st.integers(0, 4), max_size=24)


def longest(one: list[int], other: list[int]) -> int:
    """The length of a longest common subsequence, by its definition."""
    row = [0] * (len(other) + 1)
    for token in one:
        before = row
        row = [0]
        for j, their in enumerate(other):
            row.append(before[j] + 1 if token == their else max(before[j + 1], row[-1]))
    return row[-1]


def demand_alignment(pairs: list[tuple[int, int]], one: list[int], other: list[int]) -> None:
    assert all(one[i] == other[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))


@given(TOKENS, TOKENS)
def test_any_two_sequences_align(one: list[int], other: list[int]) -> None:
    demand_alignment(align(one, other), one, other)


@given(TOKENS, TOKENS)
def test_without_anchors_the_edit_is_shortest(one: list[int], other: list[int]) -> None:
    found = sorted(module._shortest_edit(one, other, (0, len(one), 0, len(other))))
    demand_alignment(found, one, other)
    assert len(found) == longest(one, other)


@given(TOKENS, TOKENS, st.sampled_from([1, 2, 3, 5]))
def test_a_long_edit_is_taken_in_pieces(one: list[int], other: list[int], edits: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EDITS", edits)
        demand_alignment(align(one, other), one, other)


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=40), st.data())
def test_what_is_only_deleted_or_inserted_leaves_all_else_aligned(tokens: list[int], data: st.DataObject) -> None:
    kept = [token for token in tokens if data.draw(st.booleans())]
    longer = [new for token in tokens for new in ([-token - 1, token] if token % 3 == 0 else [token])]
    assert align(tokens, kept) == [(tokens.index(token), kept.index(token)) for token in kept]
    assert align(tokens, longer) == [(tokens.index(token), longer.index(token)) for token in tokens]


def test_an_insertion_among_equal_tokens_costs_one() -> None:
    assert len(align([1] * 50, [1] * 51)) == 50
    assert align([1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 1, 2]) == [(0, 0), (1, 1), (2, 3), (3, 4), (4, 5), (5, 6)]


def test_the_longest_ascending_run() -> None:
    assert longest_ascending([(0, 3), (1, 1), (2, 2), (3, 0), (4, 5)]) == [(1, 1), (2, 2), (4, 5)]
    assert longest_ascending([]) == []


def test_the_work_is_bounded_where_nothing_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs of 6,000 ops that have only common operators: counted in steps, no square of the length."""
    draw, steps = Random(1), [0]
    is_insertion = module._is_insertion

    def counted(*arguments: object) -> bool:
        steps[0] += 1
        return is_insertion(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_is_insertion", counted)
    one, other = ([draw.randrange(50) for _ in range(6000)] for _ in range(2))
    pairs = align(one, other)
    demand_alignment(pairs, one, other)
    assert len(pairs) > 1000
    assert steps[0] < 2 * 12000 * module.EDITS
