"""Tensors inside whatever a model takes or returns, with their names, in a fixed order."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from tmmu.errors import UnsupportedOp
from tmmu.torch_private import is_opaque_value

_MAX_DEPTH = 12


def named_tensors(value: Any) -> tuple[tuple[str, torch.Tensor], ...]:
    """(path, tensor) for each tensor in containers, dataclasses and plain objects, at most ``_MAX_DEPTH`` deep.

    An object inside itself is not entered again.
    """
    return tuple(_walk(value, "", set(), 0))


def plain_tensors(
    name: str, tensor: torch.Tensor, parents: frozenset[int] = frozenset()
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensor itself, or those that it wraps, whose memory is its own: ``weight.scale`` of ``weight``.

    ``UNSUPPORTED_OP`` for one of a class with a dispatch of its own that does not say what it wraps, or names one of
    its ``parents``, by identity.
    """
    if not is_wrapper(tensor):
        yield name, tensor
        return
    parts = _parts_of(tensor)
    if not parts or id(tensor) in parents:
        raise UnsupportedOp(
            f"{name or 'a result'} is a {type(tensor).__name__}, which does not say what plain tensors it is made of",
            fix="give its class __tensor_flatten__ and __tensor_unflatten__, or plan the model of plain tensors",
        )
    for part, inner in parts:
        yield from plain_tensors(f"{name}.{part}" if name else part, inner, parents | {id(tensor)})


def _parts_of(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """What a wrapper names as its tensors; nothing where its class cannot say, or names something else."""
    try:
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        named = [(str(part), getattr(tensor, part)) for part in names]
    except Exception:  # noqa: BLE001 - the user's code
        return []
    parts = [(part, inner) for part, inner in named if not is_opaque_value(inner)]
    return parts if all(isinstance(inner, torch.Tensor) for _, inner in parts) else []


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether its class has a dispatch of its own, other than torch's fake tensors."""
    kind = type(tensor)
    has_dispatch = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return has_dispatch and not kind.__module__.startswith("torch._subclasses.")


def _walk(value: Any, path: str, parents: set[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield from plain_tensors(path, value)
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
