"""Budgets that follow use: collect, score, suggest, shift. Pure: what was used comes in, budgets come out.

Shares are parts of a million of a whole. After ``COLLECTED`` observations each further one moves every budget by a
tenth of the way to what the window of the last ones suggests: what was used most, and a tenth more; a quarter more than
there was where somebody had to wait. So one peak moves little, and a steady one nearly all in some twenty.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

COLLECTED: Final = 10
"""Observations before anything is suggested: the sources' ten phases."""
WINDOW: Final = 30
RATE_PPM: Final = 100_000
MARGIN_PPM: Final = 100_000
GROWTH_PPM: Final = 250_000
WHOLE: Final = 1_000_000
HISTORY: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class UseOfShare:
    """Between two observations: the most that was used of the whole, and how often somebody had to wait."""

    used: int
    waits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetShift:
    """Budgets before and after a shift, and the score that led to it."""

    before: Mapping[str, int]
    after: Mapping[str, int]
    score: int


class BudgetTuner:
    """``budgets``: shares by name. None leaves ``floor`` to ``ceiling``; ``history`` has the last shifts."""

    def __init__(self, budgets: Mapping[str, int], *, floor: int, ceiling: int) -> None:
        self.budgets = dict(budgets)
        self._floor, self._ceiling = floor, ceiling
        self._seen: dict[str, deque[UseOfShare]] = {name: deque(maxlen=WINDOW) for name in budgets}
        self.observations = self.shifts = 0
        self.violations = dict.fromkeys(budgets, 0)
        """Observations in which more was used than the budget, or somebody had to wait, by name."""
        self.history: deque[BudgetShift] = deque(maxlen=HISTORY)

    def observe(self, use: Mapping[str, UseOfShare]) -> None:
        """Takes in what was used since the last observation; a name that is not there used nothing."""
        self.observations += 1
        for name, seen in self._seen.items():
            share = use.get(name, UseOfShare(used=0))
            seen.append(share)
            self.violations[name] += share.used > self.budgets[name] or share.waits > 0

    @property
    def score(self) -> int:
        """0 to 100: the part of the budgets that was used at most, less what waited; 100 before anything is seen."""
        if not self.observations:
            return 100
        used = sum(min(_most(seen), self.budgets[name]) for name, seen in self._seen.items())
        waited = max(sum(share.waits > 0 for share in seen) / len(seen) for seen in self._seen.values())
        return round(100 * used / max(sum(self.budgets.values()), 1) * (1 - waited))

    def suggest(self) -> Mapping[str, int] | None:
        """Budgets that fit what was seen; ``None`` while too little was."""
        if self.observations < COLLECTED:
            return None
        return {name: self._bounded(_enough_share(self.budgets[name], seen)) for name, seen in self._seen.items()}

    def shift(self) -> BudgetShift | None:
        """Moves all budgets a part of the way to what is suggested; ``None`` where nothing is, or they are there."""
        suggested = self.suggest()
        if suggested is None:
            return None
        after = {name: _between(budget, suggested[name]) for name, budget in self.budgets.items()}
        if after == self.budgets:
            return None
        shift = BudgetShift(before=dict(self.budgets), after=after, score=self.score)
        self.budgets = dict(after)
        self.shifts += 1
        self.history.append(shift)
        return shift

    def _bounded(self, share: int) -> int:
        return min(max(share, self._floor), self._ceiling)


def _most(seen: Sequence[UseOfShare]) -> int:
    return max((share.used for share in seen), default=0)


def _enough_share(budget: int, seen: Sequence[UseOfShare]) -> int:
    enough = _most(seen) * (WHOLE + MARGIN_PPM) // WHOLE
    more = budget * (WHOLE + GROWTH_PPM) // WHOLE
    return max(enough, more) if any(share.waits for share in seen) else enough


def _between(budget: int, suggested: int) -> int:
    """A step of the rate towards it, at least by one part."""
    distance = suggested - budget
    step = abs(distance) * RATE_PPM // WHOLE or min(abs(distance), 1)
    return budget + (step if distance > 0 else -step)
