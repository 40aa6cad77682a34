"""The graph that a rewrite makes of its base: for each row an op, with the values that its origin's now are.

Ops that are as they are keep their buffers and values. A rerun writes fresh buffers, or changes those of the values
that its origin changes, in the stage of the op before it; what reads a value later reads the latest one that stands for
it. Deterministic: fresh buffers and values are numbered as rows write them, so that base and rewrite say all. Whether
the graph means its base is for the judge of rewrites to say, of which nothing here is used. O(size of the graphs).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from tmmu.errors import InternalError
from tmmu.ir.call_text import LIST, NUMBER, TENSOR, Argument, CallText, decode_call, encode_call, tag_count
from tmmu.ir.graph import ACTIVATION, PURE, STAGES, Buffers, Graph, Notes, OpCalls, OpNotes, Ops, Values
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.rewrite import RERUN, SUBLIST, TWIN, Part, Rewrite

TWINS: Final = {
    "aten.native_batch_norm.default": ("aten.native_batch_norm.default", (3, 4)),
    "aten._native_batch_norm_legit.default": ("aten._native_batch_norm_legit.no_stats", (3, 4)),
}
"""By operator, that of its twin, and the arguments by which it changes statistics: ``None``, or left out, there."""
_AGAIN: Final = (RERUN, TWIN)


def rebuild_graph(base: Graph, rewrite: Rewrite) -> Graph:
    """The rewritten graph. ``base`` has calls; ``INTERNAL`` for a twin or sublist of an op that has none."""
    if base.calls is None:
        raise InternalError("a graph without calls was rewritten")
    building = _Building(base=base, calls=base.calls)
    for origin, kind, part in zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True):
        building.add(origin, kind, part)
    return building.graph(rewrite.origin)


@dataclass(frozen=True, slots=True)
class _PartialCall:
    """The call of an op, and which of its origin's operands and number inputs it has."""

    operator: str
    text: bytes
    results: int
    operands: tuple[int, ...]
    numbers: tuple[int, ...]


@dataclass(slots=True)
class _Row:
    """One op of the rewritten graph."""

    target: str
    reads: tuple[ValueId, ...]
    writes: tuple[ValueId, ...]
    overwrites: tuple[tuple[ValueId, ValueId], ...]
    saves: tuple[ValueId, ...]
    recompute: bool
    stage: str
    call: int
    operands: tuple[ValueId, ...]
    effect: str
    numbers: tuple[bytes, ...]


