"""``hold``: a baseline. Sessions stay on the device until they are closed, others wait."""

from tmmu.engine.policies.ledger import Ledger, serve_needed
from tmmu.engine.policies.views import Decision, Situation


def decide_hold(situation: Situation) -> Decision:
    """Evicts nobody."""
    ledger = Ledger(situation)
    serve_needed(ledger, ())
    return ledger.decision()
