"""Abstract execution against a run in bytes: each op mixes what it reads and fills what it writes."""

import random
from dataclasses import dataclass, field

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import graphs, random_graph, seeded
from tests.unit.ir.samples import TOKEN, arenas, edit
from tmmu.ir.graph import Graph
from tmmu.ir.plan import MODES, PRESETS, Plan
from tmmu.ir.windows import windows
from tmmu.judge.check import check_plan
from tmmu.judge.execute import Execution
from tmmu.judge.spans import ops_of_mode, saved_values
from tmmu.judge.versions import edges, topological_order
from tmmu.planner.prepare import prepare_memory

kinds = st.tuples(
    st.sampled_from(MODES), st.sampled_from(PRESETS), st.sampled_from(("joint", "packed", "slots", "sequential"))
)


@dataclass
class Machine:
    """Runs a graph in bytes: with a plan in its arenas, without one in memory of each buffer's own.

    The kernels are as harmful as the IR permits: a result's bytes are garbage before the first argument is
    read, unless the op may overwrite that argument, or changes a buffer that it reads.
    """

    graph: Graph
    plan: Plan | None
    memory: dict[int, bytearray] = field(default_factory=dict)
    place: dict[int, tuple[int, int]] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    log: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.graph.buffers.bytes
        for buffer in range(len(size)):
            self.place[buffer] = (-1 - buffer, 0)
        for row, buffer in enumerate(self.plan.buffers.id if self.plan else ()):
            assert self.plan
            self.place[buffer] = (slab(self.plan, row), self.plan.buffers.offset[row])
            self.over[buffer] = self.plan.buffers.takes_over[row]
        for buffer, (arena, offset) in self.place.items():
            room = self.memory.setdefault(arena, bytearray())
            room.extend(bytes(max(0, offset + size[buffer] - len(room))))
        for buffer, role in enumerate(self.graph.buffers.role):
            if role in ("input", "parameter", "constant", "state"):
                self.fill(buffer, 0, size[buffer], b"start %d" % buffer)

    def fill(self, buffer: int, low: int, high: int, seed: bytes) -> None:
        arena, offset = self.place[buffer]
        self.memory[arena][offset + low : offset + high] = blake3(seed).digest(length=max(1, high - low))[: high - low]

    def fetch(self, value: int) -> bytes:
        arena, offset = self.place[self.graph.values.buffer[value]]
        low, high = windows(self.graph)[value]
        return bytes(self.memory[arena][offset + low : offset + high])

    def run(self, order: tuple[int, ...]) -> None:
        buffer_of = self.graph.values.buffer
        for op in order:
            spots = Execution.written_ranges(WrittenRangesOnly(self.graph), op)  # type: ignore[arg-type]
            read = {buffer_of[value] for value in self.graph.ops.reads[op]}
            for buffer, low, high in spots:
                if buffer not in read and self.over.get(buffer, buffer) not in read:
                    self.fill(buffer, low, high, b"garbage")
            digest = blake3(b"op %d" % op)
            for value in self.graph.ops.reads[op]:
                digest.update(self.fetch(value))
            self.log.append((op, digest.digest()))
            for buffer, low, high in spots:
                self.fill(buffer, low, high, digest.digest() + b"%d %d" % (buffer, low))

    def end_state(self, mode: str, preset: str, order: tuple[int, ...]) -> list[bytes]:
        """What outputs, retained values, and all that persists hold in the end."""
        written = {value for op in order for value in self.graph.ops.writes[op]}
        ever = {value for row in self.graph.ops.writes for value in row}
        contents = [self.fetch(value) for value in self.graph.outputs if value in written or value not in ever]
        contents += [self.fetch(value) for _, value in saved_values(self.graph, order, mode, preset)]
        for buffer, role in enumerate(self.graph.buffers.role):
            if role in ("parameter", "constant", "state"):
                arena, offset = self.place[buffer]
                contents.append(bytes(self.memory[arena][offset : offset + self.graph.buffers.bytes[buffer]]))
        return contents


def slab(plan: Plan, row: int) -> int:
    """The memory that a row of the plan lies in: the arena's own, or the one that joint arenas share."""
    arena = plan.buffers.arena[row]
    return len(plan.arenas) if plan.arenas.layout[arena] == "joint" else arena


