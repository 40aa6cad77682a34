"""The graph that a rewrite makes of its base: for each row an op, with the values that its origin's now are.

Ops that are as they are keep their buffers and values. A rerun writes fresh buffers, or changes those of the values
that its origin changes, in the stage of the op before it; what reads a value later reads the latest one that stands for
it. A part lies in a buffer of its own, or at its place in the whole; windows that parts read are written with the
whole. Values that parts alone stand for are left out. What comes back from the host lies in a
buffer of its own, which later ops read. Deterministic: fresh buffers and values are numbered as rows
write them, so that base and rewrite say all. Whether the graph means its base is for the judge of rewrites to say, of
which nothing here is used. O(size of the graphs).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from tmmu.errors import InternalError
from tmmu.ir.call_text import (
    LIST,
    NUMBER,
    TENSOR,
    Argument,
    CallText,
    decode_call,
    decode_float,
    encode_call,
    encode_float,
    tag_count,
)
from tmmu.ir.graph import PURE, STAGES, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.parts.assemble import assembled_graph
from tmmu.ir.parts.boxes import window_of
from tmmu.ir.parts.host_copies import add_host_copy
from tmmu.ir.parts.rows import add_part
from tmmu.ir.parts.tables import Row, Tables
from tmmu.ir.rewrite import (
    ARGUMENT,
    HOST_KINDS,
    NONE,
    PARTIAL_KINDS,
    RERUN,
    RESULT,
    SCALE,
    SUBLIST,
    TWIN,
    Part,
    Rewrite,
    Twin,
)

_NORM: Final = ((ARGUMENT, 0), (ARGUMENT, 1), (ARGUMENT, 2)), ((ARGUMENT, 5), (ARGUMENT, 6), (ARGUMENT, 7))
TWINS: Final = {
    "aten.native_batch_norm.default": Twin(
        "aten.native_batch_norm.default", (*_NORM[0], (NONE, 3), (NONE, 4), *_NORM[1]), (0, 1, 2)
    ),
    "aten._native_batch_norm_legit.default": Twin(
        "aten._native_batch_norm_legit.no_stats", (*_NORM[0], *_NORM[1]), (0, 1, 2)
    ),
    "aten.native_dropout.default": Twin(
        "aten.native_dropout_backward.default", ((ARGUMENT, 0), (RESULT, 1), (SCALE, 1)), (0,)
    ),
}
"""By operator, its twin: without the statistics that a batch norm changes, with the mask that dropout drew."""
_AGAIN: Final = (RERUN, TWIN)


def rebuild_graph(base: Graph, rewrite: Rewrite) -> Graph:
    """The rewritten graph. ``base`` has calls; ``INTERNAL`` for what an op cannot be: a twin, a sublist, a part."""
    if base.calls is None:
        raise InternalError("a graph without calls was rewritten")
    building = _Building(tables=Tables(base=base, calls=base.calls))
    for origin, kind, part in zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True):
        building.add(origin, kind, part)
    return assembled_graph(building.tables)


@dataclass(frozen=True, slots=True)
class _PartialCall:
    """The call of an op, and which of its origin's operands and number inputs it has."""

    operator: str
    text: bytes
    results: int
    operands: tuple[int, ...]
    numbers: tuple[int, ...]
    reread: tuple[int, ...] = ()
    """Those of the operands that the origin makes, and that are read here."""


