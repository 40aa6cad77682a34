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
class Halves:
    """``border`` ops belong to the first half. ``arguments`` name the program's inputs, ``None`` for a number.

    Of what the first half hands out, the first ``results`` are the caller's, and the rest is saved: the second half
    takes it as arguments, beside gradients of results.
    """

    program: Program
    border: int
    arguments: tuple[str | None, ...]
    first: tuple[Handed, ...]
    results: int
    returned: tuple[int, ...]
    """Per argument of the second half, its place in ``first``, or -1 for one that is an input of the program."""
    tangents: tuple[str | None, ...]
    """Per argument of the second half, the name of the program's input that it is, ``None`` for what was saved."""
    second: tuple[Handed, ...]

    @property
    def trains(self) -> bool:
        """Whether there is a second half."""
        return bool(self.returned) or bool(self.second)
