"""Entries as files of one folder, named by the digest of their key; no index, no lock.

A file appears whole, by renaming, and never changes after; two processes that write one key write the same plan. So
whatever is killed when, a reader finds a whole file or none. Which entry goes first is told by the times at which the
files were last used. Nothing here raises for what it finds in the folder.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.cache.entry import Entry, Refused, decode_entry
from tmmu.cache.miss import Miss, MissReason
from tmmu.codec.files import LIMIT, is_special, write_atomic
from tmmu.errors import TmmuError
from tmmu.ir.key import Key

SUFFIX: Final = ".entry"
PLANNED: Final = ("preset", "token", "arenas", "nodes")
"""Parts of a key that decide how a graph is planned, and not which graph it is."""
_NAME: Final = re.compile(r"[0-9a-f]{64}-[0-9a-f]{32}\.entry")
_ORPHAN: Final = re.compile(r"\.tmmu-\d+-\d+\.tmp")
COUNT: Final = 4096
"""Entries in a folder at most: who writes lists them all, which takes some 50 ms then."""
ORPHAN_AGE: Final = 3600 * 10**9
"""Nanoseconds after which an unfinished file has no writer any more; one that has would only have to write again."""
EVER: Final = 1 << 63
"""Nanoseconds: later than all times of files, also of those that a wrong clock dated in the future."""
_OPEN: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One file of the folder; ``used`` is when, in nanoseconds, it was last written or served."""

    path: Path
    bytes: int
    used: int

    @property
    def key(self) -> str:
        """The digest of its key, in hexadecimal text, as the name says it."""
        return self.path.name[:64]


def path_of(folder: Path, key: Key) -> Path:
    """Where the entry of ``key`` lies, if it does: its name says which plan it is, and of which graph."""
    return folder / f"{key.digest.hex()}{_of_graph(key)}"


def _of_graph(key: Key) -> str:
    """How the names of all entries end whose graph is that of ``key``."""
    return f"-{key.without(PLANNED).digest.hex()[:32]}{SUFFIX}"


def relatives(folder: Path, key: Key) -> Iterator[Entry]:
    """The intact entries with the graph of ``key``, planned in other ways."""
    end = _of_graph(key)
    for stored in entries(folder):
        if stored.path.name.endswith(end):
            with suppress(Refused):
                yield read_named(stored.path)


def load(folder: Path, key: Key) -> Entry | Miss:
    """The intact entry of ``key``, which is now the last to go; or why there is none."""
    try:
        return read_named(path_of(folder, key), touch=True)
    except Refused as error:
        return error.miss


def read_named(path: Path, *, touch: bool = False) -> Entry:
    """The intact entry in a file that has the name of its key; ``Refused`` for everything else."""
    entry = read_entry(path, touch=touch)
    if path_of(path.parent, entry.key) != path:
        raise Refused(MissReason.FOREIGN, "it is another key's")
    return entry


def read_entry(path: Path, *, touch: bool = False) -> Entry:
    """The intact entry in a file; ``Refused`` for everything else. With ``touch`` it counts as used."""
    try:
        handle = os.open(path, _OPEN)
    except FileNotFoundError as error:
        raise Refused(MissReason.ABSENT) from error
    except OSError as error:
        raise Refused(MissReason.UNREADABLE, error.strerror or "") from error
    try:
        entry = decode_entry(_bytes_of(handle))
        if touch:
            with suppress(OSError):  # a folder that may only be read serves as well
                os.utime(handle if os.utime in os.supports_fd else path)
        return entry
    finally:
        os.close(handle)


def _bytes_of(handle: int) -> bytes:
    """All bytes of an open, ordinary file."""
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise Refused(MissReason.FOREIGN, "it is no ordinary file")
        if about.st_size > LIMIT:
            raise Refused(MissReason.FOREIGN, f"it has more than {LIMIT} bytes")
        with open(handle, "rb", closefd=False) as file:
            return file.read(LIMIT)
    except OSError as error:
        raise Refused(MissReason.UNREADABLE, error.strerror or "") from error


def save(folder: Path, key: Key, data: bytes, *, limit: int) -> str:
    """The entry of ``key`` is on disk, and the folder's entries take at most ``limit`` bytes; or why it is not."""
    if len(data) > limit:
        return f"{len(data)} bytes are more than the cache may hold"
    path = path_of(folder, key)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_symlink() or is_special(path):
            path.unlink()  # an entry is a file of this folder: nothing behind a link is written, and no pipe waits
        write_atomic(path, data)
        sweep(folder, before=path.stat().st_mtime_ns - ORPHAN_AGE)
    except TmmuError as error:
        return error.what
    except OSError as error:
        return f"{folder}: {error.strerror}"
    evict(folder, limit=limit, keep=path)
    return ""


def why_unlisted(folder: Path) -> str:
    """Why nobody can say what the folder holds; nothing where it can be listed, or is not there."""
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or "it cannot be listed"
    return ""


def entries(folder: Path) -> tuple[Stored, ...]:
    """All entries, least recently used first."""
    found = [stored for stored in _files(folder) if _NAME.fullmatch(stored.path.name)]
    return tuple(sorted(found, key=lambda one: (one.used, one.path.name)))


def evict(folder: Path, *, limit: int, count: int = COUNT, keep: Path | None = None) -> tuple[Stored, ...]:
    """There are at most ``count`` entries of ``limit`` bytes; those that went, least recently used first."""
    held = entries(folder)
    total = sum(one.bytes for one in held)
    gone: list[Stored] = []
    for one in held:
        if total <= limit and len(held) - len(gone) <= count:
            break
        if one.path != keep and not remove(one):
            gone.append(one)
            total -= one.bytes
    return tuple(gone)


def surplus(held: Sequence[Stored], *, limit: int) -> tuple[Stored, ...]:
    """The first of the entries, without which the others take at most ``limit`` bytes."""
    total = sum(one.bytes for one in held)
    for number, one in enumerate(held):
        if total <= limit:
            return tuple(held[:number])
        total -= one.bytes
    return tuple(held)


def sweep(folder: Path, *, before: int) -> tuple[Stored, ...]:
    """Unfinished files last written ``before`` this time are gone: what killed writers left."""
    return tuple(one for one in unfinished(folder, before=before) if not remove(one))


def unfinished(folder: Path, *, before: int) -> tuple[Stored, ...]:
    """Files last written ``before`` this time of which no writer has yet made an entry."""
    return tuple(one for one in _files(folder) if _ORPHAN.fullmatch(one.path.name) and one.used < before)


def remove(stored: Stored) -> str:
    """Why the file is still there; nothing where it is gone."""
    try:
        stored.path.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or "it cannot be removed"
    return ""


def _files(folder: Path) -> Iterator[Stored]:
    """What lies there, but for what goes meanwhile; of a file that nobody may ask about, without its size and time."""
    with suppress(OSError), os.scandir(folder) as found:
        for one in found:
            size, used = 0, 0
            try:
                about = one.stat(follow_symlinks=False)
                size, used = about.st_size, about.st_mtime_ns
            except FileNotFoundError:
                continue
            except OSError:
                pass
            yield Stored(path=folder / one.name, bytes=size, used=used)
