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


def build(made: Claims) -> tuple[Ownership, list[Owner | None]]:
    ownership = Ownership()
    cells: list[Owner | None] = [None] * SIZE
    for (low, high), owner in made:
        ownership.claim(low, high, owner)
        cells[low:high] = [owner] * (high - low)
    return ownership, cells


@given(claims, ranges)
def test_pieces_tell_the_owner_of_every_byte(made: Claims, window: tuple[int, int]) -> None:
    ownership, cells = build(made)
    low, high = window
    found = list(ownership.pieces(low, high))
    assert [owner for begin, end, owner in found for _ in range(begin, end)] == cells[low:high]
    assert all(begin < end for begin, end, _ in found)
    assert [end for _, end, _ in found[:-1]] == [begin for begin, _, _ in found[1:]]


@given(claims, ranges)
def test_holds_never_says_yes_wrongly(made: Claims, window: tuple[int, int]) -> None:
    ownership, cells = build(made)
    low, high = window
    for owner in {owner for _, owner in made}:
        if low < high and ownership.is_owned_by(low, high, owner):
            assert set(cells[low:high]) == {owner}


@given(claims)
def test_the_last_claim_holds_in_one_piece(made: Claims) -> None:
    ownership, _ = build(made)
    if made and made[-1][0][0] < made[-1][0][1]:
        assert ownership.is_owned_by(*made[-1][0], made[-1][1])


@given(claims)
def test_a_claim_makes_at_most_two_pieces_more(made: Claims) -> None:
    ownership = Ownership()
    for (low, high), owner in made:
        before = len(ownership)
        ownership.claim(low, high, owner)
        assert len(ownership) <= before + 2


@pytest.mark.parametrize("window", [(0, 8), (4, 12), (8, 16)])
def test_nothing_is_owned_at_first(window: tuple[int, int]) -> None:
    assert list(Ownership().pieces(*window)) == [(*window, None)]
    assert not Ownership().is_owned_by(*window, (0, 0))
