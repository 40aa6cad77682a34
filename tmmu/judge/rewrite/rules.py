"""The rules by which a rewritten graph means its base: a table, in the order in which they are checked.

Each op is checked against the classes (``context.py``) that other ops claim; as no op runs before what it reads, all
claims hold when each does.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from tmmu.ir.fault import Fault
from tmmu.ir.graph import PERSISTENT_ROLES, PURE, STAGES, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.rewrite import (
    FROM_HOST,
    HOST_KINDS,
    KINDS,
    PARTIAL_KINDS,
    RERUN,
    SAME,
    SUBLIST,
    TO_HOST,
    TWIN,
    WITH_PART,
    Rewrite,
)
from tmmu.judge.rewrite.context import RewriteContext, calls_of, is_persistent, place
from tmmu.judge.rewrite.expected import CallPlaces
from tmmu.judge.rewrite.part_rules import host_objection, part_objection
from tmmu.judge.rewrite.parts import NEAR_RULES, ExpectedPart
from tmmu.judge.versions import program_order, versions


def form(context: RewriteContext) -> Iterator[Fault]:
    """The rewrite is of these two graphs, which have calls; its columns have a row for each op, of known kinds."""
    base, rewritten, rewrite = context.base, context.rewritten, context.rewrite
    if base.calls is None or rewritten.calls is None:
        yield Fault(rule="form", what="a graph of version 1 does not say its calls")
    elif rewrite.base_hash != base.ir_hash:
        yield Fault(rule="form", what=f"rewrites {rewrite.base_hash.hex()[:16]}, not {base.ir_hash.hex()[:16]}")
    for name in ("origin", "kind", "part"):
        if len(getattr(rewrite, name)) != len(rewritten.ops):
            yield Fault(rule="form", what=f"{name} has {len(getattr(rewrite, name))} rows, not {len(rewritten.ops)}")
    yield from row_faults(base, rewrite)


def row_faults(base: Graph, rewrite: Rewrite) -> Iterator[Fault]:
    """Rows that stand for no op of the base, or are of no kind, or come back from the host before they went."""
    gone = set[object]()
    for op, (origin, kind, part) in enumerate(zip(rewrite.origin, rewrite.kind, rewrite.part, strict=False)):
        if type(origin) is not int or not 0 <= origin < len(base.ops):
            yield Fault(rule="form", what=f"op {op} stands for op {origin}, which the base has not", op=op)
        is_whole = kind not in WITH_PART
        if kind not in KINDS or not _is_part(part) or (is_whole and part != ()):
            yield Fault(rule="form", what=f"op {op} is of kind {kind!r:.20}, part {part!r:.40}", op=op)
        elif kind == FROM_HOST and part not in gone:
            yield Fault(rule="form", what=f"op {op} comes back from the host with what never went: {part!r:.40}", op=op)
        elif kind == TO_HOST:
            gone.add(part)


def _is_part(part: object) -> bool:
    return isinstance(part, tuple) and all(type(number) is int for number in part)


def nearness(context: RewriteContext) -> Iterator[Fault]:
    """What has other bits than the base is so by a rule that is asked for."""
    for op, kind in enumerate(context.rewrite.kind):
        name = NEAR_RULES.get(kind)
        if name is not None and name not in context.near:
            target = context.base.ops.target[context.rewrite.origin[op]]
            yield Fault(rule="nearness", what=f"op {op}, of {target}, is only near: {name}", op=op)


def frame(context: RewriteContext) -> Iterator[Fault]:
    """Target, inputs and all that persists are the base's; whatever is new does not persist."""
    base, rewritten = context.base, context.rewritten
    if base.target != rewritten.target:
        yield Fault(rule="frame", what=f"the target is {rewritten.target}, not {base.target}")
    before, after = base.buffers, rewritten.buffers
    for buffer in range(max(len(before), len(after))):
        old = (before.role[buffer], before.bytes[buffer]) if buffer < len(before) else ("", 0)
        new = (after.role[buffer], after.bytes[buffer]) if buffer < len(after) else ("", 0)
        if old != new and PERSISTENT_ROLES & {old[0], new[0]}:
            yield Fault(rule="frame", what=f"buffer {buffer} is {new}, not {old}", buffer=buffer)
    if [place(rewritten, value) for value in rewritten.inputs] != [place(base, value) for value in base.inputs]:
        yield Fault(rule="frame", what="inputs are not the base's")


