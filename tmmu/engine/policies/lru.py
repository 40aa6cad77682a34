"""``lru``: nobody goes before somebody needs room, then the least recently used; nobody comes before it is needed."""

from tmmu.engine.policies.ledger import Ledger, evict_expired, idle_on_device, serve_needed
from tmmu.engine.policies.views import Decision, SessionView, Situation


def decide_lru(situation: Situation) -> Decision:
    """The reactive policy. O(n log n) in sessions."""
    ledger = Ledger(situation)
    evict_expired(ledger)
    serve_needed(ledger, least_recently_used(situation))
    return ledger.decision()


def least_recently_used(situation: Situation) -> list[SessionView]:
    """Idle sessions on the device, the one with the oldest step first."""
    return sorted(idle_on_device(situation), key=lambda view: (view.last_op_ns, view.id))
