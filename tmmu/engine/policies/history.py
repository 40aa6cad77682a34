"""How long waits took, by kind: what predictions are made of."""

from bisect import insort
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

RECORDED_WAITS: Final = 64
"""Of a kind; older ones are forgotten."""
RECORDED_KINDS: Final = 256
"""Kinds of wait; the one that was recorded longest ago is forgotten. Clients choose the names."""


class WaitHistory:
    """The latest waits of each kind."""

    def __init__(self) -> None:
        self._latest: dict[str, deque[int]] = {}
        self._ascending: dict[str, tuple[int, ...]] = {}

    def record(self, kind: str, length_ns: int) -> None:
        """One more wait of this kind has ended."""
        latest = self._latest.pop(kind, None) or deque(maxlen=RECORDED_WAITS)
        ascending = list(self._ascending.get(kind, ()))
        if len(latest) == RECORDED_WAITS:
            ascending.remove(latest[0])
        insort(ascending, length_ns)
        latest.append(length_ns)
        self._latest[kind], self._ascending[kind] = latest, tuple(ascending)
        if len(self._latest) > RECORDED_KINDS:
            oldest = next(iter(self._latest))
            del self._latest[oldest], self._ascending[oldest]

    def view(self) -> Mapping[str, tuple[int, ...]]:
        """Per kind the lengths in ns, ascending: read-only, and of this moment as long as nothing is recorded."""
        return MappingProxyType(self._ascending)
