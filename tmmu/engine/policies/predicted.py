"""``predicted``: by how long earlier waits of the same kind took, whoever waited."""

from bisect import bisect_right
from typing import Final

from tmmu.engine.policies.ahead import Forecast, decide_ahead, expected_at, unknown
from tmmu.engine.policies.views import Decision, SessionView, Situation

LEAST_WAITS: Final = 4
"""Waits of a kind before anything is predicted of it."""
EARLY_SHARE: Final = 10
"""Of the waits that are still possible, one in this many may be over before a session is back."""


def decide_predicted(situation: Situation) -> Decision:
    """Swaps ahead by the history of waits; kinds without one are treated as by ``hint`` without a hint."""
    return decide_ahead(situation, _forecast)


def _forecast(situation: Situation, view: SessionView) -> Forecast:
    """The tenth and the half of the waits of this kind that took longer than this one has by now."""
    waits = situation.history.get(view.wait_kind, ())
    if len(waits) < LEAST_WAITS:
        return unknown(situation, view)
    first = bisect_right(waits, situation.now_ns - view.last_op_ns)
    if first == len(waits):
        return expected_at(situation, view.last_op_ns + waits[-1], view.last_op_ns + waits[-1])
    possible = len(waits) - first
    soonest, typical = waits[first + possible // EARLY_SHARE], waits[first + possible // 2]
    return Forecast(soonest_ns=view.last_op_ns + soonest, typical_ns=view.last_op_ns + typical)
