"""What must be placed, and where it went: the packer's input and output, free of graphs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Items of one arena as columns: padded ``size`` in bytes, half-open span ``[birth, death)``.

    Every offset must be a multiple of ``alignment``; every size already is. Items are in id order.
    """

    size: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    alignment: int = 1

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackProblem:
    """Items to place, as they come from a file: each with its own ``alignment``, some at a ``fixed`` offset.

    Sizes are in bytes and need not be multiples of the alignment; offsets must be, unless they are fixed.
    Spans ``[birth, death)`` are half-open. Items of no bytes or of an empty span are allowed and conflict with
    nothing. ``fixed`` is -1 where the packer chooses.
    """

    size: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    alignment: tuple[int, ...]
    fixed: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One offset per item, in bytes; ``peak`` is the end of the highest one; ``proven``: no placement is lower.

    ``bound`` is a lower bound of any peak, ``method`` the packer that found the placement.
    """

    offset: tuple[int, ...]
    peak: int
    bound: int
    proven: bool
    method: str
