"""Sweeps: items in the order of time, over a list of free gaps. Near-linear, for problems of any size."""

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from tmmu.errors import InternalError
from tmmu.planner.pack.instance import Column, Instance


@dataclass(slots=True)
class Gaps:
    """Free address ranges ``[start, end)``, ascending, never adjacent; the last one has no end in practice."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)

    def take_lowest(self, size: int) -> int:
        """The lowest ``size`` free bytes, no longer free."""
        for index, (start, end) in enumerate(zip(self.start, self.end, strict=True)):
            if end - start >= size:
                return self._cut(index, start, size)
        raise InternalError("the last gap has an end")

    def take_tightest(self, size: int) -> int:
        """The start of the smallest gap of at least ``size`` bytes, no longer free."""
        fits = [
            (end - start, i)
            for i, (start, end) in enumerate(zip(self.start, self.end, strict=True))
            if end - start >= size
        ]
        index = min(fits)[1]
        return self._cut(index, self.start[index], size)

    def take_highest(self, size: int, ceiling: int) -> int:
        """The highest ``size`` free bytes below ``ceiling``, or the lowest at all where there are none."""
        for index in range(len(self.start) - 1, -1, -1):
            offset = min(self.end[index], ceiling) - size
            if offset >= self.start[index]:
                return self._cut(index, offset, size)
        return self.take_lowest(size)

    def _cut(self, index: int, offset: int, size: int) -> int:
        start, end = self.start[index], self.end[index]
        left, right = offset > start, offset + size < end
        if left and right:
            self.end[index] = offset
            self.start.insert(index + 1, offset + size)
            self.end.insert(index + 1, end)
        elif left:
            self.end[index] = offset
        elif right:
            self.start[index] = offset + size
        else:
            del self.start[index], self.end[index]
        return offset

    def release(self, offset: int, size: int) -> None:
        """Those bytes are free again."""
        stop = offset + size
        index = bisect_left(self.start, offset)
        joins_left = index > 0 and self.end[index - 1] == offset
        joins_right = index < len(self.start) and self.start[index] == stop
        if joins_left and joins_right:
            self.end[index - 1] = self.end[index]
            del self.start[index], self.end[index]
        elif joins_left:
            self.end[index - 1] = stop
        elif joins_right:
            self.start[index] = offset
        else:
            self.start.insert(index, offset)
            self.end.insert(index, stop)


def sweep(instance: Instance, *, backward: bool = False, tightest: bool = False, short: int = 0) -> Column:
    """Offsets per item, placed by birth (``backward``: by death, last first), larger first among twins.

    Items that live ``short`` steps or fewer go under the ceiling of the most live bytes, the others to the ground.
    """
    birth = (-instance.death if backward else instance.birth).tolist()
    death = (-instance.birth if backward else instance.death).tolist()
    size = instance.size.tolist()
    starts = sorted(range(len(instance)), key=lambda i: (birth[i], birth[i] - death[i], -size[i], i))
    ends = sorted(range(len(instance)), key=lambda i: (death[i], i))
    gaps = Gaps([0], [instance.far * 2])
    offset = [0] * len(instance)
    done = 0
    for index in starts:
        while death[ends[done]] <= birth[index]:
            gaps.release(offset[ends[done]], size[ends[done]])
            done += 1
        if death[index] - birth[index] <= short:
            offset[index] = gaps.take_highest(size[index], instance.bound)
        elif tightest:
            offset[index] = gaps.take_tightest(size[index])
        else:
            offset[index] = gaps.take_lowest(size[index])
    return np.array(offset, dtype=instance.size.dtype)
