"""What a call left: results and changed arguments as forms and bytes, independent of what tmmu compares with.

Bytes are compared as they are, NaN payloads included. Lazy bits are computed first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

UNINITIALIZED: Final = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
)
"""Operators whose results hold what happened to be there: their forms are compared."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of nested results in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, views that coincide only once, as a graph lists its outputs."""
    return list({_window(tensor): tensor for tensor in tensors}.values())


def _window(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    layout = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
    return tensor.untyped_storage()._cdata, *layout, tensor.is_conj(), tensor.is_neg()


def whole_storages(tensors: Iterable[torch.Tensor | None]) -> list[torch.Tensor]:
    """The storage of each tensor as bytes: what a call left there, however the tensor may look at it now."""
    dense = [tensor for tensor in tensors if tensor is not None and tensor.layout is torch.strided]
    storages = [tensor.untyped_storage() for tensor in dense]
    return [torch.empty(0, dtype=torch.uint8).set_(each, 0, (each.nbytes(),), (1,)) for each in storages]


def difference(
    found: Sequence[torch.Tensor | None],
    wanted: Sequence[torch.Tensor | None],
    *,
    bits: bool = True,
    lazy: bool = True,
    strides: bool = True,
) -> str:
    """The first difference in words, empty where there is none.

    ``lazy``: torch's lazy bits have to be the same; without it a lazy result may be computed, in strides of its own.
    """
    if len(found) != len(wanted):
        return f"{len(found)} tensors, not {len(wanted)}"
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        words = _difference(a, b, lazy=lazy, strides=strides)
        if not words and bits and a is not None and b is not None and a.layout is torch.strided:
            words = _different_bytes(a, b)
        if words:
            return f"tensor {index}: {words}"
    return ""


def _difference(a: torch.Tensor | None, b: torch.Tensor | None, *, lazy: bool, strides: bool) -> str:
    if a is None or b is None or _form(a) != _form(b):
        return "" if a is b else f"{_form(a)}, not {_form(b)}"
    if lazy and (a.is_conj(), a.is_neg()) != (b.is_conj(), b.is_neg()):
        return "other lazy bits"
    has_strides = strides and a.layout is torch.strided and (lazy or not (b.is_conj() or b.is_neg()))
    return f"{_form(a)} strides {a.stride()}, not {b.stride()}" if has_strides and a.stride() != b.stride() else ""


def _form(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "none"
    layout = "" if tensor.layout is torch.strided else f" {tensor.layout}"
    return f"{str(tensor.dtype)[6:]}[{','.join(map(str, tensor.shape))}]{layout}"


def _different_bytes(a: torch.Tensor, b: torch.Tensor) -> str:
    one, other = _bytes(a), _bytes(b)
    if torch.equal(one, other):
        return ""
    rows = (one != other).view(-1, b.element_size()).any(1)
    first = int(rows.nonzero()[0])
    values = [str(t.detach().resolve_conj().resolve_neg().reshape(-1)[first].item()) for t in (a, b)]
    return f"{_form(b)}: {int(rows.sum())} elements differ, first {values[0]}, not {values[1]}"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    computed = tensor.detach().resolve_conj().resolve_neg()
    return computed.contiguous().reshape(-1).view(torch.uint8)
