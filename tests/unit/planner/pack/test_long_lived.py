"""Hanging fit, with answers worked out by hand."""

import pytest

from tmmu.ir.problem import Problem
from tmmu.planner.layout import pack_with
from tmmu.planner.pack.table import PACKERS

HANGING = [packer for packer in PACKERS if packer.name in ("long_lived_high", "long_lived_sweep")]


def problem(*rows: tuple[int, int, int]) -> Problem:
    """Rows of (size, birth, death)."""
    size, birth, death = zip(*rows, strict=True)
    return Problem(size=size, birth=birth, death=death)


@pytest.mark.parametrize("packer", HANGING, ids=lambda packer: packer.name)
def test_what_lives_to_the_end_hangs_over_what_dies_before(packer: object) -> None:
    """A training step: 4, 3, 2 are saved, 1 is brief, gradients of 2, 3, 4 take their place from the ceiling of 10."""
    saved, brief, gradients = ((4, 0, 6), (3, 1, 5), (2, 2, 4)), (1, 3, 4), ((2, 4, 7), (3, 5, 7), (4, 6, 7))
    found = pack_with(packer, problem(*saved, brief, *gradients))  # type: ignore[arg-type]
    assert found.offset == (0, 4, 7, 9, 8, 5, 1)
    assert (found.peak, found.proven) == (10, True)


def test_of_two_free_ranges_the_higher_is_taken() -> None:
    """The last 2 is born beside the 2 at 3: free are 0 to 3 and 5 to 10."""
    hang = next(packer for packer in HANGING if packer.name == "long_lived_high")
    assert pack_with(hang, problem((3, 0, 4), (2, 3, 6), (5, 3, 4), (2, 4, 7))).offset == (0, 3, 5, 8)


def test_what_does_not_fit_under_the_ceiling_lies_as_low_as_it_can() -> None:
    """At most 6 live. The last 2 hangs below the 2 that still lives, at 2; the last 4 finds no room but at 4."""
    hang = next(packer for packer in HANGING if packer.name == "long_lived_high")
    found = pack_with(hang, problem((4, 0, 2), (2, 1, 3), (2, 2, 4), (4, 3, 4)))
    assert found.bound == 6
    assert found.offset == (0, 4, 2, 4)
    assert not found.proven
