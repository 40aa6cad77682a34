"""What a page shows of one plan, as values, from the plan and, where there is one, its graph."""

from dataclasses import dataclass
from itertools import pairwise

from tmmu.eager.peak import EagerFigures, eager_figures, eager_run, live_levels
from tmmu.ir.graph import Graph
from tmmu.ir.lifetimes import Lifetimes
from tmmu.ir.plan import Arenas, Plan, Slots
from tmmu.report.buffers import MapBuffer, map_buffers
from tmmu.report.curve_figure import CurveFigure
from tmmu.report.ring_bars import RingChart, ring_chart
from tmmu.report.slabs import MapSlab, map_slabs
from tmmu.summary.plan_summary import memory_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFigures:
    """The plan in numbers. Bytes by segment and in total; with a ring, ``text`` is the ring's range.

    ``inputs`` are the caller's; ``None`` without a graph, and not in ``total`` then. Texts are empty without a graph.
    """

    model: str
    target: str
    mode: str
    preset: str
    ir_hash: str
    digest: str
    ops: int
    buffers: int
    text: int
    data: int
    stack: int
    bound: int
    inputs: int | None
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionNotes:
    """The op at each position of the order: operator, module and line; empty without a graph."""

    op: tuple[str, ...]
    module: tuple[str, ...]
    source: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerStorage:
    """A storage that is live at eager's peak, unpadded ``bytes``; ``[birth, death)`` in calls of eager."""

    bytes: int
    birth: int
    death: int
    maker: str
    module: str
    source: str
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerTimeline:
    """Live bytes of a run of the model as it is.

    ``levels``: (call, live bytes) where they change. ``live``: the storages at the peak, largest first.
    """

    figures: EagerFigures
    calls: int
    levels: tuple[tuple[int, int], ...]
    live: tuple[EagerStorage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContents:
    """All that a page shows of one plan. ``title`` is what the reader calls it."""

    title: str
    figures: ReportFigures
    arenas: Arenas
    slots: Slots
    slabs: tuple[MapSlab, ...]
    buffers: tuple[MapBuffer, ...]
    positions: PositionNotes
    eager: EagerTimeline | None
    ring: RingChart | None
    curve: CurveFigure | None = None
    """Of a fitted step, whose curve was searched."""


def report_contents(title: str, plan: Plan, graph: Graph | None, *, curve: CurveFigure | None = None) -> ReportContents:
    """The contents for a plan, which is sound for its ``graph``. Sorts what is live at a peak, else linear."""
    slabs = map_slabs(plan)
    return ReportContents(
        title=title,
        figures=_figures(plan, graph, slabs),
        arenas=plan.arenas,
        slots=plan.slots,
        slabs=slabs,
        buffers=map_buffers(plan, graph),
        positions=_positions(plan, graph),
        eager=_eager(graph, plan.mode) if graph else None,
        ring=ring_chart(plan.ring, len(plan.order)) if plan.ring else None,
        curve=curve,
    )


def _figures(plan: Plan, graph: Graph | None, slabs: tuple[MapSlab, ...]) -> ReportFigures:
    memory = memory_of(plan, graph)
    return ReportFigures(
        model=graph.notes.name if graph else "",
        target=graph.target if graph else "",
        mode=plan.mode,
        preset=plan.preset,
        ir_hash=plan.ir_hash.hex(),
        digest=plan.digest.hex(),
        ops=len(plan.order),
        buffers=len(plan.buffers),
        text=memory.text,
        data=memory.data,
        stack=memory.stack,
        bound=sum(slab.bound for slab in slabs if slab.segment == "stack"),
        inputs=memory.inputs,
        total=memory.total,
    )


def _positions(plan: Plan, graph: Graph | None) -> PositionNotes:
    if graph is None:
        return PositionNotes(op=(), module=(), source=())
    notes = graph.notes.ops
    return PositionNotes(
        op=tuple(graph.ops.target[op] for op in plan.order),
        module=tuple(notes.module[op] for op in plan.order),
        source=tuple(notes.source[op] for op in plan.order),
    )


def _eager(graph: Graph, mode: str) -> EagerTimeline | None:
    figures, eager = eager_figures(graph, mode), eager_run(graph, mode)
    if figures is None or eager is None:
        return None
    live = live_levels(eager.storages, eager.calls)
    changes = ((call, after) for call, (before, after) in enumerate(pairwise((-1, *live))) if before != after)
    return EagerTimeline(
        figures=figures, calls=eager.calls, levels=tuple(changes), live=_storages(eager.storages, figures)
    )


def _storages(table: Lifetimes, figures: EagerFigures) -> tuple[EagerStorage, ...]:
    columns = ("bytes", "birth", "death", "maker", "module", "source", "holder")
    live = [row for row in range(len(table)) if table.birth[row] <= figures.position < table.death[row]]
    live.sort(key=lambda row: (-table.bytes[row], row))
    return tuple(EagerStorage(**{column: getattr(table, column)[row] for column in columns}) for row in live)
