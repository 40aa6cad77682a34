"""Work as counts: calls and bytecodes of a function, and how often a number is compared. None depends on the clock."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


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


def bytecodes_of(function: Callable[[], object]) -> int:
    """Bytecodes of Python that are run."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


class Compared(int):
    """An integer that counts comparisons for equality, as a search through a tuple makes them."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__
