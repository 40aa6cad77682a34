"""What a capture was doing when the user's code raised: that decides what there is to do about it.

The phase is kept on the exception itself. The innermost block names it, so that a ``forward`` that raises inside of
``loss`` is a failure of ``forward``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

_NOTE: Final = "tmmu_phase"


class Phase(StrEnum):
    """What runs: the file itself, what makes model or inputs, or a part of the step."""

    IMPORT = "import"
    BUILDING = "building"
    CONFIGURATION = "configuration"
    INPUTS = "inputs"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@contextmanager
def in_phase(phase: Phase) -> Iterator[None]:
    """Block whose failures are of this phase, where no block inside of it has named another."""
    try:
        yield
    except BaseException as error:
        mark_phase(error, phase)
        raise


def mark_phase(error: BaseException, phase: Phase) -> None:
    """Note the phase on an exception that has none. Its class may forbid attributes, so that its dictionary is used."""
    error.__dict__.setdefault(_NOTE, phase)


def phase_of(error: BaseException, default: Phase) -> Phase:
    """The phase noted on an exception."""
    return error.__dict__.get(_NOTE, default)  # type: ignore[no-any-return]
