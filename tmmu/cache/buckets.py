"""Shape buckets: inputs of many lengths planned at a few, where the caller says that padding is harmless."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tmmu.errors import InvalidConfig
from tmmu.ir.key import Part, part_of

INPUTS: Final = "inputs"
"""The part of a key that names the inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShape:
    """One input as a plan knows it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Lengths, rising, and the axes that have them: by input name, which axes are as long as the sequence."""

    lengths: tuple[int, ...]
    axes: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        rising = all(one < other for one, other in zip((0, *self.lengths), self.lengths, strict=False))
        if not rising or not self.lengths:
            raise InvalidConfig(f"bucket lengths {self.lengths} do not rise from 1", fix="list each length once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """Inputs as they are planned: ``length`` of the given ones, ``padded`` of these; equal where no bucket holds it."""

    inputs: tuple[InputShape, ...]
    length: int
    padded: int


def pad_inputs(inputs: Sequence[InputShape], buckets: Buckets) -> Padded:
    """The inputs at the least listed length that holds them, or as they are where none does.

    Depends on the arguments alone, never on what is cached: the same inputs always ask for the same plan.
    ``INVALID_CONFIG`` where an input that has such an axis is missing, lacks the axis, or disagrees on the length.
    """
    given = {one.name: one for one in inputs}
    found = {(name, axis): _extent(given, name, axis) for name, axes in buckets.axes.items() for axis in axes}
    length = next(iter(found.values()), 0)
    if not found or set(found.values()) != {length}:
        raise InvalidConfig(f"the axes of the buckets have lengths {found}", fix="name axes that have one length")
    at = bisect_left(buckets.lengths, length)
    padded = buckets.lengths[at] if at < len(buckets.lengths) else length
    return Padded(
        inputs=tuple(_padded(one, buckets.axes.get(one.name, ()), padded) for one in inputs),
        length=length,
        padded=padded,
    )


def _extent(given: Mapping[str, InputShape], name: str, axis: int) -> int:
    if name not in given:
        raise InvalidConfig(f"no input {name!r}", fix=f"the inputs are {', '.join(given)}")
    shape = given[name].shape
    if not 0 <= axis < len(shape):
        raise InvalidConfig(f"input {name!r} has {len(shape)} axes, not axis {axis}", fix="count axes from 0")
    return shape[axis]


def _padded(one: InputShape, axes: Sequence[int], length: int) -> InputShape:
    return replace(one, shape=tuple(length if axis in axes else size for axis, size in enumerate(one.shape)))


def inputs_part(inputs: Sequence[InputShape]) -> Part:
    """The part of a key that says what a program is called with."""
    shown = ", ".join(f"{one.name} {one.dtype}[{','.join(map(str, one.shape))}]" for one in inputs)
    return part_of(INPUTS, [[one.name, one.dtype, one.shape] for one in inputs], shown)
