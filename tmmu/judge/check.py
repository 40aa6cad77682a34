"""The judge: a plan is sound for a graph, or here is every fault. Knows nothing of the planner.

``FORM`` is asked first, and where a row of it fails no later one is: the rules after it trust columns and ids, and
nothing more. Ids are asked after the hash of the graph, as they mean nothing in another one. ``execution`` runs the
plan on paper; the others compare each number with its definition.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from blake3 import blake3

from tmmu.errors import PlanError, PlanMismatch, PlanUnsound
from tmmu.ir import cbor
from tmmu.ir.fault import Fault, faults_field, headline
from tmmu.ir.graph import Graph, semantic_map
from tmmu.ir.plan import Plan, plan_map
from tmmu.ir.random_state import displaced
from tmmu.judge import layout as tables
from tmmu.judge import ring_rules
from tmmu.judge import schema as form
from tmmu.judge.context import Case
from tmmu.judge.execute import execution
from tmmu.judge.rules import check_graph
from tmmu.judge.spans import ops_of_mode
from tmmu.judge.versions import changes, versions

SHORTEST_TOKEN: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One row: the faults that its check may find, by rule name, and the error that they become."""

    rules: tuple[str, ...]
    demands: str
    check: Callable[[Case], Iterable[Fault]]
    error: type[PlanError] = PlanUnsound


def graph_legal(case: Case) -> Iterator[Fault]:
    """The graph itself is legal."""
    return (Fault(rule="graph", what=str(fault)) for fault in check_graph(case.graph))


def plan_formed(case: Case) -> tuple[Fault, ...]:
    """The plan's tables are rectangular, its words known, its slots in order."""
    return form.faults(case.plan)


def ir_hash(case: Case) -> Iterator[Fault]:
    """The plan is for this graph, and the graph hashes to what it says."""
    wanted = blake3(cbor.encode(semantic_map(case.graph))).digest()
    if case.plan.ir_hash != wanted:
        what = f"the plan is for graph {case.plan.ir_hash.hex()[:16]}, not {wanted.hex()[:16]}"
        yield Fault(rule="ir-hash", what=what)


def token_prefix(case: Case) -> Iterator[Fault]:
    """The plan is under this token, where one is given."""
    token, prefix = case.token, case.plan.token_prefix
    if token is not None and (prefix != token[:8] or len(token) < SHORTEST_TOKEN):
        what = f"the plan is under token {prefix.hex()}…, not {token[:8].hex()}… of {len(token)} bytes"
        yield Fault(rule="token-prefix", what=what)


def digest(case: Case) -> Iterator[Fault]:
    """The digest covers what the plan says now."""
    wanted = blake3(cbor.encode(plan_map(case.plan))).digest()
    if case.plan.digest != wanted:
        yield Fault(rule="digest", what=f"the digest is {wanted.hex()[:16]}, not {case.plan.digest.hex()[:16]}")


def order(case: Case) -> Iterator[Fault]:
    """Each op of the mode runs once."""
    wanted, seen = set(ops_of_mode(case.graph, case.plan.mode)), set[int]()
    for op in case.plan.order:
        if op in seen or op not in wanted:
            what = f"op {op} runs twice" if op in seen else f"op {op} is none of mode {case.plan.mode}"
            yield Fault(rule="order", what=what, op=op)
        seen.add(op)
    for op in sorted(wanted - seen):
        yield Fault(rule="order", what=f"op {op} never runs", op=op)


def versions_kept(case: Case) -> Iterator[Fault]:
    """The changes of a buffer follow each other as in the program."""
    program = versions(case.graph, ops_of_mode(case.graph, case.plan.mode))
    for buffer, (wanted, found) in enumerate(zip(program, changes(case.graph, case.plan.order), strict=True)):
        if wanted != found and sorted(wanted) == sorted(found):
            op = next(b for a, b in zip(wanted, found, strict=True) if a != b)
            what = f"op {op} changes buffer {buffer} out of turn: the program's order is {wanted[:8]}"
            yield Fault(rule="versions", what=what, op=op, buffer=buffer)


def random(case: Case) -> Iterator[Fault]:
    """What takes or sets the random state stands among the other ops as in the program."""
    for op in displaced(case.graph, case.plan.order):
        what = f"op {op} takes or sets the random state, and runs before a smaller id or after a larger one"
        yield Fault(rule="random", what=what, op=op)


def run(case: Case) -> Iterator[Fault]:
    """Run on paper, every read finds what the program means, and so do the caller and the gradient afterwards."""
    return execution(case.graph, case.plan)


def ring(case: Case) -> Iterable[Fault]:
    """Where weights stream, they are where ops read them, and no copy lands on what is still read."""
    return ring_rules.ring_faults(case.graph, case.plan, case.plan.ring) if case.plan.ring else ()


def _row(check: Callable[[Case], Iterable[Fault]], *rules: str, error: type[PlanError] = PlanUnsound) -> Judgement:
    names = rules or (check.__name__.replace("_", "-"),)
    return Judgement(rules=names, demands=(check.__doc__ or "").split("\n")[0].rstrip("."), check=check, error=error)


FORM: Final = (
    _row(graph_legal, "graph"),
    _row(plan_formed, *(part.__name__ for part in form.PARTS)),
    _row(ir_hash, error=PlanMismatch),
    _row(form.ids),
)
RULES: Final = (
    *FORM,
    _row(token_prefix, error=PlanMismatch),
    _row(digest),
    _row(order),
    _row(versions_kept, "versions"),
    _row(random),
    _row(run, "read", "write", "output", "saved", "persistent"),
    _row(tables.placed),
    _row(tables.arena),
    _row(tables.span),
    _row(tables.takes_over),
    _row(tables.padding),
    _row(tables.alignment),
    _row(tables.overlap),
    _row(tables.slots),
    _row(tables.slot_sharing),
    _row(tables.slot_count),
    _row(tables.slot_bytes),
    _row(tables.address),
    _row(tables.layout),
    _row(tables.peak),
    _row(tables.bound),
    _row(tables.proven),
    _row(tables.capacity),
    _row(tables.metrics),
    _row(ring, *ring_rules.NAMES),
)


def check_plan(graph: Graph, plan: Plan, *, token: bytes | None = None) -> tuple[Fault, ...]:
    """Every fault of ``plan`` as a plan of ``graph``, in the order of the table; empty for a sound plan.

    Without ``token``, addresses are checked for being distinct and aligned only. Where ``FORM`` fails, the first of
    its rows that does is the last one asked. O(N log N) in the plan and the graph.
    """
    case = Case(graph=graph, plan=plan, token=token)
    for row in FORM:
        found = tuple(row.check(case))
        if found:
            return found
    return tuple(chain.from_iterable(row.check(case) for row in RULES[len(FORM) :]))


def judge(graph: Graph, plan: Plan, *, token: bytes | None = None) -> None:
    """Returns for a sound plan; ``PlanMismatch`` for another graph's or token's, ``PlanUnsound`` for a faulty one."""
    faults = check_plan(graph, plan, token=token)
    if faults:
        errors = {name: row.error for row in RULES for name in row.rules}
        error = next((errors[fault.rule] for fault in faults if errors[fault.rule] is PlanMismatch), PlanUnsound)
        fix = "make the plan again with tmmu plan" if error is PlanMismatch else "do not run it; please report it"
        raise error(headline(faults), fix=fix, faults=faults_field(faults), count=len(faults))
