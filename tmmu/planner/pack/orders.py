"""Static orders: which item of an instance goes first. Each is a pure function to a permutation."""

import numpy as np
import numpy.typing as npt

from tmmu.planner.pack.instance import Column, Index, Instance


def by_size(instance: Instance) -> Index:
    """Largest first; among equals the longest-lived, then the earliest."""
    return _descending(instance.size, _duration(instance))


def by_area(instance: Instance) -> Index:
    """Most bytes times steps first."""
    return _descending(instance.size.astype(np.float64) * _duration(instance), instance.size)


def by_duration(instance: Instance) -> Index:
    """Longest-lived first: what is saved for the gradient forms a stack on the ground."""
    return _descending(_duration(instance), instance.size)


def by_birth(instance: Instance) -> Index:
    """Program order; among twins the longest-lived, then the largest."""
    return np.lexsort((-instance.size.astype(np.float64), -_duration(instance), instance.birth))


def by_pressure(instance: Instance) -> Index:
    """First what lives at the most loaded moment, then longest-lived: the peak is packed before all else."""
    return _descending(pressure(instance), _duration(instance))


def by_pressure_and_size(instance: Instance) -> Index:
    """First what lives at the most loaded moment, then largest."""
    return _descending(pressure(instance), instance.size)


def _duration(instance: Instance) -> Index:
    return instance.death - instance.birth


def _descending(first: Column, second: Column) -> Index:
    return np.lexsort((-second.astype(np.float64), -first.astype(np.float64)))


def pressure(instance: Instance) -> npt.NDArray[np.float64]:
    """Per item, the most bytes live at once during its life."""
    load = _load_at_births(instance)
    table = [load]
    while 2 * (1 << (len(table) - 1)) <= len(load):
        half = 1 << (len(table) - 1)
        table.append(np.maximum(table[-1][:-half], table[-1][half:]))
    low, stop = np.arange(len(load)), instance.stop
    level = np.maximum(np.frexp((stop - low).astype(np.float64))[1] - 1, 0)
    peak = np.zeros(len(instance))
    for power, row in enumerate(table):
        here = np.flatnonzero(level == power)
        peak[here] = np.maximum(row[low[here]], row[stop[here] - (1 << power)])
    return peak


def _load_at_births(instance: Instance) -> npt.NDArray[np.float64]:
    """Per item, the bytes live at its birth."""
    size = instance.size.astype(np.float64)
    by_death = np.argsort(instance.death, kind="stable")
    born = np.concatenate([[0.0], np.cumsum(size)])
    gone = np.concatenate([[0.0], np.cumsum(size[by_death])])
    twins_end = np.searchsorted(instance.birth, instance.birth, side="right")
    dead = np.searchsorted(instance.death[by_death], instance.birth, side="right")
    load: npt.NDArray[np.float64] = born[twins_end] - gone[dead]
    return load
