"""Contents of one connection: storages by the numbers that their client gave them, within its client's quota."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Final

import torch

from tmmu.errors import InvalidRequest, ReferenceStale
from tmmu.runtime.memory.slab import Slab, row_major_bytes
from tmmu.server.graphs.checked_graph import dtype_named, require_window
from tmmu.server.graphs.graph_limits import ClientUsage
from tmmu.wire.graph import ContentWindow

LEAST_MAPPED: Final = 1 << 20
"""Bytes of a file below which it is read: a process has 65,530 maps, and one client is not to take all."""


def view_window(slab: Slab, window: ContentWindow) -> torch.Tensor:
    """The tensor that a window is; the window was checked."""
    dtype = dtype_named(window.dtype)
    return slab.view(window.offset * dtype.itemsize, window.shape, window.stride, dtype)


def bytes_shown(window: ContentWindow) -> int:
    """Bytes of the elements of a window."""
    return prod(window.shape) * dtype_named(window.dtype).itemsize


def tensor_of_file(path: Path, size: int) -> torch.Tensor:
    """``uint8[size]``: the bytes of a file, which stays as it is. ``REFERENCE_STALE`` where it went.

    Of 1 MiB and more it is the pages of the file, shared with all who map it until one writes: those are its own then.
    """
    try:
        if size >= LEAST_MAPPED:
            return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        tensor = torch.empty(size, dtype=torch.uint8)
        if size:
            tensor.numpy().data[:] = path.read_bytes()
        return tensor
    except (RuntimeError, FileNotFoundError, ValueError) as error:  # ValueError: of another length
        raise ReferenceStale("an upload was deleted to make room", fix="upload it again") from error


class ContentStore:
    """A client gives no number twice, so that one which was freed stays stale."""

    def __init__(self, usage: ClientUsage) -> None:
        self._usage, self._slabs, self._booleans = usage, dict[int, Slab](), set[int]()

    def __len__(self) -> int:
        return len(self._slabs)

    def __contains__(self, content: int) -> bool:
        return content in self._slabs

    def slab(self, content: int) -> Slab:
        """The storage of a content; ``REFERENCE_STALE`` for one that is not there."""
        if content not in self._slabs:
            raise ReferenceStale(f"content {content} is not there: it was freed", fix="make the tensor again")
        return self._slabs[content]

    def require_new(self, contents: Sequence[int]) -> None:
        """``INVALID_REQUEST`` for numbers that are taken, or come twice."""
        if len(set(contents)) < len(contents) or any(content in self._slabs for content in contents):
            raise InvalidRequest("contents of numbers that are taken", fix="number each content once")

    def add(self, content: int, tensor: torch.Tensor) -> None:
        """Keeps the storage of a tensor that begins with it. Its bytes are reserved already."""
        self._slabs[content] = Slab.over(tensor)
        if tensor.dtype is torch.bool:
            self._booleans.add(content)

    def require_booleans(self, contents: Iterable[int]) -> None:
        """``INVALID_REQUEST`` for a content with a byte above 1; looked at once, while it is written as booleans."""
        for content in contents:
            slab = self.slab(content)
            if content not in self._booleans and slab.size and int(slab.bytes(0, slab.size).max()) > 1:
                raise InvalidRequest("bytes that are read as booleans are neither 0 nor 1", fix="compare with 0")
            self._booleans.add(content)

    def note_numbers(self, contents: Iterable[int]) -> None:
        """They were written as anything but booleans."""
        self._booleans.difference_update(contents)

    def free(self, contents: Sequence[int]) -> None:
        """Lets go of contents; those that are not there are no fault, since a failed run keeps none."""
        for content in contents:
            self._booleans.discard(content)
            slab = self._slabs.pop(content, None)
            if slab is not None:
                self._usage.release(slab.size, 1)

    def clear(self) -> None:
        """Lets go of all."""
        self.free(tuple(self._slabs))

    def fetch(self, windows: Sequence[ContentWindow], most_elements: int) -> Iterator[memoryview]:
        """The elements of each window, row-major, in bytes of their own."""
        for window in windows:
            slab = self.slab(window.content)
            require_window(window, slab.size, most_elements)
            data = row_major_bytes(view_window(slab, window))
            yield memoryview(bytes(data.numpy().data))
