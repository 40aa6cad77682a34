"""The graph that tables hold: values that parts alone stand for are left out; buffers keep their ids, of no bytes."""

from collections.abc import Sequence
from dataclasses import replace

from tmmu.ir.graph import ACTIVATION, HOST, Buffers, Graph, Notes, OpCalls, OpNotes, Ops, Values
from tmmu.ir.ids import Bytes, ValueId
from tmmu.ir.parts.boxes import window_of
from tmmu.ir.parts.tables import Tables


def assembled_graph(tables: Tables) -> Graph:
    """What was added. O(size of the graph)."""
    base, rows = tables.base, tables.rows
    outputs = [tables.current(value) for value in base.outputs]
    used = tables.used_values(outputs)
    place = {value: ValueId(index) for index, value in enumerate(used)}

    def renamed(values: Sequence[ValueId]) -> tuple[ValueId, ...]:
        return tuple(place[value] for value in values)

    written = [(*row.writes, *tables.windows_written.get(index, ())) for index, row in enumerate(rows)]
    return replace(
        base,
        buffers=_buffers(tables, used),
        values=_values(tables, used),
        ops=Ops(
            target=tuple(row.target for row in rows),
            reads=tuple(renamed(row.reads) for row in rows),
            writes=tuple(map(renamed, written)),
            overwrites=tuple(tuple((place[w], place[r]) for w, r in row.overwrites) for row in rows),
            saves=tuple(renamed(row.saves) for row in rows),
            recompute=tuple(row.recompute for row in rows),
            stage=tuple(row.stage for row in rows),
        ),
        inputs=renamed(base.inputs),
        outputs=renamed(outputs),
        notes=_notes(tables),
        calls=OpCalls(
            texts=tuple(tables.texts),
            call=tuple(row.call for row in rows),
            operands=tuple(renamed(row.operands) for row in rows),
            effect=tuple(row.effect for row in rows),
            numbers=tuple(row.numbers for row in rows),
        ),
    )


def _buffers(tables: Tables, used: Sequence[ValueId]) -> Buffers:
    base, known = tables.base, len(tables.base.values)
    buffer_of = base.values.buffer
    left_out = set(range(known)).difference(used)
    in_use = {buffer_of[value] for value in used if value < known}
    in_use |= {buffer for buffer, _ in tables.values}
    empty = {buffer_of[ValueId(value)] for value in left_out} - in_use
    sizes = (Bytes(0) if buffer in empty else base.buffers.bytes[buffer] for buffer in base.buffers.ids)
    host = {tables.place_of(value)[0] for value in tables.on_host.values()}
    fresh = range(len(base.buffers), len(base.buffers) + len(tables.buffers))
    return Buffers(
        bytes=(*sizes, *(Bytes(size) for size, _ in tables.buffers)),
        role=(*base.buffers.role, *(HOST if buffer in host else ACTIVATION for buffer in fresh)),
    )


def _values(tables: Tables, used: Sequence[ValueId]) -> Values:
    base, known = tables.base, len(tables.base.values)
    places = [
        (base.values.buffer[value], window_of(base, value)) if value < known else tables.values[value - known]
        for value in used
    ]
    return Values(
        buffer=tuple(buffer for buffer, _ in places),
        offset=tuple(Bytes(window.offset) for _, window in places),
        shape=tuple(window.shape for _, window in places),
        stride=tuple(window.stride for _, window in places),
        dtype=tuple(window.dtype for _, window in places),
    )


def _notes(tables: Tables) -> Notes:
    """Those of the origins; a part has its share of the operations."""
    notes, rows = tables.base.notes, tables.rows
    shares = [(notes.ops.flops[row.origin], *row.share) for row in rows]
    return Notes(
        name=notes.name,
        buffers=(*notes.buffers, *(notes.buffers[base_buffer] for _, base_buffer in tables.buffers)),
        ops=OpNotes(
            phase=tuple(notes.ops.phase[row.origin] for row in rows),
            modality=tuple(notes.ops.modality[row.origin] for row in rows),
            flops=tuple(flops * high // total - flops * low // total for flops, low, high, total in shares),
            module=tuple(notes.ops.module[row.origin] for row in rows),
            source=tuple(notes.ops.source[row.origin] for row in rows),
        ),
        eager=notes.eager,
    )
