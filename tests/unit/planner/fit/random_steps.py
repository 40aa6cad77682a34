"""Random graphs with calls: operators that are known, that draw, and that nobody knows; and what a rewrite means."""

import random
from dataclasses import replace

import numpy as np

from tests.strategies import Builder, random_graph, seeded
from tests.tagged import EMPTY, ProgramRun, first_tags, tags_of
from tmmu.ir.call_text import LIST, TENSOR, CallText, encode_call, encode_float
from tmmu.ir.graph import ONCE, PERSISTENT_ROLES, PURE, RANDOM, Graph, OpCalls
from tmmu.ir.rewrite import FROM_HOST, HOST_KINDS, TWIN, Part, Rewrite

DROPOUT = ("aten.native_dropout.default", RANDOM)
KINDS = (("aten.cat.default", PURE),) * 12 + (DROPOUT, ("some.unknown.default", ONCE))


def random_step(seed: int) -> Graph:
    """A graph of a few ops up to forty, every other one with a backward half; most ops may run again.

    Every third one has layers with masks.
    """
    dice = random.Random(seed)
    ops = dice.randrange(3, 40)
    graph = _layers(dice) if seed % 3 == 2 else random_graph(seeded(seed), ops=ops, joint=bool(seed % 2))
    kinds = [dice.choice(KINDS) for _ in graph.ops.ids]
    texts: dict[bytes, int] = {}
    call, operands = [], []
    for op, (operator, _) in enumerate(kinds):
        reads, writes = graph.ops.reads[op], graph.ops.writes[op]
        arguments = [LIST, *([TENSOR, 0] for _ in reads)], dice.randrange(3)
        text = CallText(operator=operator, arguments=arguments, results=(True,) * len(writes))
        if _has_mask(graph, op) and dice.randrange(4):
            kinds[op] = DROPOUT
            text = CallText(operator=DROPOUT[0], arguments=([TENSOR, 0], encode_float(0.5), True), results=(True, True))
            reads = reads[:1]
        call.append(texts.setdefault(encode_call(text), len(texts)))
        operands.append((*reads, *writes))
    flops = tuple(dice.randrange(1 << 20) for _ in kinds)
    return replace(
        graph,
        ops=replace(graph.ops, target=tuple(operator for operator, _ in kinds)),
        notes=replace(graph.notes, ops=replace(graph.notes.ops, flops=flops)),
        calls=OpCalls(
            texts=tuple(texts),
            call=tuple(call),
            operands=tuple(operands),
            effect=tuple(effect for _, effect in kinds),
            numbers=((),) * len(kinds),
        ),
    )


def _layers(dice: random.Random) -> Graph:
    """Layers that make a result and a mask each, and their gradients, which read both."""
    b = Builder()
    last = b.buffer("input", (64,))
    made = []
    for _ in range(dice.randrange(2, 9)):
        size = (64 * dice.randrange(1, 9),)
        wide, result, mask = (
            b.buffer("activation", size),
            b.buffer("activation", size),
            b.buffer("activation", size, "bool"),
        )
        b.op([last], [wide])
        b.op([wide], [result, mask], in_place=[(result, wide)] if dice.randrange(2) else [])
        made.append((result, mask))
        last = result
    gradient = b.buffer("gradient", (64,))
    b.op([last], [gradient], stage="backward")
    for result, mask in reversed(made):
        before, gradient = gradient, b.buffer("gradient", (64,))
        b.op([before, result, mask], [gradient], stage="backward")
    return b.build([gradient])


def _has_mask(graph: Graph, op: int) -> bool:
    """Whether an op may be a dropout: it reads something, and makes two buffers that it does not read."""
    buffer_of = graph.values.buffer
    reads, writes = ({buffer_of[value] for value in rows[op]} for rows in (graph.ops.reads, graph.ops.writes))
    return bool(reads) and len(writes) == len(graph.ops.writes[op]) == 2 and not reads & writes


def _reads(base: Graph, expected: ProgramRun, origin: int, kind: str, part: Part) -> list[np.ndarray]:
    """What an op has to read; a twin, of its operand's buffer and of the mask; a copy, the value of its part."""
    if kind in HOST_KINDS:
        return [expected.contents[part[0]]]
    tags = expected.reads[origin]
    if kind != TWIN:
        return tags
    assert base.calls is not None
    buffer_of, (operand, _, mask) = base.values.buffer, base.calls.operands[origin]
    rows = zip(base.ops.reads[origin], tags, strict=True)
    return [*(row for value, row in rows if buffer_of[value] == buffer_of[operand]), expected.contents[mask]]


def _writes(base: Graph, origin: int, kind: str, part: Part) -> tuple[int, ...]:
    """What an op has to write; a twin, the first result alone; a copy back, all values of its buffer."""
    assert base.calls is not None
    if kind in HOST_KINDS:
        buffer_of = base.values.buffer
        beside = tuple(value for value in base.ops.writes[origin] if buffer_of[value] == buffer_of[part[0]])
        return beside if kind == FROM_HOST else part
    return base.calls.operands[origin][1:2] if kind == TWIN else base.ops.writes[origin]


def meaning_fault(base: Graph, graph: Graph, rewrite: Rewrite) -> str:
    """What an op, an output or what persists holds other than in the base, byte by byte; nothing of a judge is used."""
    expected, run = ProgramRun(base, base.ops.ids), ProgramRun(graph, ())
    buffers = [first_tags(base, buffer) for buffer in base.buffers.ids]
    buffers += [np.full(size, EMPTY) for size in graph.buffers.bytes[len(buffers) :]]
    for op, origin in enumerate(rewrite.origin):
        kind, part = rewrite.kind[op], rewrite.part[op]
        for value, tags in zip(graph.ops.reads[op], _reads(base, expected, origin, kind, part), strict=True):
            if not np.array_equal(buffers[graph.values.buffer[value]][run.places[value]], tags):
                return f"op {op} reads value {value}, which is not what op {origin} of the base reads"
        for value, old in zip(graph.ops.writes[op], _writes(base, origin, kind, part), strict=True):
            places = run.places[value]
            buffers[graph.values.buffer[value]][places] = tags_of(origin, base.values.buffer[old], places)
    for value, old in zip(graph.outputs, base.outputs, strict=True):
        tags = expected.buffers[base.values.buffer[old]][expected.places[old]]
        if not np.array_equal(buffers[graph.values.buffer[value]][run.places[value]], tags):
            return f"output {value} is not the base's"
    for buffer, role in enumerate(base.buffers.role):
        if role in PERSISTENT_ROLES and not np.array_equal(buffers[buffer], expected.buffers[buffer]):
            return f"buffer {buffer} is not the base's at the end"
    return ""
