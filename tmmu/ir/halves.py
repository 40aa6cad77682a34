"""A program that runs in two halves, as a training step under autograd does, and what crosses their borders.

The halves are one order: what the first leaves for the second stays where the plan puts it in between. A program that
is not trained has the first half alone.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tmmu.ir.calls import Program, Ref


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Stands for a window on an argument, in elements; ``whole`` says that it is the argument itself."""

    position: int
    whole: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


Handed: TypeAlias = Ref | Given | int | float | bool | None
"""What a half hands out in one place: a tensor of the program, a window on an argument, or what is no tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Where in the order, after so many ops, a half hands out what belongs at these places."""

    after: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """``arguments`` name the program's inputs, ``None`` for what is none: a number, or what the first half saved.

    ``handed`` is what it returns, in order; tensors of the program are handed out by ``deliveries``, in order.
    """

    arguments: tuple[str | None, ...]
    handed: tuple[Handed, ...]
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """``border`` ops belong to the first half; ``second`` is ``None`` where nothing is trained.

    Of what the first half hands out, the first ``results`` are the caller's, and the rest is saved: ``returned`` says,
    per argument of the second half, at which place it was handed out, or -1 for one that is an input of the program.
    """

    program: Program
    border: int
    results: int
    first: Half
    second: Half | None
    returned: tuple[int, ...]
