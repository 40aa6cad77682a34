"""The judge of rewrites: whether a rewritten graph computes what its base computes, by numbering of versions.

No liveness, no order of a plan, nothing of who rewrote it: that the rewritten graph is sound in memory is found by the
judge of plans, for that graph.
"""

from tmmu.errors import RewriteUnsound
from tmmu.ir.fault import Fault, faults_field, headline
from tmmu.ir.graph import Graph
from tmmu.ir.rewrite import Rewrite
from tmmu.judge.rewrite.context import RewriteContext
from tmmu.judge.rewrite.rules import RULES


def check_rewrite(base: Graph, rewritten: Graph, rewrite: Rewrite) -> tuple[Fault, ...]:
    """The faults of the first rule that fails. Both graphs are legal. O(size of the graphs)."""
    context = RewriteContext(base=base, rewritten=rewritten, rewrite=rewrite)
    return next((faults for faults in (tuple(rule(context)) for rule in RULES) if faults), ())


def require_meaning(base: Graph, rewritten: Graph, rewrite: Rewrite) -> None:
    """Raise ``REWRITE_UNSOUND`` unless the rewritten graph means its base."""
    faults = check_rewrite(base, rewritten, rewrite)
    if faults:
        raise RewriteUnsound(
            f"the rewritten graph does not mean its base: {headline(faults)}",
            fix="plan the model as it is, and report this",
            faults=faults_field(faults),
            count=len(faults),
        )
