"""The run on paper against a run in bytes: each op mixes what it reads and fills what it writes."""

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

    The kernels are as nasty as the IR lets them be: a result's bytes are garbage before the first argument is
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
        home = self.graph.values.buffer
        for op in order:
            spots = Execution.written_ranges(Stand(self.graph), op)  # type: ignore[arg-type]
            read = {home[value] for value in self.graph.ops.reads[op]}
            for buffer, low, high in spots:
                if buffer not in read and self.over.get(buffer, buffer) not in read:
                    self.fill(buffer, low, high, b"garbage")
            seen = blake3(b"op %d" % op)
            for value in self.graph.ops.reads[op]:
                seen.update(self.fetch(value))
            self.log.append((op, seen.digest()))
            for buffer, low, high in spots:
                self.fill(buffer, low, high, seen.digest() + b"%d %d" % (buffer, low))

    def leftovers(self, mode: str, preset: str, order: tuple[int, ...]) -> list[bytes]:
        """What outputs, retained values, and all that persists hold in the end."""
        written = {value for op in order for value in self.graph.ops.writes[op]}
        ever = {value for row in self.graph.ops.writes for value in row}
        found = [self.fetch(value) for value in self.graph.outputs if value in written or value not in ever]
        found += [self.fetch(value) for _, value in saved_values(self.graph, order, mode, preset)]
        for buffer, role in enumerate(self.graph.buffers.role):
            if role in ("parameter", "constant", "state"):
                arena, offset = self.place[buffer]
                found.append(bytes(self.memory[arena][offset : offset + self.graph.buffers.bytes[buffer]]))
        return found


def slab(made: Plan, row: int) -> int:
    """The memory that a row of the plan lies in: the arena's own, or the one that joint arenas share."""
    arena = made.buffers.arena[row]
    return len(made.arenas) if made.arenas.layout[arena] == "joint" else arena


class Stand:
    """Just enough of an ``Execution`` to ask it what an op writes."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.buffer_of, self.window_of = graph, graph.values.buffer, windows(graph)


def behaviour(graph: Graph, made: Plan, *, planned: bool) -> tuple[list[tuple[int, bytes]], list[bytes]]:
    """What every op saw and what was left: in the plan's memory, or in program order in one memory per buffer."""
    ops = ops_of_mode(graph, made.mode)
    order = made.order if planned else tuple(topological_order(ops, edges(graph, ops)))
    machine = Machine(graph, made if planned else None)
    machine.run(order)
    return sorted(machine.log), machine.leftovers(made.mode, made.preset, made.order if planned else order)


def same(graph: Graph, made: Plan) -> bool:
    """Whether the plan changes nothing that anyone can see. Retained values are compared as a bag."""
    seen, left = behaviour(graph, made, planned=True)
    wanted, kept = behaviour(graph, made, planned=False)
    return seen == wanted and sorted(left) == sorted(kept)


def shaken(made: Plan, dice: random.Random) -> Plan:
    """One or two buffers elsewhere: at another's offset, or a few bytes on."""
    for _ in range(dice.randrange(1, 3)):
        if len(made.buffers):
            at, other = (dice.randrange(len(made.buffers)) for _ in range(2))
            offset = made.buffers.offset[other] + dice.choice((0, 0, 0, 4, 64))
            made = edit(made, "buffers.offset", offset, at)
    return made


def planned(graph: Graph, kind: tuple[str, str, str]) -> Plan:
    mode, preset, layout = kind
    return prepare_memory(graph, mode=mode, preset=preset, token=TOKEN, arenas=arenas(layout, 16))


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=10, shuffled=None), kinds)
def test_plans_of_random_graphs_pass_and_behave(graph: Graph, kind: tuple[str, str, str]) -> None:
    made = planned(graph, kind)
    assert check_plan(graph, made, token=TOKEN) == ()
    assert same(graph, made)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_changes_what_an_op_sees_is_a_fault(seed: int) -> None:
    """A run on paper without a fault is a run in bytes without a difference, however the offsets were shaken."""
    dice = random.Random(seed)
    graph = random_graph(seeded(seed), ops=12, joint=seed % 3 == 0, shuffled=seed % 5 == 0)
    kind = (dice.choice(MODES), dice.choice(PRESETS), dice.choice(("packed", "joint")))
    for _ in range(6):
        made = shaken(planned(graph, kind), dice)
        faults = list(Execution(graph, made).run())
        assert faults or same(graph, made)


@pytest.mark.parametrize("seed", range(40))
def test_true_conflicts_are_always_found(seed: int) -> None:
    """Two buffers that live at once and do not take over each other, put on the same bytes."""
    dice = random.Random(seed)
    joint = seed % 2 == 1
    graph = random_graph(seeded(1000 + seed), ops=14, joint=joint)
    made = planned(graph, ("backward", "train_full", "joint" if joint else "packed"))
    rows = made.buffers
    pairs = [
        (a, b)
        for a in range(len(rows))
        for b in range(a)
        if slab(made, a) == slab(made, b) and rows.bytes[a] and rows.bytes[b]
        if max(rows.birth[a], rows.birth[b]) < min(rows.death[a], rows.death[b])
    ]
    for a, b in dice.sample(pairs, min(8, len(pairs))):
        offset = rows.offset[b] + dice.choice((0, rows.bytes[b] - 16))
        found = {fault.rule for fault in check_plan(graph, edit(made, "buffers.offset", offset, a))}
        assert found & {"overlap"}


@pytest.mark.parametrize("seed", range(20))
def test_an_order_that_breaks_the_program_is_a_fault(seed: int) -> None:
    dice = random.Random(seed)
    graph = random_graph(seeded(seed), ops=12)
    made = planned(graph, ("inference", "inference", "sequential"))
    for _ in range(8):
        order = list(made.order)
        if len(order) > 1:
            a, b = dice.sample(range(len(order)), 2)
            order[a], order[b] = order[b], order[a]
        other = edit(made, "order", tuple(order))
        assert check_plan(graph, other) or same(graph, other)
