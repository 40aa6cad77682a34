"""``hold``: sessions stay on the device until they are closed, others wait, by class."""

from collections.abc import Sequence
from typing import Final

from tmmu.engine.policies.ledger import Ledger, needed_on_host
from tmmu.engine.policies.views import NS_PER_SECOND, Decision, SessionView, Situation

HANDICAP_NS: Final = 5 * NS_PER_SECOND
"""A session waits for room as if it had come so much later for each class above its own: nobody waits for ever."""
ASK_AGAIN_NS: Final = 10 * NS_PER_SECOND
"""When to look again where what is kept for higher classes has somebody wait."""


def decide_hold(situation: Situation) -> Decision:
    """Evicts nobody. Nobody is fetched into room that somebody waits for who comes before, so that large sessions do
    not starve, but for what a higher class keeps for itself.
    """
    ledger = Ledger(situation)
    taken = [view for view in situation.sessions if view.location != "host"]
    blocked: SessionView | None = None
    for view in sorted(needed_on_host(situation), key=_turn):
        if blocked is not None and not _is_in_kept_room(situation, view, blocked, taken):
            continue
        if _is_within_bound(situation, view, taken) and ledger.fetch(view):
            taken.append(view)
        elif blocked is None:
            blocked = view
            ledger.ask_again(situation.now_ns + ASK_AGAIN_NS)  # nothing may be kept any more by then
    return ledger.decision()


def _turn(view: SessionView) -> tuple[int, int]:
    return (view.needed_since_ns or 0) + HANDICAP_NS * view.rank, view.id


def _is_in_kept_room(
    situation: Situation, view: SessionView, blocked: SessionView, taken: Sequence[SessionView]
) -> bool:
    """Whether a session of a higher class takes of nothing but what that keeps from the one that waits."""
    kept = situation.budget - _bound_of(situation, blocked)
    above = sum(each.room for each in taken if each.rank < blocked.rank)
    return view.rank < blocked.rank and above + view.room <= kept


def _is_within_bound(situation: Situation, view: SessionView, taken: Sequence[SessionView]) -> bool:
    """Whether what is kept for higher classes stays free; who has no equal or lower beside him fits anyhow."""
    beside = [each.room for each in taken if each.rank >= view.rank]
    return not beside or sum(beside) + view.room <= _bound_of(situation, view)


def _bound_of(situation: Situation, view: SessionView) -> int:
    return situation.bounds[view.rank] if view.rank < len(situation.bounds) else situation.budget
