"""ExecuTorch's greedy memory planning: shared objects, larger tensors first.

A tensor goes into the first object whose members are all dead while it lives, else into the first with enough bytes
above the live ones, else into a new object of its own size. Objects are laid out end to end.
"""

import numpy as np

from benchmarks.peers.gaps import sort_by
from tmmu.planner.pack.instance import Column, PackingInstance


def greedy_objects(instance: PackingInstance) -> Column:
    """Offsets per item: the start of its object plus its offset within the object."""
    size = instance.size
    object_of = np.full(len(instance), -1, dtype=np.int64)
    high = np.zeros_like(size)
    object_size = np.zeros_like(size)
    count = 0
    for index in sort_by(-size, -instance.item).tolist():
        neighbors = instance.neighbors(index)
        neighbors = neighbors[object_of[neighbors] >= 0]
        ends = np.zeros(count, dtype=size.dtype)
        np.maximum.at(ends, object_of[neighbors], high[neighbors])
        empty = np.flatnonzero(ends == 0)
        fitting = empty if len(empty) else np.flatnonzero(ends + size[index] <= object_size[:count])
        object_of[index] = fitting[0] if len(fitting) else count
        high[index] = (ends[fitting[0]] if len(fitting) else 0) + size[index]
        if not len(fitting):
            object_size[count] = size[index]
            count += 1
    start = np.concatenate([np.zeros(1, dtype=size.dtype), np.cumsum(object_size[:count])])
    return start[object_of] + high - size
