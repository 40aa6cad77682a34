"""Logical slots: as many as items live at once, lowest free slot first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.ir.problem import Problem
from tmmu.planner.slots import assign_logical_slots, max_live, max_live_bytes, one_slot_each


def problem(*rows: tuple[int, int, int]) -> Problem:
    """Rows of (birth, death, size)."""
    return Problem(birth=tuple(r[0] for r in rows), death=tuple(r[1] for r in rows), size=tuple(r[2] for r in rows))


@pytest.mark.parametrize(
    ("rows", "slots", "widest"),
    [
        ([], (), ()),
        ([(0, 1, 5)], (0,), (5,)),
        ([(0, 2, 5), (2, 3, 9)], (0, 0), (9,)),
        ([(0, 3, 5), (2, 3, 9)], (0, 1), (5, 9)),
        ([(0, 3, 5), (0, 3, 9), (0, 3, 9)], (2, 0, 1), (9, 9, 5)),
        ([(0, 1, 1), (0, 2, 1), (0, 1, 1), (1, 2, 7), (1, 2, 8)], (0, 1, 2, 2, 0), (8, 1, 7)),
        ([(5, 6, 0), (5, 6, 0)], (0, 1), (0, 0)),
    ],
)
def test_slots_of_small_problems(
    rows: list[tuple[int, int, int]], slots: tuple[int, ...], widest: tuple[int, ...]
) -> None:
    assignment = assign_logical_slots(problem(*rows))
    assert (assignment.slot, assignment.bytes) == (slots, widest)


ROWS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 50)).map(lambda r: (r[0], r[0] + r[1], r[2])),
    max_size=40,
)


@given(ROWS)
def test_slots_are_never_shared_and_minimal_in_number(rows: list[tuple[int, int, int]]) -> None:
    assignment = assign_logical_slots(problem(*rows))
    live = [[i for i, (birth, death, _) in enumerate(rows) if birth <= t < death] for t in range(30)]
    for together in live:
        assert len({assignment.slot[i] for i in together}) == len(together)
    assert len(assignment.bytes) == max(map(len, live)) == max_live(problem(*rows))
    assert max_live_bytes(problem(*rows)) == max(sum(rows[i][2] for i in together) for together in live)
    for slot, size in enumerate(assignment.bytes):
        assert size == max(rows[i][2] for i in range(len(rows)) if assignment.slot[i] == slot)


def test_one_slot_each() -> None:
    assignment = one_slot_each(problem((0, 9, 3), (0, 9, 0), (0, 9, 4)))
    assert (assignment.slot, assignment.bytes) == ((0, 1, 2), (3, 0, 4))
