"""The time of a pass, worked out by hand."""

import pytest

from tests.layered import layer_problem
from tmmu.ir.ring import Visit
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks, streamed_blocks
from tmmu.planner.ring.timing import CAPACITY, COMPUTE, LINK, PassTime, steady_pass_time


def all_streamed(problem: RingProblem) -> StreamedBlocks:
    return streamed_blocks(problem, [True] * len(problem.bytes))


def slot_waits(count: int, slots: int) -> list[tuple[int, int]]:
    """Waits of layers in slots, round robin: each copy waits for the visit that had its slot before."""
    last: dict[int, int] = {}
    waits = []
    for occurrence in range(2 * count):
        i = occurrence % count
        if occurrence >= count:
            before = last[i % slots]
            waits.append((before % count, occurrence // count - before // count))
        last[i % slots] = occurrence
    return waits


def uniform(count: int, compute: int, copy: int) -> StreamedBlocks:
    return all_streamed(layer_problem([1] * count, [compute] * count, [copy] * count))


@pytest.mark.parametrize(
    ("count", "compute", "copy", "slots", "expected"),
    [
        (1, 3, 7, 1, PassTime(ns=10, limit=CAPACITY)),
        (4, 3, 7, 1, PassTime(ns=40, limit=CAPACITY)),
        (4, 3, 7, 2, PassTime(ns=28, limit=LINK)),
        (4, 7, 3, 2, PassTime(ns=28, limit=COMPUTE)),
        (4, 5, 5, 2, PassTime(ns=20, limit=COMPUTE)),
        (5, 3, 7, 2, PassTime(ns=38, limit=CAPACITY)),
        (5, 3, 7, 3, PassTime(ns=35, limit=LINK)),
    ],
    ids=[
        "alone",
        "one slot",
        "two slots, slow link",
        "two slots, slow lane",
        "even",
        "odd in two slots",
        "odd in three",
    ],
)
def test_pass_time_of_layers_in_slots(count: int, compute: int, copy: int, slots: int, expected: PassTime) -> None:
    assert steady_pass_time(uniform(count, compute, copy), slot_waits(count, slots)) == expected


def test_layers_of_two_kinds_need_a_third_slot() -> None:
    """Small and large layers alternate: in two slots the large ones load while little is computed."""
    streamed = all_streamed(layer_problem([1] * 6, [1, 9] * 3, [1, 9] * 3))
    assert steady_pass_time(streamed, slot_waits(6, 2)) == PassTime(ns=54, limit=CAPACITY)
    assert steady_pass_time(streamed, slot_waits(6, 3)) == PassTime(ns=30, limit=COMPUTE)


def test_pass_time_counts_ops_between_visits() -> None:
    problem = RingProblem(
        names=("a", "b"),
        bytes=(1, 1),
        members=((), ()),
        pinned=(False, False),
        visits=(Visit(block=0, first=1, last=2), Visit(block=1, first=4, last=4)),
        op_ns=(10, 1, 2, 20, 4, 30),
        copy_ns=(5, 5),
        alignment=1,
    )
    assert steady_pass_time(all_streamed(problem), [(1, 1), (0, 0)]) == PassTime(ns=67, limit=COMPUTE)
    assert steady_pass_time(streamed_blocks(problem, [False, False]), []) == PassTime(ns=67, limit=COMPUTE)


def test_visit_inside_another_ends_before_it() -> None:
    """The long visit ends 6 after the short one inside it starts."""
    problem = RingProblem(
        names=("a", "b"),
        bytes=(1, 1),
        members=((), ()),
        pinned=(False, False),
        visits=(Visit(block=0, first=0, last=3), Visit(block=1, first=1, last=1)),
        op_ns=(1, 2, 3, 1),
        copy_ns=(5, 50),
        alignment=1,
    )
    streamed = all_streamed(problem)
    assert streamed.visit_ends == ((1, 6), (1, 2))
    assert steady_pass_time(streamed, [(0, 1), (1, 1)]) == PassTime(ns=61, limit=CAPACITY)


def test_copy_that_waits_for_its_own_visit_has_no_pass_time() -> None:
    assert steady_pass_time(uniform(3, 1, 1), [(0, 0), (0, 0), (1, 0)]) is None
