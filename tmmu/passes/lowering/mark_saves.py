"""What a forward op saves for its gradient: the values of the forward half that the backward half reads."""

from collections.abc import Sequence

from tmmu.ir.edit import with_columns
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.program import Call, Program
from tmmu.passes.operators.table import facts_of


def mark_saves(program: Program) -> Program:
    """Each saved value given to the op that saves it, and what is cheap to compute again marked ``recompute``.

    The saver is the forward op with the gradient's autograd number, where that op reads or writes the value; else the
    op that writes it. Persistent buffers are not saved: they live throughout. Linear.
    """
    graph, ops = program.graph, program.graph.ops
    trains = "backward" in ops.stage
    saves = _saved_values(graph, program.calls) if trains else ((),) * len(ops)
    recompute = tuple(
        trains and stage == "forward" and facts_of(target).elementwise and not facts_of(target).random
        for target, stage in zip(ops.target, ops.stage, strict=True)
    )
    return with_columns(program, saves=saves, recompute=recompute)


def _saved_values(graph: Graph, calls: Sequence[Call]) -> tuple[tuple[int, ...], ...]:
    ops, buffer, role = graph.ops, graph.values.buffer, graph.buffers.role
    forward = [op for op, stage in enumerate(ops.stage) if stage == "forward"]
    writer = {value: op for op in forward for value in ops.writes[op]}
    by_sequence: dict[int, list[int]] = {}
    for op in forward:
        by_sequence.setdefault(calls[op].sequence, []).append(op)
    saved: list[dict[int, None]] = [{} for _ in ops.target]
    for op, stage in enumerate(ops.stage):
        for value in ops.reads[op] if stage == "backward" else ():
            if value in writer and role[buffer[value]] not in PERSISTENT_ROLES:
                partners = by_sequence.get(calls[op].sequence, ())
                touching = (
                    partner for partner in partners if value in ops.reads[partner] or value in ops.writes[partner]
                )
                saved[next(touching, writer[value])][value] = None
    return tuple(tuple(values) for values in saved)