class WrittenRangesOnly:
    """The attributes of an ``Execution`` that ``written_ranges`` reads."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.buffer_of, self.window_of = graph, graph.values.buffer, windows(graph)


def observed_behaviour(graph: Graph, plan: Plan, *, planned: bool) -> tuple[list[tuple[int, bytes]], list[bytes]]:
    """What every op saw and what was left: in the plan's memory, or in program order in one memory per buffer."""
    ops = ops_of_mode(graph, plan.mode)
    order = plan.order if planned else tuple(topological_order(ops, edges(graph, ops)))
    machine = Machine(graph, plan if planned else None)
    machine.run(order)
    return sorted(machine.log), machine.end_state(plan.mode, plan.preset, plan.order if planned else order)


def behaves_alike(graph: Graph, plan: Plan) -> bool:
    """Whether ops read, and the end state holds, what they do without a plan; the end state compared as a multiset."""
    log, left = observed_behaviour(graph, plan, planned=True)
    expected_log, expected_contents = observed_behaviour(graph, plan, planned=False)
    return log == expected_log and sorted(left) == sorted(expected_contents)


def move_some_buffers(plan: Plan, dice: random.Random) -> Plan:
    """One or two buffers elsewhere: at another's offset, or a few bytes on."""
    for _ in range(dice.randrange(1, 3)):
        if len(plan.buffers):
            row, donor = (dice.randrange(len(plan.buffers)) for _ in range(2))
            offset = plan.buffers.offset[donor] + dice.choice((0, 0, 0, 4, 64))
            plan = edit(plan, "buffers.offset", offset, row)
    return plan


def plan_graph(graph: Graph, kind: tuple[str, str, str]) -> Plan:
    mode, preset, layout = kind
    return prepare_memory(graph, mode=mode, preset=preset, token=TOKEN, arenas=arenas(layout, 16))


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=10, shuffled=None), kinds)
def test_plans_of_random_graphs_pass_and_behave(graph: Graph, kind: tuple[str, str, str]) -> None:
    plan = plan_graph(graph, kind)
    assert check_plan(graph, plan, token=TOKEN) == ()
    assert behaves_alike(graph, plan)


@pytest.mark.parametrize("seed", range(60))
def test_execution_faults_whatever_changes_what_an_op_reads(seed: int) -> None:
    """An abstract execution without a fault is a run in bytes without a difference, wherever the buffers were moved."""
    dice = random.Random(seed)
    graph = random_graph(seeded(seed), ops=12, joint=seed % 3 == 0, shuffled=seed % 5 == 0)
    kind = (dice.choice(MODES), dice.choice(PRESETS), dice.choice(("packed", "joint")))
    for _ in range(6):
        plan = move_some_buffers(plan_graph(graph, kind), dice)
        faults = list(Execution(graph, plan).run())
        assert faults or behaves_alike(graph, plan)


@pytest.mark.parametrize("seed", range(40))
def test_overlaps_of_live_buffers_are_always_found(seed: int) -> None:
    """Two buffers that live at once and do not take over each other, put on the same bytes."""
    dice = random.Random(seed)
    joint = seed % 2 == 1
    graph = random_graph(seeded(1000 + seed), ops=14, joint=joint)
    plan = plan_graph(graph, ("backward", "train_full", "joint" if joint else "packed"))
    rows = plan.buffers
    pairs = [
        (a, b)
        for a in range(len(rows))
        for b in range(a)
        if slab(plan, a) == slab(plan, b) and rows.bytes[a] and rows.bytes[b]
        if max(rows.birth[a], rows.birth[b]) < min(rows.death[a], rows.death[b])
    ]
    for a, b in dice.sample(pairs, min(8, len(pairs))):
        offset = rows.offset[b] + dice.choice((0, rows.bytes[b] - 16))
        rules = {fault.rule for fault in check_plan(graph, edit(plan, "buffers.offset", offset, a))}
        assert rules & {"overlap"}


@pytest.mark.parametrize("seed", range(20))
def test_order_that_changes_what_an_op_reads_is_a_fault(seed: int) -> None:
    dice = random.Random(seed)
    graph = random_graph(seeded(seed), ops=12)
    plan = plan_graph(graph, ("inference", "inference", "sequential"))
    for _ in range(8):
        order = list(plan.order)
        if len(order) > 1:
            a, b = dice.sample(range(len(order)), 2)
            order[a], order[b] = order[b], order[a]
        reordered = edit(plan, "order", tuple(order))
        assert check_plan(graph, reordered) or behaves_alike(graph, reordered)