@dataclass(kw_only=True)
class _Building:
    """``latest``: by base buffer and value, the value that stands for it, where it is not itself."""

    base: Graph
    calls: OpCalls
    latest: dict[BufferId, dict[ValueId, ValueId]] = field(default_factory=dict)
    rows: list[_Row] = field(default_factory=list)
    fresh_buffers: list[BufferId] = field(default_factory=list)
    """The base buffer of each new one."""
    fresh_values: list[tuple[ValueId, BufferId]] = field(default_factory=list)
    """The base value of each new one, and its buffer."""
    texts: dict[bytes, int] = field(default_factory=dict)
    partial_calls: dict[tuple[int, str, Part], _PartialCall] = field(default_factory=dict)
    pieces: dict[int, "_CallPieces"] = field(default_factory=dict)
    by_buffer: dict[tuple[OpId, str], dict[BufferId, list[int]]] = field(default_factory=dict)
    """Of what an op reads, or writes, the places by buffer."""

    def add(self, op: OpId, kind: str, part: Part) -> None:
        """The next op."""
        ops, buffer_of = self.base.ops, self.base.values.buffer
        call = self._partial_call(op, kind, part)
        base_operands = [self.calls.operands[op][place] for place in call.operands]
        reads, writes = ops.reads[op], ops.writes[op]
        if kind in (TWIN, SUBLIST):
            concerned = dict.fromkeys(buffer_of[value] for value in base_operands)
            reads, writes = self._concerned(op, "reads", concerned), self._concerned(op, "writes", concerned)
        if kind not in _AGAIN:
            for value in writes:  # the base's own buffer is changed: it is what stands for its values again
                self.latest.pop(buffer_of[value], None)
        read = {value: self._now(value) for value in (*reads, *base_operands)}
        written = self._fresh(reads, writes, read) if kind in _AGAIN else {value: value for value in writes}
        split = len(base_operands) - call.results
        self.rows.append(
            _Row(
                target=call.operator if kind == TWIN else ops.target[op],
                reads=tuple(read[value] for value in reads),
                writes=tuple(written[value] for value in writes),
                overwrites=tuple((written[w], read[r]) for w, r in ops.overwrites[op] if w in written and r in read),
                saves=() if kind in _AGAIN else tuple(written.get(v, read.get(v, v)) for v in ops.saves[op]),
                recompute=ops.recompute[op] and kind not in _AGAIN,
                stage=self._stage(op) if kind in _AGAIN else ops.stage[op],
                call=self.texts.setdefault(call.text, len(self.texts)),
                operands=(
                    *(read[value] for value in base_operands[:split]),
                    *(written.get(value, read[value]) for value in base_operands[split:]),
                ),
                effect=PURE if kind == TWIN else self.calls.effect[op],
                numbers=tuple(self.calls.numbers[op][place] for place in call.numbers),
            )
        )
        if kind in _AGAIN:
            for value, new in written.items():
                self.latest.setdefault(buffer_of[value], {})[value] = new

    def _stage(self, op: OpId) -> str:
        """Of a rerun: that of the op before it, but not before its origin's, so that no shorter mode runs it."""
        before = self.rows[-1].stage if self.rows else STAGES[0]
        return max(before, self.base.ops.stage[op], key=STAGES.index)

    def _now(self, value: ValueId) -> ValueId:
        of_buffer = self.latest.get(self.base.values.buffer[value])
        return value if of_buffer is None else of_buffer.get(value, value)

    def _fresh(
        self, reads: Sequence[ValueId], writes: Sequence[ValueId], read: dict[ValueId, ValueId]
    ) -> dict[ValueId, ValueId]:
        """New values for what an op writes again: on new buffers, or on those of the values that it changes."""
        buffer_of = self.base.values.buffer
        place = {buffer_of[value]: self._buffer(read[value]) for value in reads}
        written = {}
        for value in writes:
            buffer = buffer_of[value]
            if buffer not in place:
                self.fresh_buffers.append(buffer)
                place[buffer] = BufferId(len(self.base.buffers) + len(self.fresh_buffers) - 1)
            self.fresh_values.append((value, place[buffer]))
            written[value] = ValueId(len(self.base.values) + len(self.fresh_values) - 1)
        return written

    def _buffer(self, value: ValueId) -> BufferId:
        known = len(self.base.values)
        return self.base.values.buffer[value] if value < known else self.fresh_values[value - known][1]

    def _partial_call(self, op: OpId, kind: str, part: Part) -> _PartialCall:
        key = (self.calls.call[op], kind, part)
        if key not in self.partial_calls:
            if key[0] not in self.pieces:
                text = decode_call(self.calls.texts[key[0]])
                assert text is not None  # the graph is legal
                self.pieces[key[0]] = _call_pieces(text)
            self.partial_calls[key] = self.pieces[key[0]].cut(kind, part)
        return self.partial_calls[key]

    def _concerned(self, op: OpId, side: str, buffers: Iterable[BufferId]) -> tuple[ValueId, ...]:
        """Those of the values that an op ``reads`` or ``writes`` which lie in the buffers, in their order."""
        key, values = (op, side), (self.base.ops.reads if side == "reads" else self.base.ops.writes)[op]
        if key not in self.by_buffer:
            found: dict[BufferId, list[int]] = {}
            for place, value in enumerate(values):
                found.setdefault(self.base.values.buffer[value], []).append(place)
            self.by_buffer[key] = found
        places = sorted(place for buffer in buffers for place in self.by_buffer[key].get(buffer, ()))
        return tuple(values[place] for place in places)

    def graph(self, origin: Sequence[OpId]) -> Graph:
        """What was added."""
        base, rows = self.base, self.rows
        again = [old for old, _ in self.fresh_values]
        values, notes = base.values, base.notes
        return replace(
            base,
            buffers=Buffers(
                bytes=(*base.buffers.bytes, *(base.buffers.bytes[old] for old in self.fresh_buffers)),
                role=(*base.buffers.role, *(ACTIVATION for _ in self.fresh_buffers)),
            ),
            values=Values(
                buffer=(*values.buffer, *(buffer for _, buffer in self.fresh_values)),
                offset=(*values.offset, *(values.offset[old] for old in again)),
                shape=(*values.shape, *(values.shape[old] for old in again)),
                stride=(*values.stride, *(values.stride[old] for old in again)),
                dtype=(*values.dtype, *(values.dtype[old] for old in again)),
            ),
            ops=Ops(
                target=tuple(row.target for row in rows),
                reads=tuple(row.reads for row in rows),
                writes=tuple(row.writes for row in rows),
                overwrites=tuple(row.overwrites for row in rows),
                saves=tuple(row.saves for row in rows),
                recompute=tuple(row.recompute for row in rows),
                stage=tuple(row.stage for row in rows),
            ),
            outputs=tuple(map(self._now, base.outputs)),
            notes=Notes(
                name=notes.name,
                buffers=(*notes.buffers, *(notes.buffers[old] for old in self.fresh_buffers)),
                ops=OpNotes(
                    phase=tuple(notes.ops.phase[op] for op in origin),
                    modality=tuple(notes.ops.modality[op] for op in origin),
                    flops=tuple(notes.ops.flops[op] for op in origin),
                    module=tuple(notes.ops.module[op] for op in origin),
                    source=tuple(notes.ops.source[op] for op in origin),
                ),
                eager=notes.eager,
            ),
            calls=OpCalls(
                texts=tuple(self.texts),
                call=tuple(row.call for row in rows),
                operands=tuple(row.operands for row in rows),
                effect=tuple(row.effect for row in rows),
                numbers=tuple(row.numbers for row in rows),
            ),
        )


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The arguments of a text, or the entries of one list, and where the places of each begin; one more at the end."""

    pieces: Sequence[Argument]
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]

    def operands(self, low: int, high: int) -> range:
        """The places of tensors in pieces ``[low, high)``."""
        return range(self.tensors[low], self.tensors[high])

    def inputs(self, low: int, high: int) -> range:
        """The places of number inputs in them."""
        return range(self.numbers[low], self.numbers[high])


def _pieces(pieces: Sequence[Argument], tensor: int = 0, number: int = 0) -> _Pieces:
    tensors = accumulate((tag_count(piece, TENSOR) for piece in pieces), initial=tensor)
    numbers = accumulate((tag_count(piece, NUMBER) for piece in pieces), initial=number)
    return _Pieces(pieces, tuple(tensors), tuple(numbers))


@dataclass(frozen=True, slots=True)
class _CallPieces:
    """A text in pieces: its arguments, by argument the entries of one that is a list, and the places of its results."""

    text: CallText
    arguments: _Pieces
    lists: dict[int, _Pieces]
    results: range

    def cut(self, kind: str, part: Part) -> _PartialCall:
        """The call of an op that stands for one of this text."""
        if kind == TWIN:
            return self._twin()
        if kind == SUBLIST and part:
            return self._sublist(*part)
        return self._partial(self.text, [(self.arguments, 0, len(self.text.arguments))])

    def _twin(self) -> _PartialCall:
        if self.text.operator not in TWINS:
            raise InternalError(f"{self.text.operator} has no twin")
        operator, effects = TWINS[self.text.operator]
        arguments = list(self.text.arguments)
        for place in reversed(effects):
            arguments[place : place + 1] = [[]] if operator == self.text.operator else []
        kept = [(self.arguments, p, p + 1) for p in range(len(self.text.arguments)) if p not in effects]
        return self._partial(replace(self.text, operator=operator, arguments=tuple(arguments)), kept)

    def _sublist(self, low: int, high: int) -> _PartialCall:
        arguments = list(self.text.arguments)
        runs = []
        for place in range(len(arguments)):
            entries = self.lists.get(place)
            runs.append((self.arguments, place, place + 1) if entries is None else (entries, low, high))
            if entries is not None:
                arguments[place] = [LIST, *entries.pieces[low:high]]
        if all(self.text.results):
            return self._partial(
                replace(self.text, arguments=tuple(arguments), results=self.text.results[low:high]), runs, low, high
            )
        return self._partial(replace(self.text, arguments=tuple(arguments)), runs)

    def _partial(
        self, text: CallText, runs: Sequence[tuple[_Pieces, int, int]], low: int = 0, high: int | None = None
    ) -> _PartialCall:
        """The call ``text`` with the places of the runs of pieces, and those of results ``[low, high)``."""
        results = self.results[low:high]
        return _PartialCall(
            operator=text.operator,
            text=encode_call(text),
            results=len(results),
            operands=(*(place for pieces, *run in runs for place in pieces.operands(*run)), *results),
            numbers=tuple(place for pieces, *run in runs for place in pieces.inputs(*run)),
        )


def _call_pieces(text: CallText) -> _CallPieces:
    arguments = _pieces(text.arguments)
    lists = {
        place: _pieces(argument[1:], arguments.tensors[place], arguments.numbers[place])
        for place, argument in enumerate(text.arguments)
        if isinstance(argument, list) and argument[:1] == [LIST] and len(argument) > 1
    }
    first = arguments.tensors[-1]
    return _CallPieces(text, arguments, lists, range(first, first + sum(text.results)))
