"""A trace for Perfetto: counters of live bytes, a slice for each op, a slice for each buffer on the track of its slot.

Protobuf messages of perfetto/trace/perfetto_trace.proto, fields in order of their numbers. One position takes one
microsecond. Buffers that take over one another share a track, and the slice of one ends where the next begins; its span
stands in the arguments.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tmmu.export.buffer_rows import PlacedBuffer, buffer_rows, items_of
from tmmu.export.live_curves import LiveCurve, eager_curve, planned_curves
from tmmu.export.protobuf import U64_LIMIT, bytes_field, double_field, text_field, uint_field
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

POSITION_NS: Final = 1000
"""A position is a microsecond; time stamps are in nanoseconds."""
_SEQUENCE: Final = 1
_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4
_BYTES_UNIT: Final = 3
_EXPLICIT_ORDER: Final = 3
_I64_LIMIT: Final = 1 << 63

_PACKET: Final = 1
_STAMP, _SEQUENCE_ID, _EVENT, _FLAGS, _DESCRIPTOR = 8, 10, 11, 13, 60
_UUID, _TRACK_NAME, _PARENT, _COUNTER_UNIT, _ORDERING, _RANK = 1, 2, 5, 8, 11, 12
_ARGUMENT, _TYPE, _TRACK, _NAME, _VALUE, _DOUBLE_VALUE = 4, 9, 11, 23, 30, 44
_ARGUMENT_NAME, _UINT, _TEXT, _POINTER = 10, 3, 6, 7


@dataclass(slots=True, eq=False)
class _TraceWriter:
    """Packets of a trace. ``events`` are (time, order at that time, event), sorted when the trace is written."""

    descriptors: list[bytes] = field(default_factory=list)
    events: list[tuple[int, int, bytes]] = field(default_factory=list)

    def track(self, name: str, *, parent: int = 0, counts_bytes: bool = False) -> int:
        """A new track below ``parent``, in the order of their making; its id."""
        uuid = len(self.descriptors) + 1
        parts = [uint_field(_UUID, uuid), text_field(_TRACK_NAME, name)]
        if parent:
            parts.append(uint_field(_PARENT, parent))
        if counts_bytes:
            parts.append(bytes_field(_COUNTER_UNIT, uint_field(3, _BYTES_UNIT)))
        if not parent:
            parts.append(uint_field(_ORDERING, _EXPLICIT_ORDER))
        parts.append(uint_field(_RANK, uuid))
        self.descriptors.append(b"".join(parts))
        return uuid

    def slice(self, track: int, name: str, span: tuple[int, int], arguments: Iterable[bytes]) -> None:
        """A slice over ``[birth, death)``. At one time, slices end before others begin, and an empty one ends last."""
        birth, death = span
        begin = [*arguments, uint_field(_TYPE, _SLICE_BEGIN), uint_field(_TRACK, track), text_field(_NAME, name)]
        self.events.append((birth, 1, b"".join(begin)))
        end = uint_field(_TYPE, _SLICE_END) + uint_field(_TRACK, track)
        self.events.append((death, 0 if death > birth else 2, end))

    def count(self, track: int, position: int, size: int) -> None:
        """The counter has this value from here on; as a double where a signed number is too small."""
        value = uint_field(_VALUE, size) if size < _I64_LIMIT else double_field(_DOUBLE_VALUE, float(size))
        self.events.append((position, 1, uint_field(_TYPE, _COUNTER) + uint_field(_TRACK, track) + value))

    def encode(self) -> bytes:
        """The bytes of the trace: tracks, then events by time."""
        sequence = uint_field(_SEQUENCE_ID, _SEQUENCE)
        packets = [bytes_field(_PACKET, sequence + bytes_field(_DESCRIPTOR, body)) for body in self.descriptors]
        if packets:
            first = sequence + uint_field(_FLAGS, 1) + bytes_field(_DESCRIPTOR, self.descriptors[0])
            packets[0] = bytes_field(_PACKET, first)
        for position, _, event in sorted(self.events, key=lambda event: event[:2]):
            stamp = uint_field(_STAMP, position * POSITION_NS)
            packets.append(bytes_field(_PACKET, stamp + sequence + bytes_field(_EVENT, event)))
        return b"".join(packets)


def encode_perfetto(plan: Plan, graph: Graph | None, run: str) -> bytes:  # noqa: ARG001 - a row of the table of formats
    """The bytes of the trace. Linear in the plan, but for one sort of the events."""
    trace = _TraceWriter()
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


def _write_curve(trace: _TraceWriter, parent: int, name: str, curve: LiveCurve) -> None:
    track = trace.track(name, parent=parent, counts_bytes=True)
    for position, size in curve.steps:
        trace.count(track, position, size)
    if curve.steps and curve.steps[-1][0] < curve.end:
        trace.count(track, curve.end, 0)


def _write_ops(trace: _TraceWriter, parent: int, plan: Plan, graph: Graph) -> None:
    track, notes = trace.track("ops", parent=parent), graph.notes.ops
    for position, op in enumerate(plan.order):
        arguments = (_uint("op", op), _text("module", notes.module[op]), _text("source", notes.source[op]))
        trace.slice(track, graph.ops.target[op], (position, position + 1), arguments)


def _write_buffers(trace: _TraceWriter, parent: int, plan: Plan, graph: Graph | None) -> None:
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
            yield bytes_field(_ARGUMENT, uint_field(_POINTER, content) + text_field(_ARGUMENT_NAME, name))
        elif name == "dtypes":
            yield _text(name, " ".join(content))
        elif isinstance(content, int):
            yield _uint(name, content)
        elif content is not None:
            yield _text(name, content)


def _uint(name: str, number: int) -> bytes:
    if number >= U64_LIMIT:
        return _text(name, str(number))
    return bytes_field(_ARGUMENT, uint_field(_UINT, number) + text_field(_ARGUMENT_NAME, name))


def _text(name: str, text: str) -> bytes:
    return bytes_field(_ARGUMENT, text_field(_TEXT, text) + text_field(_ARGUMENT_NAME, name))
