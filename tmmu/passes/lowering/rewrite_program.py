"""A rewritten program: the graph that a rewrite makes of a base, and the call behind each of its ops.

Calls are those of the base with other values in their places, so that nothing is lost that only a traced call has
(generators, numbers that vary). Each is described as the base's was, and must be the call that the rewritten graph
says: what the judge of rewrites proves of the graph holds for what runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from tmmu.errors import InternalError, UnsupportedOp
from tmmu.ir.graph import Graph, OpCalls
from tmmu.ir.ids import OpId, ValueId
from tmmu.ir.program import (
    Call,
    JointGraph,
    PlacedWindow,
    Program,
    ProgramBase,
    RepeatedStep,
    StepRun,
    ValueRef,
    is_formula,
    map_refs,
)
from tmmu.ir.rebuild import TWINS, rebuild_graph, twin_scale
from tmmu.ir.rewrite import ARGUMENT, HOST_KINDS, NONE, PARTIAL_KINDS, RESULT, SAME, SCALE, SUBLIST, TWIN, Part, Rewrite
from tmmu.judge.rewrite.check import require_rows
from tmmu.passes.lowering.describe_calls import describe_call
from tmmu.passes.lowering.read_calls import find_operator, read_call
from tmmu.passes.operators.schema import argument_schema


def rewrite_program(base: Program, rewrite: Rewrite) -> Program:
    """The program that runs what ``rewrite`` makes of a base that is described; what it means is for the judge to say.

    Errors: those of ``require_rows``; ``UNSUPPORTED_OP`` for a program in two halves, between which a caller has what
    was saved.
    """
    if base.joint is not None and base.joint.backward is not None:
        raise UnsupportedOp("a step that is cut in two halves is not rewritten", fix="plan it as it is")
    require_rows(base.graph, rewrite)
    graph = rebuild_graph(base.graph, rewrite)
    calls = _Calls.of(base.graph, graph, rewrite)
    return Program(
        graph=graph,
        calls=tuple(
            _part_call(calls, op)
            if rewrite.kind[op] in (*PARTIAL_KINDS, *HOST_KINDS)
            else calls.at(op, base.calls[origin], own=True)
            for op, origin in enumerate(rewrite.origin)
        ),
        joint=None if base.joint is None else _rewritten_joint(base.joint, base.graph, graph, rewrite),
        base=ProgramBase(graph=base.graph, calls=base.calls, rewrite=rewrite),
        routings=base.routings,
    )


def _part_call(calls: "_Calls", op: int) -> Call:
    """The call of a part or a copy, which is made of what its graph says: its origin's has other arguments."""
    return read_call(calls.after, op)


def _rewritten_joint(joint: JointGraph, base: Graph, rewritten: Graph, rewrite: Rewrite) -> JointGraph:
    """Of a program without a backward half: each op that hands outputs out does so at its new place."""
    place_of = {origin: op for op, origin in enumerate(rewrite.origin) if rewrite.kind[op] == SAME}
    now: dict[int, ValueId] = {}
    for delivery in joint.forward.deliveries:
        origin = OpId(delivery.after - 1)
        now |= dict(zip(base.ops.reads[origin], rewritten.ops.reads[place_of[origin]], strict=True))
    deliveries = [
        replace(delivery, after=place_of[OpId(delivery.after - 1)] + 1) for delivery in joint.forward.deliveries
    ]
    forward = replace(
        joint.forward,
        outputs=tuple(
            replace(output, value=now.get(output.value, output.value)) if isinstance(output, ValueRef) else output
            for output in joint.forward.outputs
        ),
        deliveries=tuple(sorted(deliveries, key=attrgetter("after"))),
    )
    return replace(joint, forward_ops=len(rewritten.ops), forward=forward)


def rewrite_repeated(repeated: RepeatedStep, program: Program) -> RepeatedStep:
    """How the rewritten program of a step of the user's repeats, from how its base does."""
    base = program.base
    if base is None:
        raise InternalError("a program that was not rewritten was asked how its base repeats")
    calls = _Calls.of(base.graph, program.graph, base.rewrite)
    before, after = base.graph, program.graph
    moved: dict[int, int] = {
        before.values.buffer[old]: after.values.buffer[new]
        for old, new in zip(before.outputs, after.outputs, strict=True)
    }
    carried = {buffer: moved.get(source, source) for buffer, source in repeated.carried.items()}
    runs = tuple(_rewritten_run(run, calls, moved) for run in repeated.runs)
    return replace(repeated, runs=runs, carried=carried)


def _rewritten_run(run: StepRun, calls: "_Calls", moved: Mapping[int, int]) -> StepRun:
    """A run whose windows on outputs lie where the rewritten graph has them; all else that stays is in its place."""

    def place(window: PlacedWindow) -> PlacedWindow:
        return replace(window, buffer=moved.get(window.buffer, window.buffer))

    kinds = enumerate(zip(calls.rewrite.origin, calls.rewrite.kind, strict=True))
    origins = [(op, origin) for op, (origin, kind) in kinds if kind not in HOST_KINDS]
    return replace(
        run,
        calls={op: calls.at(op, run.calls[origin]) for op, origin in origins if origin in run.calls},
        left={name: window and place(window) for name, window in run.left.items()},
        results=tuple((name, place(window)) for name, window in run.results),
    )


