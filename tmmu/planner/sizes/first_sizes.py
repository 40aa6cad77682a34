"""The sizes of a step that are traced first, and what sizes of a sequence may have to be multiples of."""

from typing import Final

BATCH: Final = "batch"
SEQ: Final = "seq"
UNIT: Final = 64
"""Sequences that kernels pad are polynomials at its multiples alone."""


def size_unit(axis: str) -> int:
    """What sizes may have to be multiples of, to be predicted."""
    return UNIT if axis.startswith(SEQ) else 1


def first_sizes(axis: str, own: int) -> tuple[int, ...]:
    """The sizes that are traced first, of a step whose ``own`` size is known or 0: never 1, where kernels are others.

    What is no sequence grows in proportion, so that two will do, the step's own and the next; of a sequence three,
    the step's own the largest, as models end somewhere, and multiples of the unit where it is long enough.
    """
    if not axis.startswith(SEQ):
        return (max(2, own), max(2, own) + 1)
    own = own or 4 * UNIT
    if own < 4:
        return (2, 3, 4)
    top, step = (own // UNIT * UNIT, UNIT) if own >= 3 * UNIT else (own, 1)
    return (top, top - step, top - 2 * step)
