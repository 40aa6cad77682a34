"""The map of owners against one cell per byte."""

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.judge.interval import Owner, Ownership

SIZE = 24
ranges = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda pair: (min(pair), max(pair)))
Claims: TypeAlias = list[tuple[tuple[int, int], Owner]]
claims = st.lists(st.tuples(ranges, st.tuples(st.integers(0, 3), st.integers(-1, 2))), max_size=24)


def build(history: Claims) -> tuple[Ownership, list[Owner | None]]:
    ownership = Ownership()
    cells: list[Owner | None] = [None] * SIZE
    for (low, high), owner in history:
        ownership.claim(low, high, owner)
        cells[low:high] = [owner] * (high - low)
    return ownership, cells


@given(claims, ranges)
def test_pieces_tell_the_owner_of_every_byte(history: Claims, window: tuple[int, int]) -> None:
    ownership, cells = build(history)
    low, high = window
    pieces = list(ownership.pieces(low, high))
    assert [owner for begin, end, owner in pieces for _ in range(begin, end)] == cells[low:high]
    assert all(begin < end for begin, end, _ in pieces)
    assert [end for _, end, _ in pieces[:-1]] == [begin for begin, _, _ in pieces[1:]]


@given(claims, ranges)
def test_is_owned_by_is_never_wrongly_true(history: Claims, window: tuple[int, int]) -> None:
    ownership, cells = build(history)
    low, high = window
    for owner in {owner for _, owner in history}:
        if low < high and ownership.is_owned_by(low, high, owner):
            assert set(cells[low:high]) == {owner}


@given(claims)
def test_last_claim_is_one_range(history: Claims) -> None:
    ownership, _ = build(history)
    if history and history[-1][0][0] < history[-1][0][1]:
        assert ownership.is_owned_by(*history[-1][0], history[-1][1])


@given(claims)
def test_claim_adds_at_most_two_ranges(history: Claims) -> None:
    ownership = Ownership()
    for (low, high), owner in history:
        before = len(ownership)
        ownership.claim(low, high, owner)
        assert len(ownership) <= before + 2


@pytest.mark.parametrize("window", [(0, 8), (4, 12), (8, 16)])
def test_new_map_owns_nothing(window: tuple[int, int]) -> None:
    assert list(Ownership().pieces(*window)) == [(*window, None)]
    assert not Ownership().is_owned_by(*window, (0, 0))
