"""The judge: whether a plan is sound for a graph, with every fault where it is not. Knows nothing of the planner.

``SCHEMA_RULES`` come first, and where a row of them fails no later row is checked: the rules after it trust columns
and ids, and nothing more. Ids come after the hash of the graph, as they mean nothing in another one. ``execution``
runs the plan abstractly; the other rules compare each number with its definition.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

from blake3 import blake3

from tmmu.errors import PlanError, PlanMismatch, PlanUnsound
from tmmu.ir.encoding import cbor
from tmmu.ir.fault import Fault, faults_field, headline
from tmmu.ir.graph import Graph, semantic_map
from tmmu.ir.plan import Plan, plan_map
from tmmu.ir.random_state import displaced_ops
from tmmu.judge import arena_rules, layout, ring_rules, schema, slot_rules
from tmmu.judge.context import CheckContext
from tmmu.judge.execute import execution_faults
from tmmu.judge.rules import check_graph
from tmmu.judge.spans import ops_of_mode
from tmmu.judge.versions import versions, writing_ops

Check: TypeAlias = Callable[[CheckContext], Iterable[Fault]]
SHORTEST_TOKEN: Final = 64
"""Bytes; specified (R9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRule:
    """A row of the table: the rule names of the faults that ``check`` returns, and the error that they become."""

    rules: tuple[str, ...]
    demands: str
    check: Check
    error: type[PlanError] = PlanUnsound


def legal_graph(context: CheckContext) -> Iterator[Fault]:
    """The graph itself is legal."""
    return (Fault(rule="graph", what=str(fault)) for fault in check_graph(context.graph))


def plan_schema(context: CheckContext) -> tuple[Fault, ...]:
    """The plan's tables are rectangular, its words known, its slots in order."""
    return schema.schema_faults(context.plan)


def ir_hash(context: CheckContext) -> Iterator[Fault]:
    """The plan is for this graph, and the graph hashes to what it says."""
    expected = blake3(cbor.encode(semantic_map(context.graph))).digest()
    if context.plan.ir_hash != expected:
        message = f"the plan is for graph {context.plan.ir_hash.hex()[:16]}, not {expected.hex()[:16]}"
        yield Fault(rule="ir-hash", what=message)


def token_prefix(context: CheckContext) -> Iterator[Fault]:
    """The plan is under this token, where one is given."""
    token, prefix = context.token, context.plan.token_prefix
    if token is not None and (prefix != token[:8] or len(token) < SHORTEST_TOKEN):
        message = f"the plan is under token {prefix.hex()}…, not {token[:8].hex()}… of {len(token)} bytes"
        yield Fault(rule="token-prefix", what=message)


def digest(context: CheckContext) -> Iterator[Fault]:
    """The digest covers what the plan says now."""
    expected = blake3(cbor.encode(plan_map(context.plan))).digest()
    if context.plan.digest != expected:
        message = f"the digest is {expected.hex()[:16]}, not {context.plan.digest.hex()[:16]}"
        yield Fault(rule="digest", what=message)


def order(context: CheckContext) -> Iterator[Fault]:
    """Each op of the mode runs once."""
    mode = context.plan.mode
    ops = set(ops_of_mode(context.graph, mode))
    pending = set(ops)
    for op in context.plan.order:
        if op not in pending:
            message = f"op {op} runs twice" if op in ops else f"op {op} is none of mode {mode}"
            yield Fault(rule="order", what=message, op=op)
        pending.discard(op)
    for op in sorted(pending):
        yield Fault(rule="order", what=f"op {op} never runs", op=op)


def version_order(context: CheckContext) -> Iterator[Fault]:
    """The changes of a buffer follow each other as in the program."""
    graph, plan = context.graph, context.plan
    program = versions(graph, ops_of_mode(graph, plan.mode))
    for buffer, (expected, actual) in enumerate(zip(program, writing_ops(graph, plan.order), strict=True)):
        if expected != actual and sorted(expected) == sorted(actual):
            op = next(b for a, b in zip(expected, actual, strict=True) if a != b)
            message = f"op {op} changes buffer {buffer} out of turn: the program's order is {expected[:8]}"
            yield Fault(rule="versions", what=message, op=op, buffer=buffer)


def random_state(context: CheckContext) -> Iterator[Fault]:
    """What takes or sets the random state stands among the other ops as in the program."""
    for op in displaced_ops(context.graph, context.plan.order):
        message = f"op {op} takes or sets the random state, and runs before a smaller id or after a larger one"
        yield Fault(rule="random", what=message, op=op)


def execution(context: CheckContext) -> Iterator[Fault]:
    """Executed, every read finds what the program means, and so do the caller and the gradient afterwards."""
    return execution_faults(context.graph, context.plan)


def weight_ring(context: CheckContext) -> Iterable[Fault]:
    """Where weights stream, they are where ops read them, and no copy lands on what is still read."""
    graph, plan = context.graph, context.plan
    return ring_rules.ring_faults(graph, plan, plan.ring) if plan.ring else ()


def _rule(check: Check, *names: str, error: type[PlanError] = PlanUnsound) -> PlanRule:
    return PlanRule(rules=names, demands=(check.__doc__ or "").split("\n")[0].rstrip("."), check=check, error=error)


SCHEMA_RULES: Final = (
    _rule(legal_graph, "graph"),
    _rule(plan_schema, *schema.NAMES),
    _rule(ir_hash, "ir-hash", error=PlanMismatch),
    _rule(schema.ids, "ids"),
)
# The rule names are in error records and in docs/spec/judge.md, in this order.
RULES: Final = (
    *SCHEMA_RULES,
    _rule(token_prefix, "token-prefix", error=PlanMismatch),
    _rule(digest, "digest"),
    _rule(order, "order"),
    _rule(version_order, "versions"),
    _rule(random_state, "random"),
    _rule(execution, "read", "write", "output", "saved", "persistent"),
    _rule(layout.placed_buffers, "placed"),
    _rule(layout.arena, "arena"),
    _rule(layout.span, "span"),
    _rule(layout.takes_over, "takes-over"),
    _rule(layout.padded_sizes, "padding"),
    _rule(layout.alignment, "alignment"),
    _rule(layout.overlap, "overlap"),
    _rule(slot_rules.slots, "slots"),
    _rule(slot_rules.slot_sharing, "slot-sharing"),
    _rule(slot_rules.slot_count, "slot-count"),
    _rule(slot_rules.slot_bytes, "slot-bytes"),
    _rule(slot_rules.address, "address"),
    _rule(layout.layout, "layout"),
    _rule(arena_rules.peak, "peak"),
    _rule(arena_rules.bound, "bound"),
    _rule(arena_rules.proven_peaks, "proven"),
    _rule(arena_rules.page, "page"),
    _rule(arena_rules.capacity, "capacity"),
    _rule(arena_rules.metrics, "metrics"),
    _rule(weight_ring, *ring_rules.NAMES),
)


def check_plan(graph: Graph, plan: Plan, *, token: bytes | None = None) -> tuple[Fault, ...]:
    """Every fault of ``plan`` as a plan of ``graph``, in the order of the table; empty for a sound plan.

    Without ``token``, addresses are checked for being distinct and aligned only. Where a row of ``SCHEMA_RULES``
    fails, only its faults are returned. O(N log N) in the plan and the graph.
    """
    context = CheckContext(graph=graph, plan=plan, token=token)
    for row in SCHEMA_RULES:
        faults = tuple(row.check(context))
        if faults:
            return faults
    return tuple(chain.from_iterable(row.check(context) for row in RULES[len(SCHEMA_RULES) :]))


def judge(graph: Graph, plan: Plan, *, token: bytes | None = None) -> None:
    """Returns for a sound plan; ``PlanMismatch`` for another graph's or token's, ``PlanUnsound`` for a faulty one."""
    faults = check_plan(graph, plan, token=token)
    if faults:
        errors = {name: row.error for row in RULES for name in row.rules}
        error = next((errors[fault.rule] for fault in faults if errors[fault.rule] is PlanMismatch), PlanUnsound)
        fix = "make the plan again with tmmu plan" if error is PlanMismatch else "do not run it; please report it"
        raise error(headline(faults), fix=fix, faults=faults_field(faults), count=len(faults))
