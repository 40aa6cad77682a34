"""One update of a golden folder at a time."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tmmu.errors import InvalidConfig

try:
    import fcntl
except ImportError:  # a system without it has no lock that leaves no file in the folder
    fcntl = None  # type: ignore[assignment]

PATIENCE: Final = 60.0
"""Seconds: an update that has planned holds the folder for a moment."""
PAUSE: Final = 0.05


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else is in here for this folder, where its file system can lock one; waits for whoever is.

    The lock goes with the process that has it. ``InvalidConfig`` after ``PATIENCE``.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            _wait(handle, folder)
        yield
    finally:
        os.close(handle)


def _wait(handle: int, folder: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > end:
                what = f"{folder}: another update has been writing there for {PATIENCE:.0f} seconds"
                raise InvalidConfig(what, fix="wait until it ends, or end it; then run this again") from error
        time.sleep(PAUSE)
