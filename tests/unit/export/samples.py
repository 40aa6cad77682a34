"""Plans to export: everything that the judge looks at, hostile texts, a buffer of 2**63 bytes, and random ones."""

from dataclasses import replace
from typing import Final

from tests.strategies import Builder, random_graph, seeded
from tests.unit.ir.samples import TOKEN, arenas, described_graph
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.planner.prepare import prepare_memory

HOSTILE: Final = (
    "</script><script>alert(1)</script>",
    '=cmd|"/c calc"!A0',
    "+1",
    "-1",
    "@SUM(A1)",
    "'quoted",
    "two\nlines\r\n\tand, a tab",
    'quotes " and , commas',
    "\x00\x07\x1b[31m\x7f",
    "\u202eright to left\u2066",
    "back\\slash\\n",
    "＝full width",  # noqa: RUF001
    "long " * 2048,
)


def hostile_graph() -> Graph:
    """The described graph with hostile names, modules, sources, makers and holders."""
    graph = described_graph()
    notes, eager = graph.notes, graph.notes.eager
    assert eager is not None
    ops, buffers = len(graph.ops), len(graph.buffers)
    storages = replace(
        eager.storages, maker=HOSTILE[1:4], module=HOSTILE[4:7], source=HOSTILE[7:10], holder=HOSTILE[10:13]
    )
    return replace(
        graph,
        notes=replace(
            notes,
            name=HOSTILE[0],
            buffers=(*HOSTILE[-buffers:],),
            ops=replace(notes.ops, module=HOSTILE[:ops], source=HOSTILE[1 : ops + 1]),
            eager=replace(eager, storages=storages),
        ),
    )


def huge_graph() -> Graph:
    """One activation of 2**63 bytes between an input and a small result."""
    b = Builder()
    b.buffer("input")
    b.buffer("activation", (1 << 63,), "bool")
    b.buffer("activation")
    b.op([0], [1])
    b.op([1], [2])
    return b.build([2])


def random_sample(seed: int) -> Graph:
    return random_graph(seeded(seed), ops=24, joint=True)


def plan_of(graph: Graph, mode: str = "backward", layout: str = "joint", preset: str = "inference") -> Plan:
    """A plan in which buffers take over one another, unless ``preset`` says otherwise."""
    return prepare_memory(graph, mode=mode, preset=preset, token=TOKEN, arenas=arenas(layout))


def mirrored_sample(seed: int) -> Graph:
    """Planned in mode backward, its gradients follow the order, op by op."""
    return random_graph(seeded(seed), ops=24)
