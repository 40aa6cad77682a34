"""Work as counts: the calls that a function makes, and how often a number is compared. Neither depends on the clock."""

import sys
from collections.abc import Callable
from types import FrameType


def calls_of(function: Callable[[], object]) -> int:
    """Python functions and C functions that are called, by the interpreter's profile events."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


class Compared(int):
    """An integer that counts comparisons for equality, as a search through a tuple makes them."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__
