"""ExecuTorch's greedy memory planning: shared objects, larger tensors first.

A tensor goes into the first object of which nothing lives at the same time, else into the first that has room above
all of it that does; otherwise it makes an object of its own. Objects lie one after another.
"""

import numpy as np

from benchmarks.peers.gaps import by
from tmmu.planner.pack.instance import Column, PackingInstance


def greedy_objects(instance: PackingInstance) -> Column:
    """Offsets per item: where its object is, and where it is in that."""
    size = instance.size
    home = np.full(len(instance), -1, dtype=np.int64)
    high = np.zeros_like(size)
    made = np.zeros_like(size)
    count = 0
    for index in by(-size, -instance.item).tolist():
        near = instance.neighbors(index)
        near = near[home[near] >= 0]
        ends = np.zeros(count, dtype=size.dtype)
        np.maximum.at(ends, home[near], high[near])
        quiet = np.flatnonzero(ends == 0)
        roomy = quiet if len(quiet) else np.flatnonzero(ends + size[index] <= made[:count])
        home[index] = roomy[0] if len(roomy) else count
        high[index] = (ends[roomy[0]] if len(roomy) else 0) + size[index]
        if not len(roomy):
            made[count] = size[index]
            count += 1
    start = np.concatenate([np.zeros(1, dtype=size.dtype), np.cumsum(made[:count])])
    return start[home] + high - size
