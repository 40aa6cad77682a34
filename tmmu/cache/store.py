"""Cache entries as files of one folder, each named by the digest of its key; no index and no lock.

State: the files alone. Invariants: a file appears whole, by an atomic rename, and never changes after; two processes
that write one key write the same bytes of plan. So a reader finds a whole entry or none, whichever process is killed at
whichever moment. Modification times order the entries for eviction. No content of the folder raises an error here,
except ``EntryRefused`` from the readers, which says why a file is no entry.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tmmu.cache.access import shared_folder
from tmmu.cache.entry import Entry, EntryRefused, decode_entry
from tmmu.cache.miss import Miss, MissReason
from tmmu.codec.files import LIMIT, is_special, write_atomic
from tmmu.errors import TmmuError
from tmmu.ir.key import Key

SUFFIX: Final = ".entry"
PLANNING_PARTS: Final = ("preset", "token", "arenas", "nodes")
"""Parts of a key that decide how a graph is planned; the others decide which graph it is."""
_ENTRY_NAME: Final = re.compile(r"[0-9a-f]{64}-[0-9a-f]{32}\.entry")
_UNFINISHED_NAME: Final = re.compile(r"\.tmmu-\d+-\d+\.tmp")
MAX_ENTRIES: Final = 4096
"""Entries of a folder: every write lists them all, which takes some 50 ms for so many."""
UNFINISHED_AGE_NS: Final = 3600 * 10**9
"""Age in ns, one hour, from which an unfinished file counts as abandoned; a writer still at work fails to store."""
END_OF_TIME_NS: Final = 1 << 63
"""In ns, later than any modification time, a wrong clock's included."""
_OPEN_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFile:
    """One file of the folder; ``used_ns`` is the time in ns at which it was last written or served."""

    path: Path
    bytes: int
    used_ns: int

    @property
    def key(self) -> str:
        """The digest of its key as 64 hexadecimal digits, read from the file's name."""
        return self.path.name[:64]


def entry_path(folder: Path, key: Key) -> Path:
    """Path of the entry of ``key``, which need not exist: ``<digest of key>-<digest of the graph's parts>.entry``."""
    return folder / f"{key.digest.hex()}{_graph_suffix(key)}"


def _graph_suffix(key: Key) -> str:
    """Ending shared by the names of all entries for the graph of ``key``."""
    return f"-{key.without_parts(PLANNING_PARTS).digest.hex()[:32]}{SUFFIX}"


def entries_of_graph(folder: Path, key: Key) -> Iterator[Entry]:
    """The intact entries of the graph of ``key``, with any preset, token, arenas and node budget. Lists the folder."""
    suffix = _graph_suffix(key)
    for file in () if shared_folder(folder) else entries(folder):
        if file.path.name.endswith(suffix):
            with suppress(EntryRefused):
                yield read_matching_entry(file.path)


def load(folder: Path, key: Key) -> Entry | Miss:
    """The intact entry of ``key``, now the most recently used; or why there is none."""
    if objection := shared_folder(folder):
        return Miss(MissReason.SHARED, objection)
    try:
        return read_matching_entry(entry_path(folder, key), touch=True)
    except EntryRefused as error:
        return error.miss


def read_matching_entry(path: Path, *, touch: bool = False) -> Entry:
    """The intact entry of a file that is named by the entry's own key; ``EntryRefused`` for everything else."""
    entry = read_entry(path, touch=touch)
    if entry_path(path.parent, entry.key) != path:
        raise EntryRefused(MissReason.FOREIGN, "it is another key's")
    return entry


def read_entry(path: Path, *, touch: bool = False) -> Entry:
    """The intact entry of a file; ``EntryRefused`` for everything else. ``touch`` sets its time of last use to now."""
    try:
        handle = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError as error:
        raise EntryRefused(MissReason.ABSENT) from error
    except OSError as error:
        raise EntryRefused(MissReason.UNREADABLE, error.strerror or "") from error
    try:
        entry = decode_entry(_read_regular_file(handle))
        if touch:
            with suppress(OSError):  # a read-only folder serves as well
                os.utime(handle if os.utime in os.supports_fd else path)
        return entry
    finally:
        os.close(handle)


