"""Ranks for the exact search: integer keys of an instance's items, disturbed by a hash instead of a random source."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tmmu.planner.pack.exact.instance import SearchInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFeatures:
    """Per item: units, span in positions, width in sections, and the units live in its fullest section."""

    size: tuple[int, ...]
    span: tuple[int, ...]
    width: tuple[int, ...]
    pressure: tuple[int, ...]


Order: TypeAlias = Callable[[ItemFeatures, int], tuple[int, int]]
"""The (major, minor) key of an item, largest first; noise scales the minor part alone."""


def features_of(instance: SearchInstance) -> ItemFeatures:
    """The features of all items of ``instance``."""
    load = instance.loads
    bounds = list(zip(instance.first_section, instance.end_section, strict=True))
    return ItemFeatures(
        size=instance.units,
        span=instance.span,
        width=tuple(end_section - first_section for first_section, end_section in bounds),
        pressure=tuple(max(load[first_section:end_section]) for first_section, end_section in bounds),
    )


def by_pressure_and_width(features: ItemFeatures, item: int) -> tuple[int, int]:
    """Items of the fullest section first, of those the widest."""
    return features.pressure[item], features.width[item] + 1


def by_weighted_span(features: ItemFeatures, item: int) -> tuple[int, int]:
    """Longest-lived first, weighted by the cube of the fullest section."""
    return 0, features.span[item] * features.pressure[item] ** 3


def by_weighted_width(features: ItemFeatures, item: int) -> tuple[int, int]:
    """Widest first, weighted in the same way."""
    return 0, features.width[item] * features.pressure[item] ** 3


def by_weighted_area(features: ItemFeatures, item: int) -> tuple[int, int]:
    """Most units x positions first, weighted in the same way."""
    return 0, features.size[item] * features.span[item] * features.pressure[item] ** 3


def by_weighted_load(features: ItemFeatures, item: int) -> tuple[int, int]:
    """Most units x sections first, weighted in the same way."""
    return 0, features.size[item] * features.width[item] * features.pressure[item] ** 3


def by_width(features: ItemFeatures, item: int) -> tuple[int, int]:
    """Widest first."""
    return 0, features.width[item]


CYCLE: Final[tuple[tuple[int, Order], ...]] = (
    (64, by_weighted_span),
    (64, by_pressure_and_width),
    (64, by_weighted_area),
    (64, by_width),
    (160, by_pressure_and_width),
    (64, by_weighted_width),
    (160, by_weighted_load),
)
"""Noise, of 256, and order of the searches in turn."""


def ranks(features: ItemFeatures, order: Order, *, noise: int, seed: int) -> list[int]:
    """Per item its rank; minor keys are scaled by a factor in [256 - noise, 256 + noise], a hash of seed and item."""
    keys = []
    for item in range(len(features.size)):
        major, minor = order(features, item)
        factor = 256 - noise + splitmix64(seed * 1_000_003 + item) % (2 * noise + 1)
        keys.append((-major, -minor * factor, item))
    rank = [0] * len(keys)
    for position, (_, _, item) in enumerate(sorted(keys)):
        rank[item] = position
    return rank


def splitmix64(value: int) -> int:
    """A well-spread 64-bit number for ``value`` (the finalizer of splitmix64)."""
    word = (value + 1) * 0x9E3779B97F4A7C15 % (1 << 64)
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return word ^ (word >> 31)
