"""The folder of compiled kernels: how much of it is kept, and what killed compilers left there."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tmmu.cache.store import EntryFile, remove

MAX_BYTES: Final = 1 << 30
"""Of libraries; one has a hundred kilobytes to a few megabytes."""
LIBRARY, LAUNCHES, FORM, LOCK, WORK = "*.so", "launches/*.py", "forms/*.json", "*.lock", "compile_*"
"""What lies there: libraries, launches of a GPU's kernels, forms of kernels, locks of libraries, and folders of
compilers at work."""


def evict_kernels(folder: Path, *, limit: int, before: int, keep: Path | None = None) -> tuple[EntryFile, ...]:
    """Removes libraries and launches, least recently used first, down to ``limit`` bytes; returns what was removed.

    Also what compilers left that began ``before`` this time in ns, and with a ``limit`` of 0 all forms. A library that
    a process has loaded stays its own.
    """
    removed: list[EntryFile] = []
    libraries = sorted(
        (*_files(folder, LIBRARY), *_files(folder, LAUNCHES)), key=lambda file: (file.used_ns, file.path.name)
    )
    total = sum(file.bytes for file in libraries)
    for file in libraries:
        if total <= limit:
            break
        if file.path != keep and not remove(file):
            total -= file.bytes
            removed.append(file)
    if limit == 0:
        removed += [file for file in _files(folder, FORM) if not remove(file)]
    removed += _abandoned(folder, before)
    return tuple(removed)


def _abandoned(folder: Path, before: int) -> Iterator[EntryFile]:
    """Removes folders of compilers, and locks without a library, of before this time."""
    for file in _files(folder, WORK):
        if file.used_ns < before:
            shutil.rmtree(file.path, ignore_errors=True)
            yield file
    for file in _files(folder, LOCK):
        if file.used_ns < before and not file.path.with_suffix(".so").exists() and not remove(file):
            yield file


def _files(folder: Path, pattern: str) -> Iterator[EntryFile]:
    for path in folder.glob(pattern):
        with suppress(OSError):
            status = path.stat(follow_symlinks=False)
            yield EntryFile(path=path, bytes=status.st_size, used_ns=status.st_mtime_ns)
