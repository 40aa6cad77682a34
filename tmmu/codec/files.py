"""Files on disk: whole or not at all.

Writing goes through a file of another name in the same folder, so that whoever reads, and whoever pulls the plug,
finds the old contents or the new ones and nothing between.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.errors import InvalidConfig, PlanCorrupt

_UNFINISHED: Final = re.compile(r"\.tmmu-(\d{1,9})-\d+\.tmp")
LIMIT: Final = 1 << 29
"""Bytes that a reader accepts: a plan of some ten million buffers. The largest model traced so far needs 4 MB."""

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


def write_together(files: Sequence[tuple[str | Path, bytes]]) -> None:
    """Every path holds its data, as by ``write_atomic``; where one cannot be written, all hold what they held.

    All contents are on disk before the first file gets its name, so only the naming itself can part them.
    """
    staged: list[_Staged] = []
    try:
        for path, data in files:
            with _refused("write", path):
                _stage(path, data, staged)
        for path, data in files:
            if is_special(Path(path)):
                with _refused("write", path), Path(path).open("ab") as file:
                    file.write(data)
        for one in staged:
            with _refused("write", one.path):
                one.other.replace(one.target)
    except BaseException:
        for one in staged:
            with suppress(OSError):
                one.other.unlink()
        raise
    for folder in dict.fromkeys(one.target.parent for one in staged):
        _sync_folder(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    """The contents of ``target``, complete under the name ``other``; ``path`` is what the caller called it."""

    path: str | Path
    target: Path
    other: Path


def _stage(path: str | Path, data: bytes, staged: list[_Staged]) -> None:
    """Adds the file to ``staged``, where it is one that can be renamed."""
    if is_special(Path(path)):
        return
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
    handle, other = _beside(target)
    staged.append(_Staged(path=path, target=target, other=other))
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def is_special(path: Path) -> bool:
    """Whether it exists and is a device, a pipe, or a name for an open stream: nothing can lie beside it."""
    parts = Path(os.path.abspath(path)).parts  # noqa: PTH100 - links are not followed
    stream = parts[1:2] in (("dev",), ("proc",)) and parts[2:3] != ("shm",)
    return path.exists() and not path.is_dir() and (stream or not path.is_file())


@contextmanager
def _refused(act: str, path: str | Path) -> Iterator[None]:
    """What the system refuses becomes ``InvalidConfig``."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _refusal(act, path, error) from error


def _beside(target: Path) -> tuple[int, Path]:
    """A new, open file next to ``target``, with the permissions of any new file."""
    for attempt in range(1 << 16):
        other = target.with_name(f".tmmu-{os.getpid()}-{attempt}.tmp")
        with suppress(FileExistsError):
            return os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), other
    raise OSError(errno.EEXIST, "too many temporary files", str(target.parent))


def remove_unfinished(folder: Path) -> None:
    """What writers below the folder left that were killed is gone; files of running ones stay."""
    for path in folder.rglob(".tmmu-*.tmp"):
        name = _UNFINISHED.fullmatch(path.name)
        if name and not _runs(int(name[1])):
            with suppress(OSError):
                path.unlink()


def _runs(process: int) -> bool:
    """Whether there is such a process, or nobody can say."""
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
    """All bytes of a file of at most ``limit``; ``InvalidConfig`` if it cannot be read, ``PlanCorrupt`` if larger."""
    with _refused("read", path), Path(path).open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise PlanCorrupt(f"{path} has more than {limit} bytes", fix="name a graph or plan file", path=str(path))
    return data


def read_ordinary(path: Path) -> bytes:
    """As ``read_file``, of an ordinary file alone: nothing waits for whoever writes into a pipe."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InvalidConfig(f"cannot read {path}: it is no ordinary file", fix="put a file there", path=str(path))
    return read_file(path)


def _refusal(act: str, path: str | Path, error: OSError | ValueError) -> InvalidConfig:
    number = error.errno if isinstance(error, OSError) else None
    why, fix = ADVICE.get(number or 0, (str(error), "check the name"))
    return InvalidConfig(f"cannot {act} {path}: {why}", fix=fix, path=str(path))
