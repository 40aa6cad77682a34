"""Pressure: how full a segment is, in four levels, with a history. Pure: times and bytes come in with each call."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

Level: TypeAlias = Literal["normal", "warning", "critical", "full"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
THRESHOLDS_PPM: Final = (0, 800_000, 950_000, 1_000_000)
"""Of a segment's bytes, from which on it is at a level: those of the sources."""
SLACK_PPM: Final = 20_000
"""A level is left this far below its threshold, so that one session coming and going is no event each time."""
HISTORY: Final = 256

Action: TypeAlias = Literal["reclaim", "evict", "refuse batch", "recompute", "refuse interactive"]
ACTIONS: Final[Mapping[Level, tuple[Action, ...]]] = {
    "normal": (),
    "warning": ("reclaim",),
    "critical": ("reclaim", "evict", "refuse batch"),
    "full": ("reclaim", "evict", "refuse batch", "recompute", "refuse interactive"),
}
"""What is done at each level: sessions whose lease has run out are closed; idle ones go to the host; no new texts of a
class; texts of batch give their room to who waits, and are read again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureEvent:
    """A change of level. ``recovered``: seconds since it was last ``normal``, where it is again."""

    at: float
    before: Level
    level: Level
    used: int
    capacity: int
    recovered: float | None = None


class PressureGauge:
    """The level of one segment. ``events``: how often each was reached from below; ``history``: the last changes."""

    def __init__(self) -> None:
        self.level: Level = "normal"
        self.events: Counter[Level] = Counter()
        self.history: deque[PressureEvent] = deque(maxlen=HISTORY)
        self.recoveries = 0
        self.recovery_seconds = 0.0
        """From leaving ``normal`` until it was that again, all together."""
        self._left_normal = 0.0

    def note(self, now: float, used: int, capacity: int, *, waiting: int = 0) -> PressureEvent | None:
        """The change of level, if there is one. ``waiting``: sessions without room, which make any segment full."""
        level = self._level_at(used * 1_000_000 // max(capacity, 1), is_waited_for=waiting > 0)
        if level == self.level:
            return None
        before, self.level = self.level, level
        recovered = None
        if before == "normal":
            self._left_normal = now
        elif level == "normal":
            recovered = now - self._left_normal
            self.recoveries += 1
            self.recovery_seconds += recovered
        self.events.update(LEVELS[LEVELS.index(before) + 1 : LEVELS.index(level) + 1])
        event = PressureEvent(at=now, before=before, level=level, used=used, capacity=capacity, recovered=recovered)
        self.history.append(event)
        return event

    def does(self, action: Action) -> bool:
        """Whether something is done at the level that it is at."""
        return action in ACTIONS[self.level]

    def _level_at(self, used_ppm: int, *, is_waited_for: bool) -> Level:
        if is_waited_for:
            return "full"
        current = LEVELS.index(self.level)
        return next(
            level
            for index, (level, threshold) in reversed(list(enumerate(zip(LEVELS, THRESHOLDS_PPM, strict=True))))
            if used_ppm >= threshold - SLACK_PPM * (0 < index <= current)
        )
