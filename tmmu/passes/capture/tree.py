"""Tensors inside whatever a model takes or returns, with their names, in a fixed order."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

_MAX_DEPTH = 12


def named_tensors(value: Any) -> tuple[tuple[str, torch.Tensor], ...]:
    """(path, tensor) for each tensor in containers, dataclasses and plain objects, at most ``_MAX_DEPTH`` deep.

    An object inside itself is not entered again.
    """
    return tuple(_walk(value, "", set(), 0))


def _walk(value: Any, path: str, parents: set[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if depth > _MAX_DEPTH or id(value) in parents:
        return
    for name, inner in _children(value):
        yield from _walk(inner, f"{path}.{name}" if path and name else path or name, parents | {id(value)}, depth + 1)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), inner) for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        field_names = getattr(value, "_fields", None)
        return list(zip(field_names or (str(i) for i in range(len(value))), value, strict=True))
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None), torch.nn.Module, type)) or callable(value):
        return []
    return [(name, inner) for name, inner in getattr(value, "__dict__", {}).items() if not name.startswith("__")]
