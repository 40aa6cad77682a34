"""The storages of a trace: their ids, roles and names, and the window of any tensor on one of them.

A storage gets its id when a tensor on it is declared (weights, inputs), met as a constant, or first returned by a
recorded call. Ids count from 0 in that order and are never given back. Storages are told apart by the address of
their C++ object, which fake tensors share and keep as real ones do.

Nothing here keeps a storage: it dies when the program drops it, as in eager, and ``on_death`` hears its id at that
moment. Its address is forgotten then, for torch gives it to the next one. Spans of a plan come from calls and not from
these lifetimes; what eager holds does (``lifetimes.py``).

A storage that grows is another buffer from then on (``storage_changes.py``): its C++ object gets the id of that one.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import torch
from torch import fx

from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import DTYPE_BYTES
from tmmu.passes.capture.program import Storage, Window
from tmmu.passes.capture.record.places import is_host_storage
from tmmu.torch_private import cpp_address

CALL: Final = "call"
"""Key of a node's metadata: its position among the calls that eager makes."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One storage; ``maker`` is the node that declared it or returned it first."""

    storage: Storage
    maker: fx.Node


@dataclass(frozen=True, slots=True)
class _Watched:
    """A C++ storage that lives: the id that it has now, and the weak reference to it.

    ``decides``: the program has this form alone, and with it goes the storage.
    """

    id: int
    reference: "weakref.ref[torch.UntypedStorage]"
    decides: bool


class StorageTable:
    """Storages by id and by identity. Every look-up is ``O(1)``. ``on_death`` must keep no reference to tensors.

    ``on_host``: the ids of those that are no memory of the device's.
    """

    def __init__(self, on_death: Callable[[int], None] = lambda _: None) -> None:
        self._watched: dict[int, _Watched] = {}
        self._entries: list[_Entry] = []
        self._forms: list[int] = []
        self._shrunk: dict[int, int] = {}
        self._on_death = on_death
        self.on_host: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, tensor: torch.Tensor, maker: fx.Node, *, role: str | None = None, name: str = "") -> None:
        """Give the tensor's storage, which must be unknown, the next id."""
        handle = _storage_of(tensor)
        self._entries.append(_Entry(Storage(bytes=handle.nbytes(), role=role, name=name), maker))
        self._forms.append(0)
        self._watch(handle, len(self._entries) - 1)
        if is_host_storage(handle):
            self.on_host.add(len(self._entries) - 1)

    def add_alias(self, tensor: torch.Tensor, storage: int) -> None:
        """Take the tensor's storage for the form that the program has of the one with this id."""
        self._watch(_storage_of(tensor), storage, decides=True)

    def move(self, handle: torch.UntypedStorage, storage: int) -> None:
        """Let this handle, which had another id, mean the storage with this one from now on."""
        before = self._watched.pop(cpp_address(handle), None)
        self._watch(handle, storage)
        if before is not None:
            self._lose_form(before.id)

    def _watch(self, handle: torch.UntypedStorage, storage: int, *, decides: bool = False) -> None:
        address = cpp_address(handle)
        self._watched[address] = _Watched(storage, weakref.ref(handle, partial(self._forget, address)), decides)
        self._forms[storage] += 1

    def _forget(self, address: int, reference: "weakref.ref[torch.UntypedStorage]") -> None:
        """The storage at this address is gone, and may be another's from now on."""
        watched = self._watched.get(address)
        if watched is not None and watched.reference is reference:
            del self._watched[address]
            self._lose_form(watched.id, decides=watched.decides)

    def _lose_form(self, storage: int, *, decides: bool = False) -> None:
        self._forms[storage] -= 1
        if decides or not self._forms[storage]:
            self._on_death(storage)

    def shrink(self, storage: int, size: int) -> None:
        """Of the storage with this id, bytes from ``size`` on are gone."""
        self._shrunk[storage] = size
        if not size:
            self._on_death(storage)

    def is_freed(self, window: Window) -> bool:
        """Whether the window reaches into bytes that are gone."""
        size = self._shrunk.get(window.storage)
        return size is not None and end_of(window) > size

    def id_of(self, tensor: torch.Tensor) -> int | None:
        """The id of the tensor's storage, or ``None`` where it is unknown."""
        return self.id_of_storage(_storage_of(tensor))

    def id_of_storage(self, handle: torch.UntypedStorage) -> int | None:
        """The id of a storage, or ``None`` where it is unknown."""
        watched = self._watched.get(cpp_address(handle))
        return None if watched is None else watched.id

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

    def first_bytes_of(self, storage: int) -> int:
        """The storage's size when it became known."""
        return self._entries[storage].storage.bytes

    def storages(self) -> tuple[Storage, ...]:
        """All storages by id, each of the size at which it became known."""
        return tuple(entry.storage for entry in self._entries)

    def living(self) -> tuple[int, ...]:
        """Storages that a call made and that somebody still holds; none of which all bytes are gone."""
        return tuple(
            number
            for number, entry in enumerate(self._entries)
            if entry.storage.role is None and self._forms[number] and self._shrunk.get(number) != 0
        )

    def handles(self) -> list[torch.UntypedStorage]:
        """The storages that live, as objects; without the random states, which the recorder keeps."""
        eagers = [entry for entry in self._watched.values() if _is_eagers(self.maker_of(entry.id))]
        return [handle for entry in eagers if (handle := entry.reference()) is not None]

    def window_of(self, tensor: torch.Tensor) -> Window | None:
        """The tensor's window, or ``None`` where its storage is unknown."""
        storage = self.id_of(tensor)
        if storage is None:
            return None
        dtype, width = _name_and_width(tensor.dtype)
        shape, offset = tuple(tensor.shape), int(tensor.storage_offset()) * width
        if 0 in shape:  # a slice of nothing may begin beyond the end of its storage
            offset = min(offset, self.bytes_of(storage))
        bits = tensor.is_conj(), tensor.is_neg()
        return Window(storage, offset, shape, tensor.stride(), dtype, *bits)

    def window(self, tensor: torch.Tensor) -> Window:
        """The window of a tensor whose storage is known."""
        window = self.window_of(tensor)
        assert window is not None  # callers add the storage first
        return window


@cache
def _name_and_width(dtype: torch.dtype) -> tuple[str, int]:
    """``float32`` and 4 bytes; ``UNSUPPORTED_OP`` for a dtype that is not modelled."""
    name = str(dtype)[6:]
    width = DTYPE_BYTES.get(name)
    if width is None:
        raise UnsupportedOp(f"tensors of dtype {name} are not modelled", fix="use a dense, non-quantized dtype")
    return name, width


def _is_eagers(maker: fx.Node) -> bool:
    return maker.op == "placeholder" or CALL in maker.meta


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