def call(context: RewriteContext) -> Iterator[Fault]:
    """An op makes the call of its origin, in its stage: the same text and numbers, or the twin's or sublist's of it."""
    base, found = calls_of(context.base), calls_of(context.rewritten)
    for op, expected in zip(context.rewritten.ops.ids, context.expected, strict=True):
        origin = context.rewrite.origin[op]
        if isinstance(expected, str):
            yield Fault(rule="call", what=f"op {op}: {expected}", op=op)
        elif context.rewritten_texts[found.call[op]] != expected.text:
            yield Fault(rule="call", what=f"op {op} does not make the call of op {origin} of the base", op=op)
        elif found.numbers[op] != tuple(base.numbers[origin][place] for place in expected.numbers):
            yield Fault(rule="call", what=f"op {op} has other numbers than op {origin} of the base", op=op)
        elif found.effect[op] != (PURE if context.rewrite.kind[op] in (TWIN, *HOST_KINDS) else base.effect[origin]):
            yield Fault(rule="call", what=f"op {op} has another effect than op {origin} of the base", op=op)
        elif not _is_in_stage(context, op):
            yield Fault(rule="call", what=f"op {op} is not in the stage of op {origin} of the base", op=op)


def _is_in_stage(context: RewriteContext, op: OpId) -> bool:
    """The stage of its origin, by which a mode runs it; what runs again, and copies, may do so later."""
    stage, origin = context.rewritten.ops.stage[op], context.base.ops.stage[context.rewrite.origin[op]]
    return stage == origin or (
        context.rewrite.kind[op] in (RERUN, TWIN, *HOST_KINDS) and STAGES.index(stage) > STAGES.index(origin)
    )


def operands(context: RewriteContext) -> Iterator[Fault]:
    """Each operand, read and written value is of the origin's class and window; aliases are aliases there too."""
    for op in context.rewritten.ops.ids:
        objection = _operand_objection(context, op)
        if objection:
            yield Fault(rule="operands", what=f"op {op} {objection} op {context.rewrite.origin[op]} of the base", op=op)


def _operand_objection(context: RewriteContext, op: OpId) -> str:
    base, rewritten, origin = context.base, context.rewritten, context.rewrite.origin[op]
    expected = context.expected[op]
    assert not isinstance(expected, str)  # rule ``call`` came first
    if isinstance(expected, ExpectedPart):
        return part_objection(context, op, expected) or host_objection(context, op)
    base_operands = [calls_of(base).operands[origin][place] for place in expected.operands]
    written = rewritten.ops.writes[op][: len(context.written(op))]
    rows = (
        ("has other operands than", calls_of(rewritten).operands[op], base_operands),
        ("reads other values than", rewritten.ops.reads[op], context.reads(op)),
        ("writes other values than", written, context.written(op)),
    )
    for objection, values, base_values in rows:
        if len(values) != len(base_values) or not all(map(context.is_value_of, values, base_values)):
            return objection
    touched = [*zip(rewritten.ops.reads[op], context.reads(op), strict=True)]
    touched += zip(written, context.written(op), strict=True)
    buffer_of = rewritten.values.buffer
    if not {buffer_of[value] for value in rewritten.ops.writes[op]} <= {buffer_of[value] for value in written}:
        return "writes other buffers than"
    if not _same_aliases(context, op, touched):
        return "aliases its operands otherwise than"
    stands_for = set(touched)
    for overwriting, taken in rewritten.ops.overwrites[op]:
        if not any({(overwriting, w), (taken, r)} <= stands_for for w, r in base.ops.overwrites[origin]):
            return "overwrites what is not overwritten by"
    return ""


def _same_aliases(context: RewriteContext, op: OpId, touched: Sequence[tuple[ValueId, ValueId]]) -> bool:
    """Whether each buffer that is written, here or there, is touched by the same values here and there."""
    base, rewritten = context.base.values.buffer, context.rewritten.values.buffer
    changed = {rewritten[value] for value in context.rewritten.ops.writes[op]}
    base_changed = {base[value] for value in context.written(op)}
    pairs = {(rewritten[value], base[base_value]) for value, base_value in touched}
    concerned = {(new, old) for new, old in pairs if new in changed or old in base_changed}
    here, there = Counter(new for new, _ in concerned), Counter(old for _, old in concerned)
    return max((*here.values(), *there.values()), default=1) == 1


