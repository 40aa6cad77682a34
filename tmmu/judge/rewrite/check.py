"""The judge of rewrites: whether a rewritten graph computes what its base computes, by numbering of versions.

No liveness, no order of a plan, nothing of who rewrote it: that the rewritten graph is sound in memory is found by the
judge of plans, for that graph.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from tmmu.errors import PlanMismatch, RewriteUnsound
from tmmu.ir.fault import MAX_LISTED_FAULTS, Fault, faults_field, headline
from tmmu.ir.graph import Graph
from tmmu.ir.rewrite import SUBLIST, Rewrite
from tmmu.judge.rewrite.context import RewriteContext, call_texts, calls_of, expected_calls
from tmmu.judge.rewrite.parts import NEAR_RULES
from tmmu.judge.rewrite.rules import RULES, row_faults

GROWTH_MAX: Final = 16
"""A rewritten graph may name so many times the values that its base names. A planner's names less than three times."""
GROWTH_BASE: Final = 1 << 16
"""Values that a rewritten graph may name in any case."""


def check_rewrite(
    base: Graph, rewritten: Graph, rewrite: Rewrite, *, near: frozenset[str] = frozenset()
) -> tuple[Fault, ...]:
    """The faults of the first rule that fails. Both graphs are legal. O(size of the graphs).

    ``near``: names of the rules by which the rewrite may be only near (``near_rules``); without them it has the bits of
    its base, but for what kernels do to products of another size.
    """
    context = RewriteContext(base=base, rewritten=rewritten, rewrite=rewrite, near=near)
    return next((faults for faults in (tuple(rule(context)) for rule in RULES) if faults), ())


def near_rules(rewrite: Rewrite) -> frozenset[str]:
    """Names of the rules by which a rewrite is only near; empty where it has the bits of its base."""
    return frozenset(name for kind, name in NEAR_RULES.items() if kind in rewrite.kind)


def require_meaning(
    base: Graph, rewritten: Graph, rewrite: Rewrite, *, near: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Raise ``REWRITE_UNSOUND`` unless the rewritten graph means its base; by which near rules it does."""
    faults = check_rewrite(base, rewritten, rewrite, near=near)
    if faults:
        raise _unsound(faults)
    return near_rules(rewrite)


def require_rows(base: Graph, rewrite: Rewrite) -> None:
    """Returns where a graph can be made of a legal base and a rewrite from outside, in bounded time and memory.

    ``PLAN_MISMATCH`` where it rewrites another graph, ``REWRITE_UNSOUND`` where a row stands for nothing of this one.
    What the graph means is for ``require_meaning`` to say.
    """
    if rewrite.base_hash != base.ir_hash:
        raise PlanMismatch(
            f"the plan rewrites graph {rewrite.base_hash.hex()[:16]}, not {base.ir_hash.hex()[:16]}",
            fix="name the graph that it was made of, or the model with the options of then, its device too",
        )
    faults = tuple(islice(_row_faults(base, rewrite), MAX_LISTED_FAULTS))
    if faults:
        raise _unsound(faults)


def _row_faults(base: Graph, rewrite: Rewrite) -> Iterator[Fault]:
    """Of the first kind that there is."""
    if base.calls is None:
        yield Fault(rule="form", what="a graph of version 1 does not say its calls")
        return
    faults = tuple(islice(row_faults(base, rewrite), MAX_LISTED_FAULTS))
    if not faults and _growth(base, rewrite) > GROWTH_BASE:
        faults = (Fault(rule="form", what=f"the rewritten graph is more than {GROWTH_MAX} times as large as its base"),)
    yield from faults
    if not faults:
        for op, expected in enumerate(expected_calls(base, call_texts(base), rewrite)):
            if isinstance(expected, str):
                yield Fault(rule="call", what=f"op {op}: {expected}", op=op)


def _growth(base: Graph, rewrite: Rewrite) -> int:
    """How many values the rows name beyond ``GROWTH_MAX`` times those that the base names, at the least."""
    ops, operands = base.ops, calls_of(base).operands
    sizes = [len(ops.reads[op]) + len(ops.writes[op]) + len(operands[op]) + 1 for op in ops.ids]
    rows = zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True)
    named = (
        min(sizes[origin], max(part[1] - part[0], 1)) if kind == SUBLIST and part else sizes[origin]
        for origin, kind, part in rows
    )
    return sum(named) - GROWTH_MAX * sum(sizes)


def _unsound(faults: tuple[Fault, ...]) -> RewriteUnsound:
    return RewriteUnsound(
        f"the rewritten graph does not mean its base: {headline(faults)}",
        fix="plan the model as it is, and report this",
        faults=faults_field(faults),
        count=len(faults),
    )