@dataclass(kw_only=True)
class _Building:
    """What is worked out once for many ops."""

    tables: Tables
    partial_calls: dict[tuple[int, str, Part], _PartialCall] = field(default_factory=dict)
    pieces: dict[int, "_CallPieces"] = field(default_factory=dict)
    by_buffer: dict[tuple[OpId, str], dict[BufferId, list[int]]] = field(default_factory=dict)
    """Of what an op reads, or writes, the places by buffer."""

    def add(self, op: OpId, kind: str, part: Part) -> None:
        """The next op."""
        if kind in PARTIAL_KINDS:
            add_part(self.tables, op, kind, part)
        elif kind in HOST_KINDS:
            add_host_copy(self.tables, op, kind, part, stage=self._stage(op))
        else:
            self._add_whole(op, kind, part)

    def _add_whole(self, op: OpId, kind: str, part: Part) -> None:
        tables = self.tables
        ops, buffer_of, calls = tables.base.ops, tables.base.values.buffer, tables.calls
        call = self._partial_call(op, kind, part)
        base_operands = [calls.operands[op][place] for place in call.operands]
        reads, writes = ops.reads[op], ops.writes[op]
        if kind in (TWIN, SUBLIST):
            own = (calls.operands[op][place] for place in call.operands if place not in call.reread)
            concerned = dict.fromkeys(buffer_of[value] for value in own)
            reread = tuple(calls.operands[op][place] for place in call.reread)
            reads = (*self._concerned(op, "reads", concerned), *reread)
            writes = self._concerned(op, "writes", concerned)
        changed = [] if kind in _AGAIN else [buffer_of[value] for value in writes]
        tables.take_base_buffers(changed)
        read = {value: tables.current(value) for value in (*reads, *base_operands)}
        written = self._fresh(reads, writes, read) if kind in _AGAIN else {value: value for value in writes}
        split = len(base_operands) - call.results
        tables.append(
            Row(
                origin=op,
                target=call.operator if kind == TWIN else ops.target[op],
                reads=tuple(read[value] for value in reads),
                writes=tuple(written[value] for value in writes),
                overwrites=tuple((written[w], read[r]) for w, r in ops.overwrites[op] if w in written and r in read),
                saves=() if kind in _AGAIN else tuple(written.get(v, read.get(v, v)) for v in ops.saves[op]),
                recompute=ops.recompute[op] and kind not in _AGAIN,
                stage=self._stage(op) if kind in _AGAIN else ops.stage[op],
                call=tables.texts.setdefault(call.text, len(tables.texts)),
                operands=(
                    *(read[value] for value in base_operands[:split]),
                    *(written.get(value, read[value]) for value in base_operands[split:]),
                ),
                effect=PURE if kind == TWIN else calls.effect[op],
                numbers=tuple(calls.numbers[op][place] for place in call.numbers),
            )
        )
        tables.forget_parts(changed)
        if kind in _AGAIN:
            for value, new in written.items():
                tables.latest.setdefault(buffer_of[value], {})[value] = new

    def _stage(self, op: OpId) -> str:
        """Of a rerun: that of the op before it, but not before its origin's, so that no shorter mode runs it."""
        rows = self.tables.rows
        before = rows[-1].stage if rows else STAGES[0]
        return max(before, self.tables.base.ops.stage[op], key=STAGES.index)

    def _fresh(
        self, reads: Sequence[ValueId], writes: Sequence[ValueId], read: dict[ValueId, ValueId]
    ) -> dict[ValueId, ValueId]:
        """New values for what an op writes again: on new buffers, or on those of the values that it changes."""
        tables, base = self.tables, self.tables.base
        buffer_of = base.values.buffer
        place = {buffer_of[value]: tables.place_of(read[value])[0] for value in reads}
        written = {}
        for value in writes:
            buffer = buffer_of[value]
            if buffer not in place:
                place[buffer] = tables.fresh_buffer(base.buffers.bytes[buffer], buffer)
            written[value] = tables.fresh_value(place[buffer], window_of(base, value))
        return written

    def _partial_call(self, op: OpId, kind: str, part: Part) -> _PartialCall:
        calls = self.tables.calls
        key = (calls.call[op], kind, part)
        if key not in self.partial_calls:
            if key[0] not in self.pieces:
                text = decode_call(calls.texts[key[0]])
                assert text is not None  # the graph is legal
                self.pieces[key[0]] = _call_pieces(text)
            self.partial_calls[key] = self.pieces[key[0]].cut(kind, part)
        return self.partial_calls[key]

    def _concerned(self, op: OpId, side: str, buffers: Iterable[BufferId]) -> tuple[ValueId, ...]:
        """Those of the values that an op ``reads`` or ``writes`` which lie in the buffers, in their order."""
        base = self.tables.base
        key, values = (op, side), (base.ops.reads if side == "reads" else base.ops.writes)[op]
        if key not in self.by_buffer:
            found: dict[BufferId, list[int]] = {}
            for place, value in enumerate(values):
                found.setdefault(base.values.buffer[value], []).append(place)
            self.by_buffer[key] = found
        places = sorted(place for buffer in buffers for place in self.by_buffer[key].get(buffer, ()))
        return tuple(values[place] for place in places)


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
        if kind == SUBLIST:
            entries = [len(each.pieces) for each in self.lists.values()]
            entries += [len(self.results)] if all(self.text.results) and len(self.text.results) else []
            if len(part) != 2 or not 0 <= part[0] < part[1] <= min(entries, default=0):
                raise InternalError(f"{self.text.operator} has no sublist {part}")
            return self._sublist(*part)
        return self._partial(self.text, [(self.arguments, 0, len(self.text.arguments))])

    def _twin(self) -> _PartialCall:
        twin = TWINS.get(self.text.operator)
        if twin is None:
            raise InternalError(f"{self.text.operator} has no twin")
        arguments, operands, numbers = list[Argument](), list[int](), list[int]()
        for what, place in twin.arguments:
            if what == ARGUMENT:
                operands += self.arguments.operands(place, place + 1)
                numbers += self.arguments.inputs(place, place + 1)
            elif what == RESULT:
                operands.append(self._result(place))
            arguments.append(_twin_argument(self.text, what, place))
        results = tuple(self.text.results[place] for place in twin.results)
        produced = [self._result(place) for place in twin.results if self.text.results[place]]
        text = replace(self.text, operator=twin.operator, arguments=tuple(arguments), results=results)
        return _PartialCall(
            operator=twin.operator,
            text=encode_call(text),
            results=len(produced),
            operands=(*operands, *produced),
            numbers=tuple(numbers),
            reread=tuple(self._result(place) for what, place in twin.arguments if what == RESULT),
        )

    def _result(self, place: int) -> int:
        """The place of a result among the tensors of the call."""
        return self.results[sum(self.text.results[:place])]

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


def _twin_argument(text: CallText, what: int, place: int) -> Argument:
    argument = text.arguments[place]
    if what == SCALE and isinstance(argument, bytes):
        return encode_float(twin_scale(decode_float(argument)))
    return argument if what == ARGUMENT else [TENSOR, 0] if what == RESULT else []


def twin_scale(probability: float) -> float:
    """By what dropout multiplies what it keeps; 0 where it keeps nothing."""
    return 0.0 if probability == 1 else 1 / (1 - probability)


def _call_pieces(text: CallText) -> _CallPieces:
    arguments = _pieces(text.arguments)
    lists = {
        place: _pieces(argument[1:], arguments.tensors[place], arguments.numbers[place])
        for place, argument in enumerate(text.arguments)
        if isinstance(argument, list) and argument[:1] == [LIST] and len(argument) > 1
    }
    first = arguments.tensors[-1]
    return _CallPieces(text, arguments, lists, range(first, first + sum(text.results)))
