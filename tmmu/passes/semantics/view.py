"""The semantics of a planned graph, op by op and edge by edge: a view of graph and plan, stored nowhere.

Linear in the graph. Costs are counts, not times: an op is *compute-bound* on a device whose balance (FLOPs that it does
in the time of one byte of memory) is at most the op's FLOPs per byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from tmmu.ir.graph import ACTIVATION, CONSTANT, GRADIENT, HOST, INPUT, PARAMETER, SCRATCH, Graph
from tmmu.ir.plan import Plan
from tmmu.passes.semantics.analysis import Analysis, analyze
from tmmu.passes.semantics.costs import op_flops
from tmmu.passes.semantics.critical_path import CriticalPath, critical_path
from tmmu.passes.semantics.dataflow import ROOT
from tmmu.passes.semantics.together import Group, find_groups
from tmmu.passes.semantics.traffic import op_bytes, value_bytes
from tmmu.passes.semantics.workload_class import WorkloadClass, classify_workload

COMPUTE: Final = "compute"
MEMORY: Final = "memory"
BALANCE: Final = Fraction(100)
"""FLOP per byte: 150 TFLOP/s over 1.5 TB/s, the device of the ring planner's defaults."""
_RESIDENCY: Final = {
    PARAMETER: "persistent_weight",
    CONSTANT: "persistent_weight",
    INPUT: "caller_input",
    ACTIVATION: "ephemeral_activation",
    SCRATCH: "ephemeral_activation",
    GRADIENT: "gradient",
    HOST: "host_copy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSemantics:
    """One op of the order. ``critical``: on the longest path by bytes; ``critical_flops``: on that by FLOPs.

    ``together``: the group of ``SemanticView.groups`` that the buffers it writes are in, -1 without one.
    """

    position: int
    op: int
    pattern: str
    number: int
    phase: str
    modality: str
    bytes: int
    flops: int
    bound: str
    critical: bool
    critical_flops: bool
    together: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A value that ops read: its writer (-1: there from the start), its readers in order, its bytes."""

    value: int
    producer: int
    consumers: tuple[int, ...]
    bytes: int
    critical: bool
    """Whether two neighbours of the longest path by bytes meet in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """A buffer that an op writes: its kind, its bytes, and the positions at which it is born and dead."""

    buffer: int
    residency: str
    bytes: int
    birth: int
    death: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticView:
    """All that is derived of a graph and its plan. ``lifecycles`` stand beside ``ops``, in the plan's order."""

    workload: WorkloadClass
    balance: Fraction
    ops: tuple[OpSemantics, ...]
    lifecycles: tuple[tuple[Lifecycle, ...], ...]
    edges: tuple[Edge, ...]
    groups: tuple[Group, ...]
    path: CriticalPath
    path_flops: CriticalPath


def semantic_view(graph: Graph, plan: Plan, balance: Fraction = BALANCE) -> SemanticView:
    """The view of a graph in a plan of it, on a device of this balance."""
    found = analyze(graph, plan.order)
    graph = _labelled(graph, found)
    sizes, flops = _columns(graph, plan)
    path, path_flops = critical_path(found.flow, sizes), critical_path(found.flow, flops)
    groups = find_groups(graph, plan, found.patterns.attentions)
    return SemanticView(
        workload=classify_workload(graph, found.patterns),
        balance=balance,
        ops=_op_rows(graph, plan, found, (sizes, flops), balance, (path, path_flops), groups),
        lifecycles=_lifecycles(graph, plan, found),
        edges=_edges(graph, found, path),
        groups=groups,
        path=path,
        path_flops=path_flops,
    )


def bound_of(flops: int, size: int, balance: Fraction) -> str:
    """``compute`` where the op does at least ``balance`` FLOPs for each of its bytes, else ``memory``."""
    return COMPUTE if flops and flops >= balance * size else MEMORY


def _labelled(graph: Graph, found: Analysis) -> Graph:
    """The graph with a label in place of each ``unknown``: files of old, or written by hand, have none."""
    notes, labels = graph.notes.ops, found.labels
    phase = tuple(new if old == "unknown" else old for old, new in zip(notes.phase, labels.phase, strict=True))
    modality = tuple(new if old == "unknown" else old for old, new in zip(notes.modality, labels.modality, strict=True))
    return replace(graph, notes=replace(graph.notes, ops=replace(notes, phase=phase, modality=modality)))


def _columns(graph: Graph, plan: Plan) -> tuple[list[int], list[int]]:
    """Bytes and FLOPs per op of the graph; 0 for those that the plan does not run."""
    sizes, flops = [0] * len(graph.ops), [0] * len(graph.ops)
    for op in plan.order:
        sizes[op], flops[op] = op_bytes(graph, op), op_flops(graph, op)
    return sizes, flops


def _op_rows(  # noqa: PLR0913, PLR0917 - each is a column of the result
    graph: Graph,
    plan: Plan,
    found: Analysis,
    costs: tuple[Sequence[int], Sequence[int]],
    balance: Fraction,
    paths: tuple[CriticalPath, CriticalPath],
    groups: Sequence[Group],
) -> tuple[OpSemantics, ...]:
    sizes, flops = costs
    critical, critical_flops = set(paths[0].ops), set(paths[1].ops)
    group_of = {buffer: number for number, group in enumerate(groups) for buffer in group.buffers}
    buffers = graph.values.buffer
    return tuple(
        OpSemantics(
            position=position,
            op=op,
            pattern=found.patterns.pattern[op],
            number=found.patterns.number[op],
            phase=graph.notes.ops.phase[op],
            modality=graph.notes.ops.modality[op],
            bytes=sizes[op],
            flops=flops[op],
            bound=bound_of(flops[op], sizes[op], balance),
            critical=op in critical,
            critical_flops=op in critical_flops,
            together=next((group_of[buffers[v]] for v in graph.ops.writes[op] if buffers[v] in group_of), -1),
        )
        for position, op in enumerate(plan.order)
    )


def _lifecycles(graph: Graph, plan: Plan, found: Analysis) -> tuple[tuple[Lifecycle, ...], ...]:
    rows = zip(plan.buffers.id, plan.buffers.birth, plan.buffers.death, strict=True)
    spans: dict[int, tuple[int, int]] = {buffer: (birth, death) for buffer, birth, death in rows}
    caches = {buffer for attention in found.patterns.attentions for buffer in attention.cache}
    end = len(plan.order)

    def of_buffer(buffer: int) -> Lifecycle:
        birth, death = spans.get(buffer, (0, end))  # the caller's input is not placed, and outlives the order
        residency = _RESIDENCY.get(graph.buffers.role[buffer], "persistent_state")
        return Lifecycle(
            buffer=buffer,
            residency="stateful_kv_cache" if buffer in caches else residency,
            bytes=graph.buffers.bytes[buffer],
            birth=birth,
            death=death,
        )

    return tuple(
        tuple(of_buffer(buffer) for buffer in dict.fromkeys(graph.values.buffer[v] for v in graph.ops.writes[op]))
        for op in plan.order
    )


def _edges(graph: Graph, found: Analysis, path: CriticalPath) -> tuple[Edge, ...]:
    flow = found.flow
    following = dict(zip(path.ops, path.ops[1:], strict=False))
    return tuple(
        Edge(
            value=value,
            producer=flow.writer[value],
            consumers=tuple(readers),
            bytes=value_bytes(graph, value),
            critical=flow.writer[value] != ROOT and following.get(flow.writer[value]) in readers,
        )
        for value, readers in enumerate(flow.readers)
        if readers
    )