def effects(context: RewriteContext) -> Iterator[Fault]:
    """An op that runs once does so as it is or in sublists that cover it; the others run as often as they are there."""
    runs: dict[int, list[int]] = {}
    for op, origin in enumerate(context.rewrite.origin):
        runs.setdefault(origin, []).append(op)
        if context.rewrite.kind[op] in (RERUN, *PARTIAL_KINDS) and context.runs_once[origin]:
            target = context.base.ops.target[origin]
            yield Fault(rule="effects", what=f"op {op} reruns or cuts {target}, which runs once", op=op)
    for origin, runs_once in zip(context.base.ops.ids, context.runs_once, strict=True):
        if runs_once:
            objection = _coverage(context, origin, runs.get(origin, []))
            if objection:
                target = context.base.ops.target[origin]
                yield Fault(rule="effects", what=f"{target}, op {origin} of the base, {objection}")


def _coverage(context: RewriteContext, origin: int, ops: Sequence[int]) -> str:
    rewrite = context.rewrite
    whole = sum(rewrite.kind[op] == SAME for op in ops)
    parts = sorted(rewrite.part[op] for op in ops if rewrite.kind[op] == SUBLIST)
    if not parts:
        return "" if whole == 1 else f"runs {whole} times, not once"
    ends = [0, *(part[1] for part in parts if part)]
    starts = [*(part[0] for part in parts if part), CallPlaces.of(context.text(origin)).length]
    if whole or starts != ends:
        return "is not covered once by its sublists"
    return _shared_buffer(context, [op for op in ops if rewrite.kind[op] == SUBLIST])


def _shared_buffer(context: RewriteContext, ops: Sequence[int]) -> str:
    """Sublists that change one buffer would make one version of it in several ops."""
    changed = Counter(
        buffer for op in ops for buffer in {context.base.values.buffer[value] for value in context.written(OpId(op))}
    )
    return "is cut into sublists that change one buffer" if max(changed.values(), default=1) > 1 else ""


def sequence(context: RewriteContext) -> Iterator[Fault]:
    """What persists changes as in the base; ops that are not known, and draws, come in the order of the base."""
    base, rewritten, origin = context.base, context.rewritten, context.rewrite.origin
    before, after = versions(base, base.ops.ids), versions(rewritten, rewritten.ops.ids)
    for buffer in base.buffers.ids:
        if is_persistent(base, buffer) and [origin[op] for op in after[buffer]] != before[buffer]:
            yield Fault(rule="sequence", what=f"buffer {buffer} is not changed as in the base", buffer=buffer)
    unknown = [op for op in program_order(base, base.ops.ids) if not context.is_known(op)]
    order = [
        op for op in program_order(rewritten, rewritten.ops.ids) if context.rewrite.kind[op] not in (TWIN, *HOST_KINDS)
    ]
    found = [origin[op] for op in order if not context.is_known(origin[op])]
    if found != unknown:
        yield Fault(rule="sequence", what="ops whose effects are not known come in another order than in the base")


def outputs(context: RewriteContext) -> Iterator[Fault]:
    """Outputs are the base's: class and window, in what persists in its place, aliases of each other as there."""
    base, rewritten = context.base, context.rewritten
    if len(base.outputs) != len(rewritten.outputs):
        yield Fault(rule="outputs", what=f"there are {len(rewritten.outputs)} outputs, not {len(base.outputs)}")
        return
    buffers: set[tuple[BufferId, BufferId]] = set()
    for index, (value, base_value) in enumerate(zip(rewritten.outputs, base.outputs, strict=True)):
        new, old = rewritten.values.buffer[value], base.values.buffer[base_value]
        if not context.is_value_of(value, base_value) or (is_persistent(base, old) and new != old):
            yield Fault(rule="outputs", what=f"output {index} is not the base's", value=value)
        buffers.add((new, old))
    if len(buffers) != len({new for new, _ in buffers}) or len(buffers) != len({old for _, old in buffers}):
        yield Fault(rule="outputs", what="outputs alias each other otherwise than in the base")


RewriteRule: TypeAlias = Callable[[RewriteContext], Iterator[Fault]]
RULES: Final[tuple[RewriteRule, ...]] = (form, nearness, frame, call, operands, effects, sequence, outputs)
"""Where a row fails no later row is checked: later rows trust what earlier ones say."""