def _read_regular_file(handle: int) -> bytes:
    """All bytes of an open regular file of at most ``LIMIT`` bytes; ``EntryRefused`` for a pipe, folder or device."""
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise EntryRefused(MissReason.FOREIGN, "it is no ordinary file")
        if status.st_size > LIMIT:
            raise EntryRefused(MissReason.FOREIGN, f"it has more than {LIMIT} bytes")
        with open(handle, "rb", closefd=False) as file:
            return file.read(LIMIT)
    except OSError as error:
        raise EntryRefused(MissReason.UNREADABLE, error.strerror or "") from error


def save(folder: Path, key: Key, data: bytes, *, limit: int) -> str:
    """Writes the entry of ``key``, evicts others down to ``limit`` bytes; returns ``""``, or why it is not stored."""
    if len(data) > limit:
        return f"{len(data)} bytes are more than the cache may hold"
    path = entry_path(folder, key)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if objection := shared_folder(folder):
            return objection
        if path.is_symlink() or is_special(path):
            # Writing through a link would change a file elsewhere, and opening a pipe would block.
            path.unlink()
        write_atomic(path, data)
        remove_unfinished(folder, before=path.stat().st_mtime_ns - UNFINISHED_AGE_NS)
    except TmmuError as error:
        return error.what
    except OSError as error:
        return f"{folder}: {error.strerror}"
    evict(folder, limit=limit, keep=path)
    return ""


def listing_error(folder: Path) -> str:
    """Why the folder cannot be listed or trusted; ``""`` where it can be, or does not exist."""
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or "it cannot be listed"
    return shared_folder(folder)


def entries(folder: Path) -> tuple[EntryFile, ...]:
    """All entries, least recently used first."""
    entry_files = [file for file in _scan_files(folder) if _ENTRY_NAME.fullmatch(file.path.name)]
    return tuple(sorted(entry_files, key=lambda file: (file.used_ns, file.path.name)))


def evict(folder: Path, *, limit: int, count: int = MAX_ENTRIES, keep: Path | None = None) -> tuple[EntryFile, ...]:
    """Removes entries, least recently used first, down to ``count`` of ``limit`` bytes together; returns them."""
    entry_files = entries(folder)
    total = sum(file.bytes for file in entry_files)
    evicted: list[EntryFile] = []
    for file in entry_files:
        if total <= limit and len(entry_files) - len(evicted) <= count:
            break
        if file.path != keep and not remove(file):
            evicted.append(file)
            total -= file.bytes
    return tuple(evicted)


def entries_over_limit(entry_files: Sequence[EntryFile], *, limit: int) -> tuple[EntryFile, ...]:
    """The shortest prefix of the entries without which the others take at most ``limit`` bytes."""
    total = sum(file.bytes for file in entry_files)
    for index, file in enumerate(entry_files):
        if total <= limit:
            return tuple(entry_files[:index])
        total -= file.bytes
    return tuple(entry_files)


def remove_unfinished(folder: Path, *, before: int) -> tuple[EntryFile, ...]:
    """Removes the files of killed writers that were last written ``before`` this time in ns; returns them."""
    return tuple(file for file in unfinished_files(folder, before=before) if not remove(file))


def unfinished_files(folder: Path, *, before: int) -> tuple[EntryFile, ...]:
    """Temporary files last written ``before`` this time in ns that no writer has renamed to an entry."""
    temporary = (file for file in _scan_files(folder) if _UNFINISHED_NAME.fullmatch(file.path.name))
    return tuple(file for file in temporary if file.used_ns < before)


def remove(file: EntryFile) -> str:
    """Removes the file; returns ``""``, or why it is still there."""
    try:
        file.path.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or "it cannot be removed"
    return ""


def _scan_files(folder: Path) -> Iterator[EntryFile]:
    """All names of the folder; files that vanish meanwhile are left out, those without access have size and time 0."""
    with suppress(OSError), os.scandir(folder) as items:
        for item in items:
            size, used_ns = 0, 0
            try:
                status = item.stat(follow_symlinks=False)
                size, used_ns = status.st_size, status.st_mtime_ns
            except FileNotFoundError:
                continue
            except OSError:
                pass
            yield EntryFile(path=folder / item.name, bytes=size, used_ns=used_ns)
