"""``hint``: by what clients say: ``session.wait(expected=10)`` and ``session.resume_soon()``."""

from typing import Final

from tmmu.engine.policies.ahead import Forecast, decide_ahead, expected_at, unknown
from tmmu.engine.policies.views import Decision, SessionView, Situation

EARLY_PART: Final = 10
"""A wait may end this part of its expected length early."""


def decide_hint(situation: Situation) -> Decision:
    """Swaps ahead by expected times; sessions whose clients say nothing are evicted as by a guess, and not fetched."""
    return decide_ahead(situation, _forecast)


def _forecast(situation: Situation, view: SessionView) -> Forecast:
    if view.expected_ns is None:
        return unknown(situation, view)
    margin = max(0, view.expected_ns - view.last_op_ns) // EARLY_PART
    return expected_at(situation, view.expected_ns, view.expected_ns - margin)
