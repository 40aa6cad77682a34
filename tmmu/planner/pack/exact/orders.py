"""Orders in which the search prefers items: pure functions of an instance, without floats or chance."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tmmu.planner.pack.exact.instance import Instance

Key: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What orders look at, per item: bytes, sections, their product, the fullest section it is live in."""

    size: tuple[int, ...]
    width: tuple[int, ...]
    area: tuple[int, ...]
    crowd: tuple[int, ...]


def shape_of(instance: Instance) -> Shape:
    """The shapes of all items of ``instance``."""
    count = range(len(instance))
    load = loads(instance)
    width = tuple(instance.hi[item] - instance.lo[item] for item in count)
    return Shape(
        size=instance.room,
        width=width,
        area=tuple(instance.room[item] * width[item] for item in count),
        crowd=tuple(max(load[instance.lo[item] : instance.hi[item]]) for item in count),
    )


def loads(instance: Instance) -> list[int]:
    """Per section, the units live in it."""
    load = [0] * instance.sections
    for item, size in enumerate(instance.room):
        for section in range(instance.lo[item], instance.hi[item]):
            load[section] += size
    return load


ORDERS: Final[dict[str, Callable[[Shape, int], Key]]] = {
    "crowd_width": lambda shape, item: (shape.crowd[item], shape.width[item], shape.area[item]),
    "crowd_area": lambda shape, item: (shape.crowd[item], shape.area[item], shape.width[item]),
    "area": lambda shape, item: (shape.area[item],),
    "width": lambda shape, item: (shape.width[item], shape.size[item]),
    "size": lambda shape, item: (shape.size[item], shape.width[item]),
}
"""Largest key first; ties go to the earlier item."""


def ranks(shape: Shape, name: str, *, noise: int, seed: int) -> list[int]:
    """Per item its place in the order ``name``; with ``noise`` (of 256) the widths and sizes are first disturbed."""
    key = ORDERS[name]
    blurred = blur(shape, noise, seed) if noise else shape
    order = sorted(range(len(shape.size)), key=lambda item: ([-part for part in key(blurred, item)], item))
    rank = [0] * len(order)
    for place, item in enumerate(order):
        rank[item] = place
    return rank


def blur(shape: Shape, noise: int, seed: int) -> Shape:
    """The same shapes with every number of an item times a factor within ``noise`` of 256, fixed by ``seed``."""
    factor = [256 - noise + mix(seed * 1_000_003 + item) % (2 * noise + 1) for item in range(len(shape.size))]
    return Shape(
        size=times(shape.size, factor),
        width=times(shape.width, factor),
        area=times(shape.area, factor),
        crowd=shape.crowd,
    )


def times(values: tuple[int, ...], factor: list[int]) -> tuple[int, ...]:
    """The products, item by item."""
    return tuple(value * by for value, by in zip(values, factor, strict=True))


def mix(value: int) -> int:
    """A well-spread 64-bit number for ``value`` (the finalizer of splitmix64)."""
    word = (value + 1) * 0x9E3779B97F4A7C15 % (1 << 64)
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return word ^ (word >> 31)
