"""``idle``: a session without a step for a second goes, whether or not somebody needs its room."""

from typing import Final

from tmmu.engine.policies.ledger import Ledger, serve_needed
from tmmu.engine.policies.lru import least_recently_used
from tmmu.engine.policies.views import NS_PER_SECOND, Decision, Situation

IDLE_NS: Final = NS_PER_SECOND
"""How long a session has no step before it counts as idle, as the evaluation plan of the sources has it."""


def decide_idle(situation: Situation) -> Decision:
    """The proactive policy of the sources. Where room is short before the second is over it is ``lru``."""
    ledger, victims = Ledger(situation), least_recently_used(situation)
    for view in victims:
        if situation.now_ns - view.last_op_ns >= IDLE_NS:
            ledger.evict(view)
        else:
            ledger.ask_again(view.last_op_ns + IDLE_NS)
    serve_needed(ledger, victims)
    return ledger.decision()
