"""Calls of a real run beside those of the trace: by position, and by level where only their number differs."""

from tests.unit.ir.samples import eager_run
from tmmu.eager.observed import ObservedMemory
from tmmu.summary.measured_calls import measured_calls, paired_levels

LEVELS = (64, 320, 320, 256, 272, 256)


def memory(made: tuple[int, ...]) -> ObservedMemory:
    beside = (8, *(0 for _ in made[1:]))
    most = tuple(level + more + 5 for level, more in zip(made, beside, strict=True))
    return ObservedMemory(before=128, called=made, beside=beside, most=most, between=0)


def test_calls_pair_by_position() -> None:
    names = [f"op{i}" for i in range(6)]
    rows = measured_calls(eager_run(), memory(LEVELS), names, names)
    assert [row.difference for row in rows] == [0] * 6
    assert (rows[0].measured, rows[0].beside, rows[0].inside, rows[0].eager) == (72, 8, 5, 64)
    wrong = measured_calls(eager_run(), memory((64, 320, 300, 256, 272, 256)), names, names)
    assert [row.difference for row in wrong] == [0, 0, -20, 0, 0, 0]


def test_view_that_is_made_in_another_way_changes_no_level() -> None:
    assert paired_levels(LEVELS, (64, 320, 256, 256, 256, 272, 256)) == [64, 320, 256, 256, 256, 272, 256]
    assert paired_levels(LEVELS, (64, 320, 256, 256, 272, 256)) == [64, 320, 256, 256, 272, 256]


def test_call_that_the_trace_lacks_has_no_figure() -> None:
    assert paired_levels(LEVELS, (64, 320, 999, 320, 256, 272, 256)) == [64, 320, None, 320, 256, 272, 256]
