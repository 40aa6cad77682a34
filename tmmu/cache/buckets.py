"""Shape buckets: inputs of many sequence lengths share the plans of a few, where padding is harmless to the caller."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import lt
from typing import Final

from tmmu.errors import InvalidConfig
from tmmu.ir.key import Part, part_of

INPUTS: Final = "inputs"
"""Name of the part of a key that says which inputs a program is called with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShape:
    """Name, dtype and shape of one input, in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Sequence lengths to plan for, ascending, and by input name the axes that are as long as the sequence."""

    lengths: tuple[int, ...]
    axes: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        ascending = all(map(lt, (0, *self.lengths), self.lengths))
        if not ascending or not self.lengths:
            raise InvalidConfig(f"bucket lengths {self.lengths} do not rise from 1", fix="list each length once")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedInputs:
    """Inputs as they are planned. ``padded_length`` equals ``length`` where no bucket is as long."""

    inputs: tuple[InputShape, ...]
    length: int
    padded_length: int


def pad_inputs(inputs: Sequence[InputShape], buckets: Buckets) -> PaddedInputs:
    """The inputs at the least length in ``buckets`` that holds them; as they are where none does.

    Depends on the arguments alone, never on what is cached: the same inputs always ask for the same plan.
    ``INVALID_CONFIG`` where an input of ``buckets.axes`` is missing, lacks the axis, or disagrees on the length.
    """
    shapes = {spec.name: spec.shape for spec in inputs}
    lengths = {(name, axis): _axis_length(shapes, name, axis) for name, axes in buckets.axes.items() for axis in axes}
    length = next(iter(lengths.values()), 0)
    if not lengths or set(lengths.values()) != {length}:
        raise InvalidConfig(f"the axes of the buckets have lengths {lengths}", fix="name axes that have one length")
    index = bisect_left(buckets.lengths, length)
    padded_length = buckets.lengths[index] if index < len(buckets.lengths) else length
    return PaddedInputs(
        inputs=tuple(_pad_axes(spec, buckets.axes.get(spec.name, ()), padded_length) for spec in inputs),
        length=length,
        padded_length=padded_length,
    )


def _axis_length(shapes: Mapping[str, tuple[int, ...]], name: str, axis: int) -> int:
    if name not in shapes:
        raise InvalidConfig(f"no input {name!r}", fix=f"the inputs are {', '.join(shapes)}")
    shape = shapes[name]
    if not 0 <= axis < len(shape):
        raise InvalidConfig(f"input {name!r} has {len(shape)} axes, not axis {axis}", fix="count axes from 0")
    return shape[axis]


def _pad_axes(spec: InputShape, axes: Sequence[int], length: int) -> InputShape:
    return replace(spec, shape=tuple(length if axis in axes else size for axis, size in enumerate(spec.shape)))


def inputs_part(inputs: Sequence[InputShape]) -> Part:
    """The part ``inputs`` of a key: name, dtype and shape of each input, in order."""
    text = ", ".join(f"{spec.name} {spec.dtype}[{','.join(map(str, spec.shape))}]" for spec in inputs)
    return part_of(INPUTS, [[spec.name, spec.dtype, spec.shape] for spec in inputs], text)
