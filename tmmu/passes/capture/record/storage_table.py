"""The storages of a trace: their ids, roles and names, and the window of any tensor on one of them.

A storage gets its id when a tensor on it is declared (weights, inputs), met as a constant, or first returned by a
recorded call. Ids count from 0 in that order and are never given back. Storages are told apart by the address of
their C++ object, which fake tensors share and keep as real ones do. The table keeps every storage that it knows alive:
the address of one that was freed would come back as another's. That costs no memory, since fake storages have no
bytes, and changes no plan, since spans come from calls and not from Python's lifetimes. Tensors it does not keep, or
autograd's graph would live as long as the trace.

A storage that grows is another buffer from then on (``storage_changes.py``): its C++ object gets the id of that one.
"""

from dataclasses import dataclass

import torch
from torch import fx

from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import DTYPE_BYTES
from tmmu.passes.capture.program import Storage, Window
from tmmu.torch_private import cpp_address, storage_use_count


@dataclass(frozen=True, slots=True)
class _Entry:
    """One storage; ``maker`` is the node that declared it or returned it first."""

    storage: Storage
    handle: torch.UntypedStorage
    maker: fx.Node


class StorageTable:
    """Storages by id and by identity. Every look-up is ``O(1)``."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        self._entries: list[_Entry] = []
        self._aliases: list[torch.UntypedStorage] = []
        self._shrunk: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, tensor: torch.Tensor, maker: fx.Node, *, role: str | None = None, name: str = "") -> None:
        """Give the tensor's storage, which must be unknown, the next id."""
        handle = _storage_of(tensor)
        self._ids[cpp_address(handle)] = len(self._entries)
        self._entries.append(_Entry(Storage(bytes=handle.nbytes(), role=role, name=name), handle, maker))

    def add_alias(self, tensor: torch.Tensor, storage: int) -> None:
        """Take the tensor's storage for another form of the one with this id."""
        handle = _storage_of(tensor)
        self._ids[cpp_address(handle)] = storage
        self._aliases.append(handle)

    def move(self, handle: torch.UntypedStorage, storage: int) -> None:
        """Let this handle, which had another id, mean the storage with this one from now on."""
        self._ids[cpp_address(handle)] = storage
        self._aliases.append(handle)

    def shrink(self, storage: int, size: int) -> None:
        """Of the storage with this id, bytes from ``size`` on are gone."""
        self._shrunk[storage] = size

    def is_freed(self, window: Window) -> bool:
        """Whether the window reaches into bytes that are gone."""
        size = self._shrunk.get(window.storage)
        return size is not None and end_of(window) > size

    def id_of(self, tensor: torch.Tensor) -> int | None:
        """The id of the tensor's storage, or ``None`` where it is unknown."""
        return self._ids.get(cpp_address(_storage_of(tensor)))

    def id_of_storage(self, handle: torch.UntypedStorage) -> int | None:
        """The id of a storage, or ``None`` where it is unknown."""
        return self._ids.get(cpp_address(handle))

    def role_of(self, storage: int) -> str | None:
        """The role under which it was declared; ``None`` for one that the program made."""
        return self._entries[storage].storage.role

    def name_of(self, storage: int) -> str:
        """The role and name under which it was declared."""
        entry = self._entries[storage].storage
        return f"{entry.role} {entry.name}"

    def maker_of(self, storage: int) -> fx.Node:
        """The node that declared the storage or returned it first."""
        return self._entries[storage].maker

    def bytes_of(self, storage: int) -> int:
        """The storage's size now: that at which it became known, or to which it was cut."""
        return self._shrunk.get(storage, self._entries[storage].storage.bytes)

    def storages(self) -> tuple[Storage, ...]:
        """All storages by id, each of the size at which it became known."""
        return tuple(entry.storage for entry in self._entries)

    def held_by_others(self) -> tuple[int, ...]:
        """Storages that a call entries and that something beside this table still holds."""
        entries = [(number, entry) for number, entry in enumerate(self._entries) if entry.storage.role is None]
        return tuple(number for number, entry in entries if storage_use_count(cpp_address(entry.handle)) > 1)

    def window_of(self, tensor: torch.Tensor) -> Window | None:
        """The tensor's window, or ``None`` where its storage is unknown."""
        storage = self.id_of(tensor)
        if storage is None:
            return None
        dtype = str(tensor.dtype)[6:]
        width = DTYPE_BYTES.get(dtype)
        if width is None:
            raise UnsupportedOp(f"tensors of dtype {dtype} are not modelled", fix="use a dense, non-quantized dtype")
        offset = int(tensor.storage_offset()) * width
        if tensor.numel() == 0:  # a slice of nothing may begin beyond the end of its storage
            offset = min(offset, self.bytes_of(storage))
        bits = tensor.is_conj(), tensor.is_neg()
        return Window(storage, offset, tuple(tensor.shape), tensor.stride(), dtype, *bits)

    def window(self, tensor: torch.Tensor) -> Window:
        """The window of a tensor whose storage is known."""
        window = self.window_of(tensor)
        assert window is not None  # callers add the storage first
        return window


def end_of(window: Window) -> int:
    """Byte offset in its storage at which the window ends; that at which it begins where it has no elements."""
    if 0 in window.shape:
        return window.offset
    reach = sum((size - 1) * step for size, step in zip(window.shape, window.stride, strict=True))
    return window.offset + (reach + 1) * DTYPE_BYTES[window.dtype]


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    if tensor.layout is not torch.strided:
        raise UnsupportedOp(f"tensors of layout {tensor.layout} are not modelled", fix="make the tensor dense")
    return tensor.untyped_storage()
