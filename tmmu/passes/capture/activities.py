"""What a capture was doing when the user's code raised: that decides what there is to do about it.

The activity is kept on the exception itself. The innermost block names it, so that a ``forward`` that raises inside of
``loss`` is a failure of ``forward``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

_NOTE: Final = "tmmu_activity"


class Activity(StrEnum):
    """What runs: the file itself, what makes model or inputs, or a part of the step."""

    IMPORT = "import"
    BUILDING = "building"
    CONFIGURATION = "configuration"
    INPUTS = "inputs"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    FILE_OPTIMIZER = "optimizer of the file"


@contextmanager
def in_activity(activity: Activity) -> Iterator[None]:
    """Block whose failures are of this activity, where no block inside of it has named another."""
    try:
        yield
    except BaseException as error:
        mark_activity(error, activity)
        raise


def mark_activity(error: BaseException, activity: Activity) -> None:
    """Note the activity on an exception that has none, in its dictionary: its class may forbid attributes."""
    error.__dict__.setdefault(_NOTE, activity)


def activity_of(error: BaseException, default: Activity) -> Activity:
    """The activity noted on an exception."""
    return error.__dict__.get(_NOTE, default)  # type: ignore[no-any-return]
