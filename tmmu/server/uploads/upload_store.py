"""Uploads on disk: a folder for each client, a file for each tensor, named by the BLAKE3 of its bytes.

A file that is not whole ends in ``.part``: its length says how much is there, so that a client or a server that is
killed costs no more than the part under way. A whole one was hashed, is on disk before it gets its name, and is never
written again.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final

from blake3 import blake3

from tmmu.errors import InvalidConfig, InvalidRequest, QuotaExceeded, WireBroken
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

    def put(self, client: str, part: UploadPart, payload: memoryview) -> int:
        """Adds a part, if it begins where those that are there end; returns how many bytes are there then.

        ``WIRE_BROKEN`` where the last one makes other bytes than the hash says: nothing of them stays.
        """
        contents = part.contents
        if not len(payload) or part.offset + len(payload) > contents.bytes:
            raise InvalidRequest("a part that its tensor has not", fix="use a client of this version")
        with self._locks[client]:
            received = self._received(client, contents)
            if received != part.offset:
                return received
            self._make_room(client, len(payload), contents.hash)
            unfinished = self._path(client, contents.hash, _PART)
            try:
                unfinished.parent.mkdir(mode=0o700, exist_ok=True)
                with unfinished.open("ab") as file:
                    file.write(payload)
            except OSError as error:
                raise QuotaExceeded(
                    f"the server has no room for uploads: {error.strerror}", fix="try again when it has"
                ) from error
            if part.offset + len(payload) == contents.bytes:
                self._finish(unfinished, contents)
            return part.offset + len(payload)

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
            if size == contents.bytes and file is path:
                return size
            if size < contents.bytes and file is unfinished:
                return size
            file.unlink()  # of another length than was said, so of another tensor, or cut by a machine that went down
        return 0

    def _finish(self, unfinished: Path, contents: TensorContents) -> None:
        if blake3().update_mmap(unfinished).digest() != contents.hash:
            unfinished.unlink()
            raise WireBroken("a tensor has another hash than was said", fix="send it again")
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(unfinished.with_suffix(""))

    def _make_room(self, client: str, size: int, name: bytes) -> None:
        """Deletes what was used longest ago until the client may have so many bytes, and a file, more."""
        folder = self._folder / self._folder_of(client)
        if not folder.exists():
            return
        files = sorted((entry.stat().st_mtime_ns, entry.name, entry.stat().st_size) for entry in os.scandir(folder))
        used, count = sum(length for _, _, length in files), len(files)
        for _, file, length in files:
            if (used + size > self._most or count >= MOST_FILES) and not file.startswith(name.hex()):
                (folder / file).unlink()
                used, count = used - length, count - 1
        if used + size > self._most:
            raise QuotaExceeded(f"more than {self._most} bytes of uploads", fix="upload less")

    def _path(self, client: str, name: bytes, suffix: str = "") -> Path:
        return self._folder / self._folder_of(client) / f"{name.hex()}{suffix}"
