"""Calls that move a tensor, or change how large its storage is: no op of a program, but other windows from then on.

``resize_``, ``set_``, ``t_`` and their kind change a tensor's window; ``untyped_storage().resize_`` changes a storage,
and so does an ``out=`` argument of another size than the result. A storage that shrinks stays one buffer, of which what
was cut off cannot be read again. One that grows, after it was shrunk too, is another buffer from then on, which begins
with the bytes that there were; so a storage that is freed and filled again is two buffers, as in memory, also where it
was freed before the step began. What belongs to the caller (inputs, weights, constants) keeps its storage. In that it
may be cut or transposed for a while, as ``context_parallel`` cuts a sequence, and must lie as before when the step
ends, which would leave it another object.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.program import Window
from tmmu.passes.capture.record.graph_builder import GraphBuilder
from tmmu.torch_private import DisableTorchFunction, OpOverload

_RESIZE_STORAGE_BYTES: Final = "inductor.resize_storage_bytes_.default"
"""By name: it comes with Dynamo. What else only moves a tensor is tagged so."""

_RESIZE_STORAGE: Final = "resize_ of a storage"


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies before a call; ``window`` for the caller's own tensors alone."""

    tensor: torch.Tensor
    window: Window | None
    storage: torch.UntypedStorage
    bytes: int


@dataclass(frozen=True, slots=True)
class _Moved:
    """A tensor of the caller's that ``call``, on the line ``source``, was the first to move from ``window``."""

    tensor: "weakref.ref[torch.Tensor]"
    window: Window
    call: str
    source: str


class StorageChanges:
    """Follows such calls for one recording: ``source`` is the user's line, ``pause`` a block that is not recorded.

    ``_moved`` has by id what calls moved of the caller's, weakly: what nobody holds is nobody's other object.
    """

    def __init__(
        self, builder: GraphBuilder, source: Callable[[], str], pause: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._builder, self._source, self._pause = builder, source, pause
        self._moved: dict[int, _Moved] = {}

    @staticmethod
    def places(func: OpOverload) -> bool:
        """Whether the operator does nothing but place a tensor."""
        return torch.Tag.inplace_view in func.tags or str(func) == _RESIZE_STORAGE_BYTES

    def observe(self, tensors: Sequence[torch.Tensor]) -> list[TensorPlace]:
        """Where the tensors lie, for ``follow`` after a call that may move them or resize their storages."""
        placements = []
        for tensor in tensors:
            storage = tensor.untyped_storage()
            window = self._builder.table.window_of(tensor) if self._builder.is_declared(tensor) else None
            placements.append(TensorPlace(tensor, window, storage, storage.nbytes()))
        return placements

    def follow(self, name: str, before: Sequence[TensorPlace], *, keep: bool) -> None:
        """Follows what the call did; with ``keep`` a grown storage keeps its bytes.

        ``UNSUPPORTED_OP`` for a caller's storage of another size, and for a caller's tensor on another storage. A
        storage to which a tensor was moved may have grown too: the table knows what it was.
        """
        table = self._builder.table
        for placement in before:
            if placement.window is not None:
                self._follow_caller(name, placement.tensor, placement.window)
            self._follow_storage(name, placement.storage, placement.bytes, keep=keep)
            moved_to = placement.tensor.untyped_storage()
            known = table.id_of_storage(moved_to)
            if known is not None:
                self._follow_storage(name, moved_to, table.bytes_of(known), keep=keep)

    def _follow_caller(self, name: str, tensor: torch.Tensor, window: Window) -> None:
        """Notes where a tensor of the caller's lay before the first call that moves it."""
        now = self._builder.table.window_of(tensor)
        # A caller's storage may come without bytes, which a fake one does not show: sizing it moves it.
        if name == _RESIZE_STORAGE_BYTES or now is None or now.storage != window.storage:
            raise self._refusal(name, window.storage, self._source())
        if now != window:
            self._moved.setdefault(id(tensor), _Moved(weakref.ref(tensor), window, name, self._source()))

    def require_put_back(self) -> None:
        """``UNSUPPORTED_OP`` for a tensor of the caller's that lies otherwise now than before the step."""
        for moved in self._moved.values():
            tensor = moved.tensor()
            if tensor is not None and self._builder.table.window_of(tensor) != moved.window:
                raise self._refusal(moved.call, moved.window.storage, moved.source)

    def put_back(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let these lie as before the step, where calls moved them; it is no call of the program."""
        for tensor in tensors:
            moved = self._moved.pop(id(tensor), None)
            if moved is not None:
                offset = moved.window.offset // tensor.element_size()
                with self._pause(), torch.no_grad():
                    tensor.as_strided_(moved.window.shape, moved.window.stride, offset)

    @contextmanager
    def intercept(self) -> Iterator[None]:
        """Block in which ``untyped_storage().resize_``, which is no operator, is followed too."""
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            before = storage.nbytes()
            result = original(storage, size)
            with DisableTorchFunction():
                self._follow_storage(_RESIZE_STORAGE, storage, before, keep=True)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            del torch.UntypedStorage.resize_

    def _follow_storage(self, name: str, storage: torch.UntypedStorage, before: int, *, keep: bool) -> None:
        known, size = self._builder.table.id_of_storage(storage), storage.nbytes()
        if size == before or (known is None and before):
            return
        if known is not None and self._builder.table.role_of(known) is not None:
            raise self._refusal(name, known, self._source())
        if known is not None and size < before:
            self._builder.table.shrink(known, size)
            return
        with self._pause():
            grown = torch.empty(size, dtype=torch.uint8)
        self._builder.add_call(torch.ops.aten.empty.memory_format, ([size],), {"dtype": torch.uint8}, grown, ())
        self._builder.replace_storage(storage, grown, before if keep else 0)

    def _refusal(self, name: str, storage: int, source: str) -> UnsupportedOp:
        return UnsupportedOp(
            f"{source + ': ' if source else ''}{name} changes where {self._builder.table.name_of(storage)} lies, which "
            "outlives the step",
            fix="let it lie as before when the step ends, or work on a copy, and write values with copy_",
            **({"where": source} if source else {}),
        )
