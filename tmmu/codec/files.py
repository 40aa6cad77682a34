"""Files on disk, written whole or not at all.

Contents go to a temporary file in the same folder, are flushed to the disk, and get their name by a rename, which is
atomic. So a reader, and a power cut, find the old contents or the new ones. A temporary name says the process that
writes it; those of processes that are gone are removed when something is written beside them an hour later.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from tmmu.codec.lock import lock_folder
from tmmu.errors import InvalidConfig, PlanCorrupt

_TEMPORARY: Final = re.compile(r"\.tmmu-(\d{1,9})-\d+\.tmp")
ABANDONED_SECONDS: Final = 3600
"""A temporary file is as old before another writer removes it: its own may be on another machine, and write still."""
MOST_LOOKED_AT: Final = 1_000
"""Files of a folder among which a write looks for them, so that it takes no longer in a folder of many."""
LIMIT: Final = 1 << 29
"""Bytes that a reader accepts, 512 MiB: a plan of ten million buffers. The largest model traced so far needs 4 MB."""

ADVICE: Final = {
    errno.ENOENT: ("there is no such file or folder", "check the name, or make the folder first"),
    errno.EACCES: ("permission denied", "choose a place that you may use"),
    errno.EPERM: ("permission denied", "choose a place that you may use"),
    errno.EROFS: ("the file system is read-only", "choose a place that you may write"),
    errno.EISDIR: ("it is a folder", "name a file"),
    errno.ENOTDIR: ("part of the path is a file, not a folder", "check the name"),
    errno.ENOSPC: ("the disk is full", "make room"),
    errno.ENAMETOOLONG: ("the name is too long", "choose a shorter one"),
}


def write_atomic(path: str | Path, data: bytes) -> None:
    """``path`` holds ``data``, durably; on any failure it holds what it held, and no other file is left.

    Symbolic links are followed. Pipes and devices are written straight. ``InvalidConfig`` when it cannot be done.
    """
    write_together([(path, data)])


def write_together(files: Sequence[tuple[str | Path, bytes]], *, is_locked: bool = False) -> None:
    """Every path holds its data, as by ``write_atomic``; where one cannot be written, all hold what they held.

    All contents are on disk before the first rename, so only a crash between two renames can part the files. Folders
    are locked meanwhile, so that two processes' files do not mix; ``is_locked``: the caller has locked them.
    """
    staged: list[_StagedFile] = []
    try:
        for path, data in files:
            with _translated_errors("write", path):
                _stage(path, data, staged)
        for folder in {file.target.parent for file in staged}:
            _remove_abandoned(folder)
        for path, data in files:
            if is_special(Path(path)):
                with _translated_errors("write", path), Path(path).open("ab") as stream:
                    stream.write(data)
        folders = sorted({file.target.parent for file in staged}) if len(staged) > 1 and not is_locked else []
        with ExitStack() as locks:
            for folder in folders:
                locks.enter_context(lock_folder(folder))
            for file in staged:
                with _translated_errors("write", file.path):
                    file.temporary.replace(file.target)
    except BaseException:
        for file in staged:
            with suppress(OSError):
                file.temporary.unlink()
        raise
    for folder in dict.fromkeys(file.target.parent for file in staged):
        _sync_folder(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagedFile:
    """The contents of ``target``, complete under the name ``temporary``; ``path`` is what the caller called it."""

    path: str | Path
    target: Path
    temporary: Path


def _stage(path: str | Path, data: bytes, staged: list[_StagedFile]) -> None:
    """Adds the file to ``staged``, where it is one that can be renamed."""
    if is_special(Path(path)):
        return
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
    handle, temporary = _open_temporary(target)
    staged.append(_StagedFile(path=path, target=target, temporary=temporary))
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def is_special(path: Path) -> bool:
    """Whether it exists and is a device, a pipe, or the name of an open stream: no rename can replace it."""
    parts = Path(os.path.abspath(path)).parts  # noqa: PTH100 - links are not followed
    stream = parts[1:2] in (("dev",), ("proc",)) and parts[2:3] != ("shm",)
    return path.exists() and not path.is_dir() and (stream or not path.is_file())


@contextmanager
def _translated_errors(act: str, path: str | Path) -> Iterator[None]:
    """Errors of the operating system become ``InvalidConfig``."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _config_error(act, path, error) from error


def _open_temporary(target: Path) -> tuple[int, Path]:
    """A new, open file next to ``target``, with the permissions of any new file."""
    for attempt in range(1 << 16):
        path = target.with_name(f".tmmu-{os.getpid()}-{attempt}.tmp")
        with suppress(FileExistsError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), path
    raise OSError(errno.EEXIST, "too many temporary files", str(target.parent))


def remove_unfinished(folder: Path) -> None:
    """Temporary files below the folder are gone whose writer was killed; those of running processes stay."""
    _remove_of_killed(folder.rglob(".tmmu-*.tmp"))


def _remove_abandoned(folder: Path) -> None:
    """The same among the first files of the folder itself, of those that are as old as ``ABANDONED_SECONDS``."""
    with suppress(OSError), os.scandir(folder) as entries:
        _remove_of_killed((Path(entry) for entry in islice(entries, MOST_LOOKED_AT)), min_age=ABANDONED_SECONDS)


def _remove_of_killed(paths: Iterable[Path], *, min_age: float = 0) -> None:
    for path in paths:
        name = _TEMPORARY.fullmatch(path.name)
        if name and not _is_running(int(name[1])):
            with suppress(OSError):
                if path.lstat().st_mtime <= time.time() - min_age:
                    path.unlink()


def _is_running(process: int) -> bool:
    """Whether the process exists, or that cannot be found out."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """The new name survives a power cut, where the file system can promise that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_file(path: str | Path, *, limit: int = LIMIT) -> bytes:
    """All bytes of an ordinary file of at most ``limit``, links followed.

    ``InvalidConfig`` if it cannot be read or is a folder, pipe or device, ``PlanCorrupt`` if it is larger. No more is
    asked for than the file has.
    """
    with open_ordinary(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            with _translated_errors("read", path):
                data = file.read(size + 1)
    if size > limit or len(data) > limit:
        raise PlanCorrupt(f"{path} has more than {limit} bytes", fix="name a smaller file", path=str(path))
    return data


@contextmanager
def open_ordinary(path: str | Path) -> Iterator[BinaryIO]:
    """The bytes of an ordinary file, links followed; opening never waits, as a pipe without a writer would."""
    with _translated_errors("read", path):
        handle = os.open(Path(path), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise _config_error("read", path, IsADirectoryError(errno.EISDIR, "is a folder"))
        if not stat.S_ISREG(mode):
            raise InvalidConfig(f"cannot read {path}: it is no ordinary file", fix="name a file", path=str(path))
    except InvalidConfig:
        os.close(handle)
        raise
    with os.fdopen(handle, "rb") as file:
        yield file


def _config_error(act: str, path: str | Path, error: OSError | ValueError) -> InvalidConfig:
    number = error.errno if isinstance(error, OSError) else None
    why, fix = ADVICE.get(number or 0, (str(error), "check the name"))
    return InvalidConfig(f"cannot {act} {path}: {why}", fix=fix, path=str(path))
