"""Placement of long-lived items high below the bound, with answers worked out by hand."""

import pytest

from tmmu.ir.problem import Problem
from tmmu.planner.layout import pack_with
from tmmu.planner.pack.table import PACKERS

LONG_LIVED = [packer for packer in PACKERS if packer.name in ("long_lived_high", "long_lived_sweep")]


def problem(*rows: tuple[int, int, int]) -> Problem:
    """Rows of (size, birth, death)."""
    size, birth, death = zip(*rows, strict=True)
    return Problem(size=size, birth=birth, death=death)


@pytest.mark.parametrize("packer", LONG_LIVED, ids=lambda packer: packer.name)
def test_items_that_live_to_the_end_are_placed_above_those_that_die(packer: object) -> None:
    """A training step: 4, 3, 2 are saved, 1 is short-lived, gradients of 2, 3, 4 fill the bound of 10 from the top."""
    saved, brief, gradients = ((4, 0, 6), (3, 1, 5), (2, 2, 4)), (1, 3, 4), ((2, 4, 7), (3, 5, 7), (4, 6, 7))
    placement = pack_with(packer, problem(*saved, brief, *gradients))  # type: ignore[arg-type]
    assert placement.offset == (0, 4, 7, 9, 8, 5, 1)
    assert (placement.peak, placement.proven) == (10, True)


def test_long_lived_item_takes_the_higher_of_two_free_ranges() -> None:
    """The last item of 2 is born while the 2 at offset 3 is live: [0, 3) and [5, 10) are free."""
    packer = next(packer for packer in LONG_LIVED if packer.name == "long_lived_high")
    assert pack_with(packer, problem((3, 0, 4), (2, 3, 6), (5, 3, 4), (2, 4, 7))).offset == (0, 3, 5, 8)


def test_long_lived_item_that_fits_nowhere_below_the_bound_is_placed_low() -> None:
    """6 bytes live at most. The third item goes below the live one at 4, to 2; the last fits nowhere but at 4."""
    packer = next(packer for packer in LONG_LIVED if packer.name == "long_lived_high")
    placement = pack_with(packer, problem((4, 0, 2), (2, 1, 3), (2, 2, 4), (4, 3, 4)))
    assert placement.bound == 6
    assert placement.offset == (0, 4, 2, 4)
    assert not placement.proven
