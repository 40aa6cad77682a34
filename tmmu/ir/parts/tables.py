"""A graph while it is rebuilt: ops, values and buffers as they are added, and what stands for values of the base."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tmmu.ir.graph import PERSISTENT_ROLES, Graph, OpCalls
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.parts.boxes import Box, TensorWindow, window_of

ALIGNMENT: Final = 128
"""A part of a buffer lies in its own as in the whole, relative to this: kernels choose by alignment."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One op of the rewritten graph. ``flops``: of its origin, the share ``(low, high, total)``."""

    origin: OpId
    target: str
    reads: tuple[ValueId, ...]
    writes: tuple[ValueId, ...]
    overwrites: tuple[tuple[ValueId, ValueId], ...] = ()
    saves: tuple[ValueId, ...] = ()
    recompute: bool = False
    stage: str
    call: int
    operands: tuple[ValueId, ...]
    effect: str
    numbers: tuple[bytes, ...]
    share: tuple[int, int, int] = (0, 1, 1)


class PieceOfBuffer(NamedTuple):
    """Bytes ``[low, high)`` of a base buffer, as ``row`` leaves them in ``buffer``, where they begin at ``shift``."""

    low: int
    high: int
    buffer: BufferId
    shift: int
    row: int


@dataclass(kw_only=True)
class Tables:
    """``latest``: by base buffer and value, the value that stands for it, where it is not itself."""

    base: Graph
    calls: OpCalls
    rows: list[Row] = field(default_factory=list)
    latest: dict[BufferId, dict[ValueId, ValueId]] = field(default_factory=dict)
    texts: dict[bytes, int] = field(default_factory=dict)
    buffers: list[tuple[int, BufferId]] = field(default_factory=list)
    """Of each new buffer, its bytes, and the base buffer whose name it has."""
    values: list[tuple[BufferId, TensorWindow]] = field(default_factory=list)
    """Of each new value, where it lies."""
    writer: dict[ValueId, int] = field(default_factory=dict)
    """The row that writes a value."""
    windows_written: dict[int, list[ValueId]] = field(default_factory=dict)
    """By row, the values that it writes beside ``Row.writes``, because later rows read them."""
    pieces: dict[BufferId, list[PieceOfBuffer]] = field(default_factory=dict)
    """By base buffer, those of its parts that lie in buffers of their own."""
    placed: dict[BufferId, PieceOfBuffer] = field(default_factory=dict)
    """By base buffer that is written in parts, what is there, as the last of them leaves it."""
    known: dict[tuple[BufferId, int, TensorWindow], ValueId] = field(default_factory=dict)
    on_host: dict[ValueId, ValueId] = field(default_factory=dict)
    """By base value, its latest copy in host memory."""

    def append(self, row: Row) -> None:
        """The next op."""
        self.writer.update(dict.fromkeys(row.writes, len(self.rows)))
        self.rows.append(row)

    def take_base_buffers(self, buffers: Iterable[BufferId]) -> None:
        """The next op changes the base's own buffers: they are what stands for their values."""
        for buffer in buffers:
            self.latest.pop(buffer, None)

    def forget_parts(self, buffers: Iterable[BufferId]) -> None:
        """The op that was added last has written the whole of these buffers."""
        for buffer in buffers:
            self.pieces.pop(buffer, None)
            self.placed.pop(buffer, None)

    def fresh_buffer(self, size: int, named_as: BufferId) -> BufferId:
        """A new buffer."""
        self.buffers.append((size, named_as))
        return BufferId(len(self.base.buffers) + len(self.buffers) - 1)

    def fresh_value(self, buffer: BufferId, window: TensorWindow) -> ValueId:
        """A new value, which some row has to write."""
        self.values.append((buffer, window))
        return ValueId(len(self.base.values) + len(self.values) - 1)

    def place_of(self, value: ValueId) -> tuple[BufferId, TensorWindow]:
        """Buffer and window of a value."""
        known = len(self.base.values)
        if value < known:
            return self.base.values.buffer[value], window_of(self.base, value)
        return self.values[value - known]

    def current(self, value: ValueId) -> ValueId:
        """What stands for a base value now."""
        buffer = self.base.values.buffer[value]
        of_buffer = self.latest.get(buffer)
        if of_buffer is not None:
            return of_buffer.get(value, value)
        placed = self.placed.get(buffer)
        if placed is not None and value not in self.writer:
            self._write(value, placed.row)
        return value

    def window_at(self, buffer: BufferId, row: int, window: TensorWindow) -> ValueId:
        """The value of this window of a buffer as ``row`` leaves it, which writes it; -1: as it is at the start."""
        key = (buffer, row, window)
        if key not in self.known:
            self.known[key] = self.fresh_value(buffer, window)
            if row >= 0:
                self._write(self.known[key], row)
        return self.known[key]

    def narrowed(self, value: ValueId, box: Box) -> ValueId:
        """What stands for a box of a base value now: in the latest part that has it, else in the whole."""
        buffer, window = self.base.values.buffer[value], window_of(self.base, value).narrowed(box)
        low, high = window.span
        for piece in reversed(self.pieces.get(buffer, ())):
            if piece.low <= low and high <= piece.high:
                return self.window_at(piece.buffer, piece.row, window._replace(offset=window.offset - piece.shift))
        placed = self.placed.get(buffer)
        if placed is None:
            value = self.current(value)
            if window == self.place_of(value)[1]:
                return value
            return self.window_at(self.place_of(value)[0], self.writer.get(value, -1), window)
        return self.window_at(buffer, placed.row, window)

    def _write(self, value: ValueId, row: int) -> None:
        self.writer[value] = row
        self.windows_written.setdefault(row, []).append(value)

    def used_values(self, outputs: Iterable[ValueId]) -> list[ValueId]:
        """What is there from the start, written, read, or one of ``outputs``: not what parts alone stand for."""
        touched = {*self.writer, *outputs}
        touched.update(value for row in self.rows for value in (*row.reads, *row.operands))
        role, known = self.base.buffers.role, len(self.base.buffers)
        buffers = [*self.base.values.buffer, *(buffer for buffer, _ in self.values)]
        there = {value for value, buffer in enumerate(buffers) if buffer < known and role[buffer] in PERSISTENT_ROLES}
        return [ValueId(value) for value in range(len(buffers)) if value in touched or value in there]
