"""A trace for Perfetto: counters of live bytes, a slice for each op, a slice for each buffer on the track of its slot.

One position takes one microsecond. Buffers that take over one another share a track, and the slice of one ends where
the next begins; its span stands in the arguments.
"""

from collections.abc import Iterator
from typing import Final

from tmmu.export.buffer_rows import PlacedBuffer, buffer_rows, items_of
from tmmu.export.live_curves import LiveCurve, eager_curve, planned_curves
from tmmu.export.trace_writer import TraceWriter, pointer_argument, text_argument, uint_argument
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

POSITION_NS: Final = 1000
"""A position is a microsecond; time stamps are in nanoseconds."""


def encode_perfetto(plan: Plan, graph: Graph | None, run: str) -> bytes:  # noqa: ARG001 - a row of the table of formats
    """The bytes of the trace. Linear in the plan, but for one sort of the events."""
    trace = TraceWriter(POSITION_NS)
    model = (graph.notes.name if graph else "") or "plan"
    planned = trace.track(f"{model}: inside the plan")
    for curve in planned_curves(plan):
        _write_curve(trace, planned, f"live bytes: {curve.name}", curve)
    if graph is not None:
        _write_ops(trace, planned, plan, graph)
    _write_buffers(trace, planned, plan, graph)
    eager = eager_curve(graph, plan.mode)
    if eager is not None:
        run_as_it_is = trace.track(f"{model}: run as it is, by its own calls")
        _write_curve(trace, run_as_it_is, "live bytes: eager", eager)
    return trace.encode()


def _write_curve(trace: TraceWriter, parent: int, name: str, curve: LiveCurve) -> None:
    track = trace.track(name, parent=parent, counts_bytes=True)
    for position, size in curve.steps:
        trace.count(track, position, size)
    if curve.steps and curve.steps[-1][0] < curve.end:
        trace.count(track, curve.end, 0)


def _write_ops(trace: TraceWriter, parent: int, plan: Plan, graph: Graph) -> None:
    track, notes = trace.track("ops", parent=parent), graph.notes.ops
    for position, op in enumerate(plan.order):
        arguments = (
            uint_argument("op", op),
            text_argument("module", notes.module[op]),
            text_argument("source", notes.source[op]),
        )
        trace.slice(track, graph.ops.target[op], (position, position + 1), arguments)


def _write_buffers(trace: TraceWriter, parent: int, plan: Plan, graph: Graph | None) -> None:
    tracks: dict[tuple[str, int], int] = {}
    rows, ends = buffer_rows(plan, graph), _slice_ends(plan)
    for row in sorted(rows, key=lambda row: (plan.arenas.name.index(row.arena), row.slot, row.birth, row.id)):
        slot = (row.arena, row.slot)
        if slot not in tracks:
            tracks[slot] = trace.track(f"{row.arena} slot {row.slot}", parent=parent)
        trace.slice(tracks[slot], row.title, (row.birth, ends[row.id]), _arguments(row))


def _slice_ends(plan: Plan) -> dict[int, int]:
    """Per buffer, where its slice ends: at its death, or where another buffer takes it over."""
    placed, ends = plan.buffers, dict[int, int]()
    for item in items_of(plan):
        starts = [placed.birth[row] for row in item.rows[1:]]
        for row, end in zip(item.rows, (*starts, item.death), strict=True):
            ends[placed.id[row]] = min(placed.death[row], end)
    return ends


def _arguments(row: PlacedBuffer) -> Iterator[bytes]:
    for name in PlacedBuffer.__slots__:
        content = getattr(row, name)
        if name == "address":
            yield pointer_argument(name, content)
        elif name == "dtypes":
            yield text_argument(name, " ".join(content))
        elif isinstance(content, int):
            yield uint_argument(name, content)
        elif content is not None:
            yield text_argument(name, content)