@dataclass(frozen=True, slots=True)
class _Calls:
    """The columns of calls, before and after; ``checked``: calls of the base, by id, that are its graph's.

    A list of an optimizer's is looked at once, however many parts it is cut into.
    """

    before: OpCalls
    after: OpCalls
    rewrite: Rewrite
    checked: dict[int, Call] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Graph, rewritten: Graph, rewrite: Rewrite) -> "_Calls":
        if base.calls is None or rewritten.calls is None:
            raise InternalError("a graph without calls was rewritten")
        return cls(base.calls, rewritten.calls, rewrite)

    def at(self, op: int, call: Call, *, own: bool = False) -> Call:
        """What an op calls, from the call of its origin: its ``own``, or one with the numbers of another run."""
        origin = self.rewrite.origin[op]
        cut = _cut(call, self.rewrite.kind[op], self.rewrite.part[op])
        has_inputs, operands = bool(self.before.numbers[origin]), self.after.operands[op]
        row = describe_call(cut, has_inputs=has_inputs)
        if self.checked.get(origin) is not call:
            whole = row if cut is call else describe_call(call, has_inputs=has_inputs)
            if tuple(whole.operands) != self.before.operands[origin]:
                raise InternalError(f"op {origin} has another call than its graph says")
            self.checked[origin] = call
        if row.text != self.after.texts[self.after.call[op]] or len(row.operands) != len(operands):
            raise InternalError(f"op {op} of a rewritten graph has another call than its program")
        if own and tuple(row.numbers) != self.after.numbers[op]:
            raise InternalError(f"op {op} of a rewritten graph has other numbers than its program")
        split = len(operands) - sum(value is not None for value in cut.results)
        arguments = _replacement(row.operands[:split], operands[:split], op)
        results = _replacement(row.operands[split:], operands[split:], op)

        def rename(ref: ValueRef) -> ValueRef:
            return replace(ref, value=arguments[ref.value])

        return replace(
            cut,
            args=tuple(map_refs(argument, rename) for argument in cut.args),
            kwargs=tuple((name, map_refs(argument, rename)) for name, argument in cut.kwargs),
            results=tuple(None if value is None else results[value] for value in cut.results),
        )


def _replacement(old: Sequence[ValueId], new: Sequence[ValueId], op: OpId | int) -> dict[int, int]:
    """By base value, the one that stands for it in one call."""
    found = dict(zip(old, new, strict=True))
    if [found[value] for value in old] != list(new):
        raise InternalError(f"op {op} of a rewritten graph has two values for one of its base")
    return {int(value): int(now) for value, now in found.items()}


def _twin(call: Call) -> Call:
    """The call of its twin: another operator, with other arguments."""
    twin = TWINS[str(call.operator)]
    operator = find_operator(twin.operator)
    arguments = {**dict(enumerate(call.args)), **_by_place(call)}
    args, kwargs = list[Any](), list[tuple[str, Any]]()
    for index, (what, place) in enumerate(twin.arguments):
        if what in (ARGUMENT, SCALE) and place not in arguments:
            continue
        if what == RESULT:
            argument: Any = _result(call, place)
        elif what == NONE:
            argument = None
        else:
            argument = arguments[place] if what == ARGUMENT else twin_scale(arguments[place])
        if index == len(args):
            args.append(argument)
        else:
            kwargs.append((argument_schema(operator)[index][0], argument))
    return replace(
        call,
        operator=operator,
        args=tuple(args),
        kwargs=tuple(kwargs),
        results=tuple(call.results[place] for place in twin.results),
    )


def _result(call: Call, place: int) -> ValueRef:
    value = call.results[place]
    if value is None:
        raise InternalError(f"the twin of {call.operator} reads a result that is no tensor")
    return ValueRef(value)


def _by_place(call: Call) -> dict[int, Any]:
    """The arguments that are named."""
    places = {name: place for place, (name, *_) in enumerate(argument_schema(call.operator))}
    return {places[name]: argument for name, argument in call.kwargs}


def _cut(call: Call, kind: str, part: Part) -> Call:
    """The call without the arguments through which it has effects, or on a range of its lists."""
    if kind == TWIN:
        return _twin(call)
    if kind != SUBLIST or not part:
        return call
    entries = slice(*part)

    def shorten(argument: Any) -> Any:
        is_list = isinstance(argument, (list, tuple)) and not is_formula(argument)
        return argument[entries] if is_list else argument

    return replace(
        call,
        args=tuple(map(shorten, call.args)),
        kwargs=tuple((name, shorten(argument)) for name, argument in call.kwargs),
        results=call.results[entries] if call.results and all(v is not None for v in call.results) else call.results,
    )
