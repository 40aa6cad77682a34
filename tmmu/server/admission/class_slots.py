"""Slots of classes: how many texts are taken on, and how many each class keeps from those below it. Pure."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from tmmu.engine.queue.terms import CLASSES, QosClass

REMEMBER_SECONDS: Final = 600.0
"""How long slots are kept for a class of which no text is there, as room is."""


class ClassSlots:
    """``most`` slots, of which each class that was there lately keeps ``headroom``, a part, from those below it."""

    def __init__(self, most: int, headroom: float, clock: Callable[[], float]) -> None:
        self.most, self._kept, self._clock = most, int(most * headroom), clock
        self._taken: Counter[QosClass] = Counter()
        self._seen: dict[QosClass, float] = {}

    @property
    def taken(self) -> int:
        """Slots in use."""
        return self._taken.total()

    def limit_of(self, qos: QosClass) -> int:
        """How many slots this class and those below it may have together."""
        now = self._clock()
        above = CLASSES[: CLASSES.index(qos)]
        lately = [
            each
            for each in above
            if self._taken[each] or now - self._seen.get(each, -REMEMBER_SECONDS) < REMEMBER_SECONDS
        ]
        return self.most - self._kept * len(lately)

    def take(self, qos: QosClass, count: int) -> bool:
        """Whether there are so many slots; they are taken then."""
        beside = sum(self._taken[each] for each in CLASSES[CLASSES.index(qos) :])
        fits = self.taken + count <= self.most and beside + count <= self.limit_of(qos)
        self._seen[qos] = self._clock()
        self._taken[qos] += count * fits
        return fits

    def give_back(self, qos: QosClass, count: int) -> None:
        """So many slots are free again."""
        self._taken[qos] -= count
        self._seen[qos] = self._clock()
