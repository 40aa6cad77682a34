"""The pass pipeline: every pass in one ordered table, run by everybody who lowers a captured program.

A row names its function, the facts that it needs and gives, and its rule of meaning: what it may change. After each
row the rules of legality run on the graph that came out, the rule of meaning holds it against the one that went in,
and each fact that is claimed by then is checked, in production too: a pass that breaks a promise is an internal error
that names the pass, and never a plan.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.errors import InternalError
from tmmu.ir.fault import Fault, headline
from tmmu.ir.program import Program
from tmmu.judge.rules import check_graph, require_legal
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.lowering.describe_calls import describe_calls
from tmmu.passes.lowering.eliminate_dead_ops import eliminate_dead_ops, live_ops
from tmmu.passes.lowering.label_semantics import label_semantics
from tmmu.passes.lowering.lower import lower
from tmmu.passes.lowering.mark_overwrites import mark_overwrites
from tmmu.passes.lowering.mark_saves import mark_saves
from tmmu.passes.lowering.require_given_elements import require_given_elements
from tmmu.passes.meaning import Meaning, changes_only, drops_without_effect


@dataclass(frozen=True, slots=True)
class Fact:
    """Something true of a program once a pass has run, how that is checked, and what the check looks at.

    ``columns`` of ops, beside the calls. Where none of them is another object than before, the check is not repeated.
    """

    name: str
    check: Callable[[Program], Iterator[Fault]]
    columns: tuple[str, ...] = ()

    def still_holds(self, before: Program, after: Program) -> bool:
        """Whether a fact that held before holds after, since nothing that it looks at was touched."""
        old, new = before.graph, after.graph
        return (
            before.calls is after.calls
            and before.joint is after.joint
            and old.buffers is new.buffers
            and old.values is new.values
            and old.outputs is new.outputs
            and all(getattr(old.ops, column) is getattr(new.ops, column) for column in self.columns)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One row: a pure function from program to program. ``ends`` are facts that it makes untrue."""

    name: str
    run: Callable[[Program], Program]
    meaning: Meaning
    needs: tuple[Fact, ...] = ()
    gives: tuple[Fact, ...] = ()
    ends: tuple[Fact, ...] = ()


def _call_faults(program: Program) -> Iterator[Fault]:
    """Calls that are not the ops beside them: another operator, arguments that the op does not read, other results."""
    ops = program.graph.ops
    if len(program.calls) != len(ops):
        yield Fault(rule="calls", what=f"{len(program.calls)} calls stand beside {len(ops)} ops")
        return
    for op, call in enumerate(program.calls):
        if str(call.operator) != ops.target[op]:
            yield Fault(rule="calls", what=f"op {op} is {ops.target[op]}, and its call {call.operator}", op=op)
        if not {ref.value for ref in call.refs()} <= set(ops.reads[op]):
            yield Fault(rule="calls", what=f"the call of op {op} is given what the op does not read", op=op)
        results = {value for value in call.results if value is not None}
        if not results <= {*ops.writes[op], *ops.reads[op]}:
            yield Fault(rule="calls", what=f"the call of op {op} returns what the op does not write", op=op)


def _dead_ops(program: Program) -> Iterator[Fault]:
    """Ops that nobody would miss."""
    live = set(live_ops(program))
    return (
        Fault(rule="live", what=f"op {op} ({target}) is dead", op=op)
        for op, target in enumerate(program.graph.ops.target)
        if op not in live
    )


def _no_faults(_: Program) -> Iterator[Fault]:
    """A fact about columns alone, which the rules of legality check after every pass."""
    return iter(())


CALLS: Final = Fact("calls", _call_faults, ("target", "reads", "writes"))
LIVE: Final = Fact("live", _dead_ops, ("target", "reads", "writes"))
SAVES: Final = Fact("saves", _no_faults)
OVERWRITES: Final = Fact("overwrites", _no_faults)
LABELS: Final = Fact("labels", _no_faults)
DESCRIBED: Final = Fact("described", _no_faults)
"""The graph's columns of calls are there; the rule of legality holds them against the ops."""

LOWERED: Final = (CALLS,)
"""Facts of a program as ``lower`` makes it."""

PASSES: Final = (
    Pass(
        name="eliminate_dead_ops",
        run=eliminate_dead_ops,
        meaning=drops_without_effect,
        needs=(CALLS,),
        gives=(LIVE,),
        ends=(SAVES, OVERWRITES, LABELS, DESCRIBED),
    ),
    Pass(
        name="mark_saves",
        run=mark_saves,
        meaning=changes_only("saves", "recompute"),
        needs=(CALLS, LIVE),
        gives=(SAVES,),
    ),
    Pass(
        name="mark_overwrites",
        run=mark_overwrites,
        meaning=changes_only("overwrites"),
        needs=(CALLS,),
        gives=(OVERWRITES,),
    ),
    Pass(name="label_semantics", run=label_semantics, meaning=changes_only(), needs=(CALLS, LIVE), gives=(LABELS,)),
    Pass(name="describe_calls", run=describe_calls, meaning=changes_only("calls"), needs=(CALLS,), gives=(DESCRIBED,)),
)
"""In the order in which they run."""


def lower_program(captured: CapturedProgram) -> Program:
    """The captured program, lowered, after every pass of the table; its graph is legal.

    Errors: ``INTERNAL`` where a pass breaks a promise; the error of the first broken rule where the graph as it was
    lowered is not legal; ``UNSUPPORTED_OP`` where it needs more of an input than it was given.
    """
    program = run_passes(lower(captured), PASSES, LOWERED)
    require_given_elements(program)
    return program


def run_passes(program: Program, passes: Sequence[Pass], facts: Iterable[Fact]) -> Program:
    """The program after these passes, of which ``facts`` are claimed at the beginning.

    What was checked once is not checked again while nothing that the check looks at is another object. So the program
    that comes in is checked too: the rules of legality before the first row, the facts claimed of it after that row.
    """
    require_legal(program.graph)
    claimed = tuple(facts)
    verified: tuple[Fact, ...] = ()
    for row in passes:
        missing = [fact.name for fact in row.needs if fact not in claimed]
        if missing:
            raise InternalError(f"pass {row.name} needs {', '.join(missing)}, which no pass before it gives")
        before, program = program, row.run(program)
        claimed = tuple(dict.fromkeys(fact for fact in (*claimed, *row.gives) if fact not in row.ends))
        unchanged = {fact for fact in verified if fact not in row.gives and fact.still_holds(before, program)}
        _demand_kept_promises(row, before, program, [fact for fact in claimed if fact not in unchanged])
        verified = claimed
    return program


def _demand_kept_promises(row: Pass, before: Program, after: Program, facts: Iterable[Fact]) -> None:
    faults = check_graph(after.graph, legal=before.graph)
    if not faults:
        faults = (*row.meaning(before, after), *(fault for fact in facts for fault in fact.check(after)))
    if faults:
        raise InternalError(f"pass {row.name} broke its promise: {headline(faults)}")
