"""The validator of packings: each rule, broken in exactly one way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.errors import PlanUnsound
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import most_live_bytes, overlapping_pairs, packing_faults, require_sound_packing

SOUND = PackProblem(
    size=(4, 4, 2, 0, 9),
    birth=(0, 0, 4, 0, 3),
    death=(4, 9, 9, 9, 3),
    alignment=(4, 1, 2, 8, 1),
    fixed=(-1, 4, -1, -1, -1),
)
OFFSET = (0, 4, 2, 0, 0)


def rules(problem: PackProblem, offset: tuple[int, ...], peak: int = 8, bound: int = 8) -> list[str]:
    return [fault.rule for fault in packing_faults(problem, offset, peak=peak, bound=bound)]


def test_sound_packing_has_no_fault() -> None:
    require_sound_packing(SOUND, OFFSET, peak=8, bound=8)


@pytest.mark.parametrize(
    ("offset", "peak", "bound", "rule"),
    [
        ((0, 4, 2, 0), 8, 8, "offsets"),
        ((2, 4, 0, 0, 0), 8, 8, "offsets"),
        ((0, 4, -2, 0, 0), 8, 8, "offsets"),
        ((0, 5, 2, 0, 0), 9, 8, "offsets"),
        ((0, 4, 2, 4, 0), 8, 8, "offsets"),
        ((0, 4, 4, 0, 0), 8, 8, "overlap"),
        ((4, 4, 2, 0, 0), 8, 8, "overlap"),
        (OFFSET, 9, 8, "peak"),
        (OFFSET, 7, 7, "peak"),
        (OFFSET, 8, 7, "bound"),
        (OFFSET, 8, 9, "bound"),
    ],
)
def test_each_broken_packing_breaks_its_rule(offset: tuple[int, ...], peak: int, bound: int, rule: str) -> None:
    assert rule in rules(SOUND, offset, peak, bound)
    with pytest.raises(PlanUnsound):
        require_sound_packing(SOUND, offset, peak=peak, bound=bound)


def test_items_without_bytes_conflict_with_nothing() -> None:
    given_deep = replace(SOUND, fixed=(-1, 4, -1, 100, 4))
    assert rules(given_deep, (0, 4, 2, 100, 4)) == []


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 5), st.integers(0, 9)), max_size=12))
def test_overlapping_pairs_are_found_exactly_where_there_are_any(rows: list[tuple[int, int, int, int]]) -> None:
    problem = PackProblem(
        size=tuple(r[2] for r in rows),
        birth=tuple(r[0] for r in rows),
        death=tuple(r[0] + r[1] for r in rows),
        alignment=(1,) * len(rows),
        fixed=(-1,) * len(rows),
    )
    cells: dict[tuple[int, int], int] = {}
    for birth, length, size, offset in rows:
        for time in range(birth, birth + length):
            for byte in range(offset, offset + size):
                cells[time, byte] = cells.get((time, byte), 0) + 1
    pairs = [*overlapping_pairs(problem, [r[3] for r in rows])]
    assert bool(pairs) == any(count > 1 for count in cells.values())
    for older, newer in pairs:
        assert rows[older][3] < rows[newer][3] + rows[newer][2]
        assert rows[newer][3] < rows[older][3] + rows[older][2]
    live = [sum(size for birth, length, size, _ in rows if birth <= t < birth + length) for t in range(11)]
    assert most_live_bytes(problem) == max(live)
