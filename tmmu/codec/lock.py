"""Lock of a folder: files that belong together are renamed in it by one process at a time."""

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

LOCK_TIMEOUT_S: Final = 60.0
"""What is written is there already; a folder is locked for the renames alone, for a moment."""
POLL_INTERVAL_S: Final = 0.05


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock of the folder, where its file system supports one; it ends with the process.

    Not reentrant. ``InvalidConfig`` if another writer holds it for ``LOCK_TIMEOUT_S`` seconds.
    """
    try:
        handle = None if fcntl is None else os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written and not listed
        handle = None
    if handle is None:
        yield
        return
    try:
        with suppress(OSError):
            _acquire(handle, folder)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, folder: Path) -> None:
    end = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > end:
                message = f"{folder}: another process has been writing there for {LOCK_TIMEOUT_S:.0f} seconds"
                raise InvalidConfig(message, fix="wait until it ends, or end it; then run this again") from error
        time.sleep(POLL_INTERVAL_S)
