"""A fusion group: what a region of ops computes, apart from where it stands in a program.

*Bases* are the tensors that it works on: those that it reads, those that it changes in place, those that a member
makes. A member names a tensor by its base and a window on that. Groups with equal text compute the same, wherever
they are, and their hash names the operator that stands for one. Neither an address, nor a position, nor anything of a
compiler is in it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import torch
from blake3 import blake3

from tmmu.fusion.window_views import Strided
from tmmu.torch_private import OpOverload, schema_of

HASH_BYTES: Final = 10
READ, CHANGED, MADE = "read", "changed", "made"
"""Kinds of a base: read alone, changed in place, made by a member."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor argument of a member: a window on a base."""

    base: int
    window: Strided


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """``window`` is the whole of it as the group sees it, ``result`` as it is returned, in the same bytes.

    ``is_result``: whether somebody reads it afterwards.
    """

    kind: str
    window: Strided
    result: Strided
    is_result: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One call. ``results`` has a base per tensor that it returns, ``None`` for what nobody has; in place: none."""

    operator: OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[int | None, ...]


TensorOf: TypeAlias = Callable[[TensorRef], torch.Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class FusionGroup:
    """Members in order, on bases. A call of it takes what it reads, then what it changes, and returns the results."""

    bases: tuple[Base, ...]
    members: tuple[GroupMember, ...]

    @cached_property
    def text(self) -> str:
        """All that it computes, in a line per member."""
        lines = [
            " ".join((base.kind, _window_text(base.window), *([_window_text(base.result)] if base.is_result else [])))
            for base in self.bases
        ]
        for member in self.members:
            arguments = ", ".join([*map(_text, member.args), *(f"{name}={_text(a)}" for name, a in member.kwargs)])
            lines.append(f"{member.operator}({arguments}) -> {_text(member.results)}")
        return "\n".join(lines)

    @cached_property
    def digest(self) -> str:
        """The hash of the text, in hexadecimal digits."""
        return blake3(self.text.encode()).digest(HASH_BYTES).hex()

    @cached_property
    def name(self) -> str:
        """What it computes, for people, and its digest."""
        words = [schema_of(member.operator).name.partition("::")[2].strip("_") for member in self.members]
        short = "_".join(list(dict.fromkeys(words))[:4])
        return f"{short}_{self.digest}"

    def of_kind(self, kind: str) -> tuple[int, ...]:
        """The bases of a kind."""
        return tuple(index for index, base in enumerate(self.bases) if base.kind == kind)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Bases that a call is given to read."""
        return self.of_kind(READ)

    @cached_property
    def changed(self) -> tuple[int, ...]:
        """Bases that a call is given to change."""
        return self.of_kind(CHANGED)

    @cached_property
    def results(self) -> tuple[int, ...]:
        """Bases that a call returns."""
        return tuple(index for index in self.of_kind(MADE) if self.bases[index].is_result)

    @property
    def inner_bytes(self) -> int:
        """Bytes of what members make and nobody reads afterwards."""
        inner = (base for base in self.bases if base.kind == MADE and not base.is_result)
        return sum(window_bytes(base.window) for base in inner)


def window_bytes(window: Strided) -> int:
    """Bytes of its elements."""
    count = dtype_of(window).itemsize
    for length in window.shape:
        count *= length
    return count


def dtype_of(window: Strided) -> torch.dtype:
    """Torch's name of its dtype."""
    dtype: torch.dtype = getattr(torch, window.dtype)
    return dtype


def bind_arguments(
    member: GroupMember, tensor_of: TensorOf, device: torch.device | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a member, with a tensor in place of each reference.

    What it makes is on ``device``, where the group's tensors are, whatever it was captured with.
    """

    def bind(argument: Any) -> Any:
        if isinstance(argument, TensorRef):
            return tensor_of(argument)
        if isinstance(argument, (list, tuple)) and not isinstance(argument, torch.Size):
            return [bind(item) for item in argument]
        return argument

    kwargs = {name: bind(argument) for name, argument in member.kwargs}
    if device is not None and kwargs.get("device") is not None:
        kwargs["device"] = device
    return tuple(map(bind, member.args)), kwargs


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device | None:
    """The device of tensors; ``None`` for none."""
    return next((tensor.device for tensor in tensors), None)


def run_members(
    group: FusionGroup, reads: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Runs the members one by one with torch's own kernels: what a fused kernel is held against, and its fallback.

    Each result has the strides of its base's window.
    """
    tensors = dict(zip(group.reads, reads, strict=True)) | dict(zip(group.changed, changed, strict=True))
    device = device_of(tensors.values())
    for member in group.members:
        args, kwargs = bind_arguments(member, lambda ref: _window_of(group, tensors, ref), device)
        returned = member.operator(*args, **kwargs)
        leaves = returned if isinstance(returned, (list, tuple)) else (returned,)
        for base, leaf in zip(member.results, leaves, strict=False):
            if base is not None:
                tensors[base] = _in_window(leaf, group.bases[base].window)
    return [_as_result(group.bases[base], tensors[base]) for base in group.results]


def _window_of(group: FusionGroup, tensors: Mapping[int, torch.Tensor], ref: TensorRef) -> torch.Tensor:
    tensor, whole = tensors[ref.base], group.bases[ref.base].window
    if ref.window == whole:
        return tensor
    offset = int(tensor.storage_offset()) + ref.window.offset - whole.offset
    return tensor.as_strided(ref.window.shape, ref.window.stride, offset)


def _as_result(base: Base, tensor: torch.Tensor) -> torch.Tensor:
    if base.result == base.window:
        return tensor
    return tensor.as_strided(base.result.shape, base.result.stride)


def _in_window(tensor: torch.Tensor, window: Strided) -> torch.Tensor:
    """The tensor with the strides of a window: itself where it has them."""
    if tensor.stride() == window.stride and tensor.shape == window.shape:
        return tensor
    laid = torch.empty_strided(window.shape, window.stride, dtype=tensor.dtype, device=tensor.device)
    return laid.copy_(tensor)


def _window_text(window: Strided) -> str:
    return f"{window.dtype}{list(window.shape)}{list(window.stride)}+{window.offset}"


def _text(argument: Any) -> str:
    if isinstance(argument, TensorRef):
        return f"%{argument.base}:{_window_text(argument.window)}"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(map(_text, argument))}]"
    if isinstance(argument, float):
        return argument.hex()
    return repr(argument)
