"""Dead-code elimination: ops whose results nobody reads and that have no effect are dropped.

An op is live if it has an effect, or if a live op, an output of the graph or an output of a half names what it writes.
One walk from the last op to the first decides: readers stand behind writers, so when the walk reaches an op, every
live reader of its values has been seen. What an op changes in part it also reads whole, so the earlier version lives.
"""

from tmmu.ir.edit import keep_ops
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.ids import OpId
from tmmu.ir.program import Program, ValueRef
from tmmu.passes.operators.table import facts_of


def eliminate_dead_ops(program: Program) -> Program:
    """The program without its dead ops, and without the values and buffers that only those named. Linear."""
    return keep_ops(program, live_ops(program))


def live_ops(program: Program) -> list[OpId]:
    """The ops that must run, by id."""
    graph = program.graph
    ops = graph.ops
    needed = {*graph.outputs, *_handed_out(program)}
    live = []
    for op in reversed(range(len(ops))):
        if has_effect(graph, op) or not needed.isdisjoint(ops.writes[op]):
            live.append(OpId(op))
            needed.update(ops.reads[op], ops.saves[op])
    return live[::-1]


def has_effect(graph: Graph, op: int) -> bool:
    """Whether the op does more than make its results.

    It changes what outlives the step, draws random numbers, which moves the generator for all later draws, has no
    result at all, or is unknown: a custom operator may do anything.
    """
    facts, writes = facts_of(graph.ops.target[op]), graph.ops.writes[op]
    if not facts.has_row or facts.random or not writes:
        return True
    return any(graph.buffers.role[graph.values.buffer[value]] in PERSISTENT_ROLES for value in writes)


def _handed_out(program: Program) -> set[int]:
    """Values that the halves of a joint graph give to their caller."""
    joint = program.joint
    halves = () if joint is None else (joint.forward, joint.backward)
    outputs = [output for half in halves if half is not None for output in half.outputs]
    return {output.value for output in outputs if isinstance(output, ValueRef)}
