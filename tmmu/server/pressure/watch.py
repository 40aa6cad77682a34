"""Watches the room of one model's sessions: its pressure, what is done about it, and how much of it each class uses."""

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final

from tmmu.engine.queue.terms import CLASSES, QosClass
from tmmu.server.logs import log_event
from tmmu.server.pressure.budget_tuner import WHOLE, BudgetTuner, UseOfShare
from tmmu.server.pressure.gauge import Action, PressureEvent, PressureGauge

if TYPE_CHECKING:
    from tmmu.engine.engine import Engine

LOG_SECONDS: Final = 10.0
"""A line of the log at most for so long: where the room is that of few sessions, each of them is a change of level."""
WINDOW_SECONDS: Final = 10.0
"""Of one observation of what classes use."""
FLOOR_PPM: Final = 20_000
CEILING_PPM: Final = 400_000
_REFUSALS: Final[Mapping[QosClass, Action]] = {"batch": "refuse batch", "interactive": "refuse interactive"}


class PressureWatch:
    """``note`` is for the thread that runs steps. ``acts``: whether texts are refused, and read again, under pressure;
    what costs nobody anything is done anyhow. ``adapts``: whether ``headroom`` follows use, or is suggested alone.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        model: str,
        engine: "Engine",
        *,
        acts: bool,
        adapts: bool,
        headroom: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._model, self._engine, self._clock = model, engine, clock
        self._acts, self._adapts = acts, adapts
        self.gauge = PressureGauge()
        budget = round(headroom * WHOLE)
        self.tuner = BudgetTuner(dict.fromkeys(CLASSES[:-1], budget), floor=FLOOR_PPM, ceiling=CEILING_PPM)
        self._window_began = clock()
        self._noted: tuple[int, int] | None = None
        """The state of the room at the last look."""
        self._logged: float | None = None
        self._unlogged = 0
        self._most: dict[QosClass, int] = {}
        self._waited: set[QosClass] = set()

    def refuses(self, qos: QosClass) -> bool:
        """Whether no new text of a class is taken on now."""
        return self._acts and qos in _REFUSALS and self.gauge.does(_REFUSALS[qos])

    @property
    def recomputes(self) -> bool:
        """Whether texts of batch are to give their room to who waits, and be read again later."""
        return self._acts and self.gauge.does("recompute")

    @property
    def has_news(self) -> bool:
        """Whether a session came to its room or left it since the last ``note``. Takes no lock."""
        return self._noted != self._engine.room_state

    def note(self) -> None:
        """Looks at the room, and does what its level asks for."""
        self._noted = self._engine.room_state
        now, usage = self._clock(), self._engine.usage["data"]
        event = self.gauge.note(now, usage.used, usage.capacity, waiting=self._engine.waiting_sessions)
        if event is not None:
            self._log(event)
        if self.gauge.does("reclaim"):
            self._engine.reclaim_expired()
        if self.gauge.does("evict"):
            self._engine.evict_idle()
        self._note_use(usage.capacity)
        if now - self._window_began >= WINDOW_SECONDS:
            self._end_window(now)

    def _note_use(self, capacity: int) -> None:
        """The most that each class had at once, and whether one of it had to wait, in this window."""
        used = dict.fromkeys(CLASSES, 0)
        for session in self._engine.sessions:
            if self._engine.is_resident(session):
                used[session.terms.qos] += session.arena_bytes
            elif self._engine.waits_for_room(session):
                self._waited.add(session.terms.qos)
        for qos, size in used.items():
            self._most[qos] = max(self._most.get(qos, 0), size * WHOLE // max(capacity, 1))

    def _end_window(self, now: float) -> None:
        use = {qos: UseOfShare(used=used, waits=int(qos in self._waited)) for qos, used in self._most.items()}
        self._window_began, self._most, self._waited = now, {}, set()
        self.tuner.observe({qos: share for qos, share in use.items() if qos in self.tuner.budgets})
        shift = self.tuner.shift() if self._adapts else None
        if shift is not None:
            self._engine.keep_room([budget / WHOLE for budget in shift.after.values()])
            log_event("budgets", model=self._model, score=shift.score, before=shift.before, after=shift.after)

    def _log(self, event: PressureEvent) -> None:
        """Writes a change of level down, and how many there were since the last one that was."""
        if self._logged is not None and event.at - self._logged < LOG_SECONDS:
            self._unlogged += 1
            return
        log_event(
            "pressure",
            level=logging.WARNING if event.level in ("critical", "full") else logging.INFO,
            model=self._model,
            segment="data",
            pressure=event.level,
            before=event.before,
            used=event.used,
            capacity=event.capacity,
            recovered=event.recovered,
            unlogged=self._unlogged,
        )
        self._logged, self._unlogged = event.at, 0
