"""Swapping ahead of time by a forecast: those expected last go, those expected next come before they are needed.

Evicting the one that is needed last is optimal where loads cost the same and the future is known (Belady, 1966). The
rest keeps it lazy: an idle session on the host is fetched early only where room is free, or when it is nearly due and
somebody on the device is expected later.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tmmu.engine.policies.ledger import Ledger, evict_expired, expiry_ns, idle_on_device, serve_needed
from tmmu.engine.policies.views import Decision, SessionView, Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When a session is needed again, as far as is known, in ns: hardly before ``soonest_ns``, about ``typical_ns``.

    ``soonest_ns`` is ``None`` where nothing is known: such a session is not fetched early.
    """

    soonest_ns: int | None
    typical_ns: int


Forecaster: TypeAlias = Callable[[Situation, SessionView], Forecast]


def unknown(situation: Situation, view: SessionView) -> Forecast:
    """Of a wait that nothing is known of: it lasts as long again as it has lasted."""
    return Forecast(soonest_ns=None, typical_ns=2 * situation.now_ns - view.last_op_ns)


def expected_at(situation: Situation, expected_ns: int, soonest_ns: int) -> Forecast:
    """Expected at a time; where that is past, after as long again as it is overdue."""
    overdue = situation.now_ns - expected_ns
    if overdue <= 0:
        return Forecast(soonest_ns=soonest_ns, typical_ns=expected_ns)
    return Forecast(soonest_ns=situation.now_ns + overdue, typical_ns=situation.now_ns + overdue)


def decide_ahead(situation: Situation, forecaster: Forecaster) -> Decision:
    """The decision by these forecasts. O(n log n) in sessions."""
    ledger = Ledger(situation)
    evict_expired(ledger)
    farthest = [(forecaster(situation, view).typical_ns, view) for view in idle_on_device(situation)]
    farthest.sort(key=lambda row: (-row[0], row[1].id))
    if serve_needed(ledger, [view for _, view in farthest]):
        _fetch_early(ledger, forecaster, farthest)
    return ledger.decision()


def _fetch_early(ledger: Ledger, forecaster: Forecaster, farthest: Sequence[tuple[int, SessionView]]) -> None:
    """Idle sessions on the host come, next expected first, as long as the link can have them there in time.

    Twice the link's time for all that is under way and before it: the other half is for what is asked for meanwhile.
    """
    situation, victims = ledger.situation, iter(farthest)
    queued = situation.link.arriving
    for forecast, view in _idle_on_host(situation, forecaster):
        if forecast.soonest_ns is None:
            return
        queued += view.live
        if ledger.fetch(view):
            continue
        due = forecast.soonest_ns - 2 * situation.link.copy_ns(queued)
        if situation.now_ns < due:
            ledger.ask_again(due)
            return
        while ledger.coming < view.room:
            typical, victim = next(victims, (0, None))
            if victim is None or typical <= forecast.typical_ns:
                return
            ledger.evict(victim)
        if not ledger.fetch(view):
            ledger.promise(view)


def _idle_on_host(situation: Situation, forecaster: Forecaster) -> list[tuple[Forecast, SessionView]]:
    """Idle sessions whose time to live has not ended, those expected next first, those nobody knows of last."""
    rows = [
        (forecaster(situation, view), view)
        for view in situation.sessions
        if view.is_idle and view.location == "host" and situation.now_ns < expiry_ns(situation, view)
    ]
    return sorted(rows, key=lambda row: (row[0].soonest_ns is None, row[0].typical_ns, row[1].id))
