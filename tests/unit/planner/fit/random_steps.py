"""Random graphs with calls: operators that are known, that draw, and that nobody knows; and what a rewrite means."""

import random
from dataclasses import replace

import numpy as np

from tests.strategies import random_graph, seeded
from tests.tagged import EMPTY, ProgramRun, first_tags, tags_of
from tmmu.ir.call_text import LIST, TENSOR, CallText, encode_call
from tmmu.ir.graph import ONCE, PERSISTENT_ROLES, PURE, RANDOM, Graph, OpCalls
from tmmu.ir.rewrite import Rewrite

KINDS = (("aten.cat.default", PURE),) * 12 + (("aten.native_dropout.default", RANDOM), ("some.unknown.default", ONCE))


def random_step(seed: int) -> Graph:
    """A graph of a few ops up to forty, every other one with a backward half; most ops may run again."""
    dice = random.Random(seed)
    graph = random_graph(seeded(seed), ops=dice.randrange(3, 40), joint=bool(seed % 2))
    kinds = [dice.choice(KINDS) for _ in graph.ops.ids]
    texts: dict[bytes, int] = {}
    call, operands = [], []
    for op, (operator, _) in enumerate(kinds):
        reads, writes = graph.ops.reads[op], graph.ops.writes[op]
        arguments = [LIST, *([TENSOR, 0] for _ in reads)], dice.randrange(3)
        text = CallText(operator=operator, arguments=arguments, results=(True,) * len(writes))
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


def meaning_fault(base: Graph, graph: Graph, rewrite: Rewrite) -> str:
    """What an op, an output or what persists holds other than in the base, byte by byte; nothing of a judge is used."""
    expected, run = ProgramRun(base, base.ops.ids), ProgramRun(graph, ())
    buffers = [first_tags(base, buffer) for buffer in base.buffers.ids]
    buffers += [np.full(size, EMPTY) for size in graph.buffers.bytes[len(buffers) :]]
    for op, origin in enumerate(rewrite.origin):
        for value, tags in zip(graph.ops.reads[op], expected.reads[origin], strict=True):
            if not np.array_equal(buffers[graph.values.buffer[value]][run.places[value]], tags):
                return f"op {op} reads value {value}, which is not what op {origin} of the base reads"
        for value, old in zip(graph.ops.writes[op], base.ops.writes[origin], strict=True):
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
