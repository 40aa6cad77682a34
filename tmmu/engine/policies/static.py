"""``static``: a baseline. The device is cut into partitions of one size, and a session runs in its own alone."""

from tmmu.engine.policies.ledger import Ledger, evict_expired, needed_on_host
from tmmu.engine.policies.views import Decision, Situation


def decide_static(situation: Situation) -> Decision:
    """As many partitions as the largest session has room; session ``n`` has partition ``n`` modulo their number.

    Sessions of one partition swap each other; room of other partitions is not used.
    """
    ledger = Ledger(situation)
    evict_expired(ledger)
    count = _partitions(situation)
    tenants = {view.id % count: view for view in situation.sessions if view.location != "host"}
    for view in needed_on_host(situation):
        partition = view.id % count
        tenant = tenants.get(partition)
        if tenant is not None:
            ledger.evict(tenant)
            if not ledger.frees_now(tenant):
                continue
        if ledger.fetch(view):
            tenants[partition] = view
    return ledger.decision()


def _partitions(situation: Situation) -> int:
    largest = max((view.room for view in situation.sessions), default=1)
    return max(1, situation.budget // max(largest, 1))
