"""Static packing orders: pure functions from an instance to a permutation of its items, first to be placed first."""

import numpy as np
import numpy.typing as npt

from tmmu.planner.pack.instance import Column, Index, PackingInstance


def by_size(instance: PackingInstance) -> Index:
    """Largest first; among equals the longest-lived, then the earliest."""
    return _sort_descending(instance.size, _duration(instance))


def by_area(instance: PackingInstance) -> Index:
    """Most bytes times steps first."""
    return _sort_descending(instance.size.astype(np.float64) * _duration(instance), instance.size)


def by_duration(instance: PackingInstance) -> Index:
    """Longest-lived first: tensors saved for the gradient form a stack from offset 0."""
    return _sort_descending(_duration(instance), instance.size)


def by_birth(instance: PackingInstance) -> Index:
    """Program order; among twins the longest-lived, then the largest."""
    return np.lexsort((-instance.size.astype(np.float64), -_duration(instance), instance.birth))


def by_pressure(instance: PackingInstance) -> Index:
    """Items live at the most loaded moment first, then longest-lived: the peak is packed before all else."""
    return _sort_descending(pressure(instance), _duration(instance))


def by_pressure_and_size(instance: PackingInstance) -> Index:
    """Items live at the most loaded moment first, then largest."""
    return _sort_descending(pressure(instance), instance.size)


def _duration(instance: PackingInstance) -> Index:
    return instance.death - instance.birth


def _sort_descending(first: Column, second: Column) -> Index:
    return np.lexsort((-second.astype(np.float64), -first.astype(np.float64)))


def pressure(instance: PackingInstance) -> npt.NDArray[np.float64]:
    """Per item, the most bytes live at once during its life: range maxima by a sparse table, O(n log n)."""
    load = _load_at_births(instance)
    table = [load]
    while 2 * (1 << (len(table) - 1)) <= len(load):
        half = 1 << (len(table) - 1)
        table.append(np.maximum(table[-1][:-half], table[-1][half:]))
    low, stop = np.arange(len(load)), instance.stop
    level = np.maximum(np.frexp((stop - low).astype(np.float64))[1] - 1, 0)
    peak = np.zeros(len(instance))
    for power, row in enumerate(table):
        items = np.flatnonzero(level == power)
        peak[items] = np.maximum(row[low[items]], row[stop[items] - (1 << power)])
    return peak


def _load_at_births(instance: PackingInstance) -> npt.NDArray[np.float64]:
    """Per item, the bytes live at its birth."""
    size = instance.size.astype(np.float64)
    by_death = np.argsort(instance.death, kind="stable")
    born = np.concatenate([[0.0], np.cumsum(size)])
    gone = np.concatenate([[0.0], np.cumsum(size[by_death])])
    twins_end = np.searchsorted(instance.birth, instance.birth, side="right")
    dead = np.searchsorted(instance.death[by_death], instance.birth, side="right")
    load: npt.NDArray[np.float64] = born[twins_end] - gone[dead]
    return load
