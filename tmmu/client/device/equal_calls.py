"""Calls that were recorded, by what they compute: an equal one is not recorded again."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import ref

import msgspec
from blake3 import blake3

from tmmu.client.device.call_encoding import EncodedCall
from tmmu.client.device.contents import Content, RemoteStorage
from tmmu.client.device.recording import encode_form
from tmmu.passes.shapes.inference import TensorGeometry
from tmmu.wire.graph import ContentWindow

_MOST_EQUAL: Final = 4096


@dataclass(frozen=True, slots=True)
class _EqualCall:
    """What a call has made: its results as (content, version, window), by weak references."""

    results: tuple[tuple["ref[Content]", int, TensorGeometry], ...]


class EqualCalls:
    """The last calls that neither wrote nor drew.

    Invariant: a call is equal to another only with one encoded form and windows of equal contents at equal versions.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[bytes, _EqualCall] = OrderedDict()

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, key: bytes) -> dict[int, RemoteStorage] | None:
        """New storages on what an equal call has made, where that is all there as it was made."""
        entry = self._calls.get(key)
        if entry is None:
            return None
        storages: dict[int, RemoteStorage] = {}
        for reference, version, form in entry.results:
            content = reference()
            if content is None or content.version != version or content.failure is not None:
                del self._calls[key]
                return None
            storages[form.storage] = RemoteStorage(content)
        return storages

    def add(self, key: bytes, new: Mapping[int, Content], forms: Sequence[TensorGeometry | None]) -> None:
        """A call was recorded: ``new`` contents by the numbers of ``forms``."""
        for number, content in new.items():
            content.identity = key + (-number).to_bytes(2, "little")
        rows = tuple((ref(new[form.storage]), 0, form) for form in forms if form is not None)
        self._calls[key] = _EqualCall(rows)
        if len(self._calls) > _MOST_EQUAL:
            self._calls.popitem(last=False)


def call_identity(encoded: EncodedCall, windows: Sequence[ContentWindow]) -> bytes:
    """Names what a call computes: equal for equal operators and arguments on equal windows of equal bytes."""
    digest = blake3(encode_form(encoded.form))
    for tensor, window in zip(encoded.tensors, windows, strict=True):
        rest = (window.offset, window.shape, window.stride, window.dtype, tensor.remote_storage.content.identity)
        digest.update(msgspec.msgpack.encode(rest))
    return digest.digest()
