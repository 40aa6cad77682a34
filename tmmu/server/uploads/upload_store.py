"""Uploads on disk: a folder for each client, a file for each tensor, named by the BLAKE3 of its bytes.

A file that is not whole ends in ``.part``: its length says how much is there, so that a client or a server that is
killed costs no more than the part under way. A whole one was hashed, is on disk before it gets its name, and is never
written again.
"""

import os
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from blake3 import blake3

from tmmu.errors import InvalidConfig, InvalidRequest, QuotaExceeded, WireBroken
from tmmu.wire.interface import Payloads
from tmmu.wire.upload_messages import TensorContents, UploadPart

_PART: Final = ".part"
MOST_FILES: Final = 16_384
"""Of one client, however few bytes they are."""


class UploadStore:
    """``most_bytes``: of one client. ``folder_of``: the name of a client's folder, which other keys never get.

    Used by all worker threads. ``INVALID_CONFIG`` where the folder cannot be made.
    """

    def __init__(self, folder: Path, most_bytes: int, folder_of: Callable[[str], str]) -> None:
        self._folder, self._most, self._folder_of = folder, most_bytes, folder_of
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfig(
                f"upload_folder {folder}: {error.strerror}", fix="name a folder of this user"
            ) from error

    def received(self, client: str, tensors: tuple[TensorContents, ...]) -> tuple[int, ...]:
        """How many bytes of each are there; they are used from now on, as far as others are to make room.

        ``QUOTA_EXCEEDED`` where a client may not have all of them.
        """
        size = sum({tensor.hash: tensor.bytes for tensor in tensors}.values())
        if size > self._most:
            raise QuotaExceeded(
                f"{size} bytes of uploads, of {self._most} that a client may have",
                fix="upload less, or have the server set upload_bytes",
            )
        with self._locks[client]:
            return tuple(self._received(client, tensor) for tensor in tensors)

    def put(self, client: str, parts: Sequence[UploadPart], payloads: Payloads) -> tuple[int, ...]:
        """Adds parts that begin where those that are there end; how many bytes of the tensor of each are there then.

        ``WIRE_BROKEN`` where a last one makes other bytes than its hash says: nothing of that tensor stays. Looks at
        the client's folder once.
        """
        for part, payload in zip(parts, payloads, strict=True):
            if not len(payload) or part.offset + len(payload) > part.contents.bytes:
                raise InvalidRequest("a part that its tensor has not", fix="use a client of this version")
        with self._locks[client]:
            received = {part.contents: self._received(client, part.contents) for part in parts}
            room = _Room(self._folder / self._folder_of(client), self._most, {part.contents.hash for part in parts})
            for part, payload in zip(parts, payloads, strict=True):
                if received[part.contents] == part.offset:
                    room.take(len(payload), files=int(not part.offset))
                    self._append(client, part.contents, payload)
                    received[part.contents] += len(payload)
            return tuple(received[part.contents] for part in parts)

    def whole_file(self, client: str, contents: TensorContents) -> Path | None:
        """The file of a tensor that is there to its last byte; its name may go, what was opened stays."""
        with self._locks[client]:
            whole = self._received(client, contents) == contents.bytes
        return self._path(client, contents.hash) if whole else None

    def _received(self, client: str, contents: TensorContents) -> int:
        path, unfinished = self._path(client, contents.hash), self._path(client, contents.hash, _PART)
        for file in (path, unfinished):
            try:
                size = file.stat().st_size
                os.utime(file)
            except FileNotFoundError:
                continue
            if size < contents.bytes and file is unfinished:
                return size
            if size == contents.bytes and (file is path or _finish(file, contents)):
                return size
            file.unlink(missing_ok=True)  # of another length or hash than was said: another tensor, or cut by a crash
        return 0

    def _append(self, client: str, contents: TensorContents, payload: memoryview) -> None:
        unfinished = self._path(client, contents.hash, _PART)
        try:
            unfinished.parent.mkdir(mode=0o700, exist_ok=True)
            with unfinished.open("ab") as file:
                file.write(payload)
                size = file.tell()
        except OSError as error:
            raise QuotaExceeded(
                f"the server has no room for uploads: {error.strerror}", fix="try again when it has"
            ) from error
        if size == contents.bytes and not _finish(unfinished, contents):
            raise WireBroken("a tensor has another hash than was said", fix="send it again")

    def _path(self, client: str, name: bytes, suffix: str = "") -> Path:
        return self._folder / self._folder_of(client) / f"{name.hex()}{suffix}"


class _Room:
    """Room in a client's folder, which is looked at once. ``names``: of tensors that do not go for others."""

    def __init__(self, folder: Path, most: int, names: Collection[bytes]) -> None:
        entries = list(os.scandir(folder)) if folder.exists() else []
        files = sorted((entry.stat().st_mtime_ns, entry.name, entry.stat().st_size) for entry in entries)
        self._folder, self._most = folder, most
        self._used, self._count = sum(size for _, _, size in files), len(files)
        stay = {name.hex() for name in names}
        self._oldest = deque((file, size) for _, file, size in files if file.removesuffix(_PART) not in stay)

    def take(self, size: int, *, files: int) -> None:
        """Deletes what was used longest ago until so much more fits; ``QUOTA_EXCEEDED`` where it cannot."""
        while self._used + size > self._most or self._count + files > MOST_FILES:
            if not self._oldest:
                raise QuotaExceeded(f"more than {self._most} bytes of uploads, or too many", fix="upload less")
            file, length = self._oldest.popleft()
            (self._folder / file).unlink(missing_ok=True)
            self._used, self._count = self._used - length, self._count - 1
        self._used, self._count = self._used + size, self._count + files


def _finish(unfinished: Path, contents: TensorContents) -> bool:
    """Whether a file has the hash that was said: it is on disk then, and gets its name; else it is gone."""
    if blake3().update_mmap(unfinished).digest() != contents.hash:
        unfinished.unlink()
        return False
    with unfinished.open("rb+") as file:
        os.fsync(file.fileno())
    unfinished.replace(unfinished.with_suffix(""))
    return True
