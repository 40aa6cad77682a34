"""The inputs of a plan at another batch or sequence: their shapes, without their bytes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

import torch

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.tree import is_wrapper
from tmmu.planner.sizes.first_sizes import BATCH, SEQ

DIMENSION: Final = {BATCH: 0, SEQ: 1}
"""By the name of a size, the dimension of each input that has it."""


@dataclass(frozen=True, slots=True)
class InputShapes:
    """Inputs with meta tensors in the place of tensors: nothing of the caller's is kept alive. O(number of inputs)."""

    inputs: Any

    @classmethod
    def of(cls, inputs: Any) -> "InputShapes":
        """``inputs`` as ``tmmu.plan`` takes them; ``INVALID_CONFIG`` for containers that cannot be made anew."""
        return cls(_mapped(inputs, _without_bytes))

    def size(self, axis: str) -> int:
        """The batch or sequence that they have; ``INVALID_CONFIG`` where they do not agree on one."""
        dimension = DIMENSION.get(axis)
        if dimension is None:
            raise InvalidConfig(
                f"inputs have no dimension {axis!r:.40}", fix=f"use {BATCH} or {SEQ}, or give inputs=, a function of it"
            )
        sizes = {tensor.shape[dimension] for tensor in _tensors(self.inputs) if tensor.ndim > dimension}
        large = sizes - {1} or sizes
        if len(large) != 1:
            found = f"of {' and '.join(map(str, sorted(large)))}" if large else "of none"
            raise InvalidConfig(
                f"dimension {dimension} of the inputs is no one {axis}, but {found}",
                fix=f"give inputs=, a function from {axis} to the inputs",
            )
        return large.pop()

    def at(self, axis: str, size: int) -> Any:
        """The inputs at another size, dense in the order of dimensions that they have; what is 1 beside more stays."""
        dimension, own = DIMENSION[axis], self.size(axis)

        def resized(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.ndim <= dimension or tensor.shape[dimension] != own:
                return tensor
            shape = list(tensor.shape)
            shape[dimension] = size
            return _like(tensor, shape)

        return _mapped(self.inputs, resized)


def _without_bytes(tensor: torch.Tensor) -> torch.Tensor:
    if is_wrapper(tensor):
        raise InvalidConfig(f"a {type(tensor).__name__} has no size of its own", fix="give inputs=, a function of it")
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return new.requires_grad_(tensor.requires_grad)


def _like(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """A tensor of this shape whose dimensions lie in the order of the tensor's; those of stride 0 stay so."""
    strides, step = [0] * len(shape), 1
    order = sorted(range(len(shape)), key=lambda place: (tensor.stride(place), -place))
    for place in order:
        if tensor.stride(place):
            strides[place] = step
            step *= shape[place]
    new = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")
    return new.requires_grad_(tensor.requires_grad)


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same containers of changed tensors; what is no tensor and no container is itself."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if value is None or isinstance(value, (str, bytes, int, float, complex, torch.dtype, torch.device)):
        return value
    if isinstance(value, Mapping):
        return {key: _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(inner, change) for inner in value))
    if type(value) in (list, tuple):
        return type(value)(_mapped(inner, change) for inner in value)
    if not is_dataclass(value) or isinstance(value, type):
        raise InvalidConfig(
            f"a {type(value).__name__} in the inputs is not made anew",
            fix="give inputs=, a function from size to inputs",
        )
    changed = {each.name: _mapped(getattr(value, each.name), change) for each in fields(value) if each.init}
    return replace(value, **changed)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    tensors: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    _mapped(value, keep)
    return iter(tensors)
