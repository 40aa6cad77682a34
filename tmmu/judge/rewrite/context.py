"""The context of one check of a rewrite: both graphs, the rewrite, and what follows from them, worked out once.

A value has the *class* (base buffer, base op) and its window: the version of a buffer that an op makes is the version
that its origin makes of the buffer at the same place, or bytes of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from tmmu.ir.call_text import CallText, decode_call
from tmmu.ir.graph import PERSISTENT_ROLES, Graph, OpCalls
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.parts.boxes import TensorWindow, window_of
from tmmu.ir.rewrite import HOST_KINDS, PARTIAL_KINDS, SUBLIST, TWIN, Rewrite
from tmmu.ir.windows import writers
from tmmu.judge.rewrite.expected import CallPlaces, ExpectedCall, expected_call
from tmmu.judge.rewrite.facts import computes_alone, has_same_bits
from tmmu.judge.rewrite.host_copies import expected_copy
from tmmu.judge.rewrite.parts import BaseOp, Claim, ExpectedPart, expected_part


@dataclass(frozen=True, kw_only=True)
class RewriteContext:
    """What every rule is given: two legal graphs with calls, and the rewrite between them."""

    base: Graph
    rewritten: Graph
    rewrite: Rewrite
    near: frozenset[str] = frozenset()
    """The rules by which it may be only near."""

    @cached_property
    def texts(self) -> tuple[CallText, ...]:
        """Per row of the base's texts, the call that it is."""
        return call_texts(self.base)

    @cached_property
    def rewritten_texts(self) -> tuple[CallText, ...]:
        """Per row of the rewritten graph's texts, the call that it is."""
        return tuple(text for text in map(decode_call, calls_of(self.rewritten).texts) if text is not None)

    @cached_property
    def expected(self) -> tuple[ExpectedCall | ExpectedPart | str, ...]:
        """Per op of the rewritten graph, what it has to call."""
        return expected_calls(self.base, self.texts, self.rewrite)

    @cached_property
    def base_writer(self) -> list[OpId]:
        """Per base value, the op that writes it."""
        return writers(self.base)

    @cached_property
    def writer(self) -> list[OpId]:
        """Per value of the rewritten graph, the op that writes it."""
        return writers(self.rewritten)

    @cached_property
    def claims(self) -> dict[tuple[BufferId, OpId], Claim]:
        """What each version of the rewritten graph is: by (buffer, op that makes it; -1: there from the start)."""
        base, rewritten = self.base, self.rewritten
        found = {
            (buffer, OpId(-1)): Claim(buffer, OpId(-1)) for buffer in base.buffers.ids if is_persistent(base, buffer)
        }
        for op, origin in enumerate(self.rewrite.origin):
            for value, base_value in zip(rewritten.ops.writes[op], self.written(OpId(op)), strict=False):
                version = rewritten.values.buffer[value], OpId(op)
                found.setdefault(version, Claim(base.values.buffer[base_value], origin))
            found |= self._claims_of_part(OpId(op))
        return found

    def _claims_of_part(self, op: OpId) -> dict[tuple[BufferId, OpId], Claim]:
        """Of an op of a partial kind, by the places of its results."""
        expected, found = self.expected[op], {}
        if isinstance(expected, ExpectedPart):
            for value, outcome in zip(self.results(op), expected.outcomes, strict=False):
                shift = outcome.window.offset - self.rewritten.values.offset[value]
                found[self.rewritten.values.buffer[value], op] = outcome.claim._replace(shift=shift)
        return found

    def results(self, op: OpId) -> tuple[ValueId, ...]:
        """The tensors that the call of an op of the rewritten graph returns."""
        calls = calls_of(self.rewritten)
        count = sum(self.rewritten_texts[calls.call[op]].results)
        return calls.operands[op][len(calls.operands[op]) - count :]

    def is_value_of(self, value: ValueId, base_value: ValueId) -> bool:
        """Whether a value has the class and window of a value of the base."""
        base = self.base
        return self.holds(
            value, base.values.buffer[base_value], self.base_writer[base_value], window_of(base, base_value)
        )

    def holds(self, value: ValueId, buffer: BufferId, op: OpId, window: TensorWindow) -> bool:
        """Whether a value is this window of the version that an op of the base makes of a buffer."""
        claim = self.claims.get((self.rewritten.values.buffer[value], self.writer[value]))
        return claim is not None and claim.holds(buffer, op, window_of(self.rewritten, value), window)

    @cached_property
    def runs_once(self) -> tuple[bool, ...]:
        """Per base op, whether it runs exactly once: it is not known, changes what persists, or has no fixed bits."""
        base = self.base
        return tuple(
            not self.is_known(op)
            or not has_same_bits(self.text(op), base.target)
            or any(is_persistent(base, base.values.buffer[value]) for value in base.ops.writes[op])
            for op in range(len(base.ops))
        )

    def is_known(self, op: int) -> bool:
        """Whether a base op's results and the writes of the graph are all that it does, from its arguments alone."""
        return bool(self.base.ops.writes[op]) and computes_alone(self.text(op))

    def text(self, op: int) -> CallText:
        """The call of a base op."""
        return self.texts[calls_of(self.base).call[op]]

    def reads(self, op: OpId) -> tuple[ValueId, ...]:
        """What the origin of an op reads, as far as the op has to read it too."""
        return self.touched[op][0]

    def written(self, op: OpId) -> tuple[ValueId, ...]:
        """What the origin of an op writes, as far as the op has to write it too."""
        return self.touched[op][1]

    @cached_property
    def touched(self) -> tuple[tuple[tuple[ValueId, ...], tuple[ValueId, ...]], ...]:
        """Per op, what its origin reads and writes: all of it, or what lies in the buffers of the operands it has.

        A result of the origin's that is an argument of its twin is read.
        """
        base, operands, buffer_of = self.base, calls_of(self.base).operands, self.base.values.buffer
        found = []
        for origin, kind, expected in zip(self.rewrite.origin, self.rewrite.kind, self.expected, strict=True):
            rows = base.ops.reads[origin], base.ops.writes[origin]
            if isinstance(expected, ExpectedPart) or kind in (*PARTIAL_KINDS, *HOST_KINDS):
                rows = (), ()
            elif kind in (TWIN, SUBLIST):
                places, reread = ((), ()) if isinstance(expected, str) else (expected.operands, expected.reread)
                concerned = dict.fromkeys(buffer_of[operands[origin][place]] for place in places if place not in reread)
                results = tuple(operands[origin][place] for place in reread)
                rows = (*self._part_of(origin, 0, concerned), *results), self._part_of(origin, 1, concerned)
            found.append(rows)
        return tuple(found)

    def _part_of(self, origin: OpId, side: int, buffers: Iterable[BufferId]) -> tuple[ValueId, ...]:
        """Of what an op reads (side 0) or writes (1), the values in these buffers, in their order."""
        by_buffer = self._by_buffer[side]
        if origin not in by_buffer:
            row = (self.base.ops.reads, self.base.ops.writes)[side][origin]
            table: dict[BufferId, list[tuple[int, ValueId]]] = {}
            for place, value in enumerate(row):
                table.setdefault(self.base.values.buffer[value], []).append((place, value))
            by_buffer[origin] = table
        return tuple(value for _, value in sorted(chain(*(by_buffer[origin].get(buffer, ()) for buffer in buffers))))

    @cached_property
    def _by_buffer(self) -> tuple[dict[OpId, dict[BufferId, list[tuple[int, ValueId]]]], ...]:
        return {}, {}


def call_texts(graph: Graph) -> tuple[CallText, ...]:
    """Per row of the texts of a legal graph, the call that it is."""
    return tuple(text for text in map(decode_call, calls_of(graph).texts) if text is not None)


def expected_calls(
    base: Graph, texts: Sequence[CallText], rewrite: Rewrite
) -> tuple[ExpectedCall | ExpectedPart | str, ...]:
    """Per row of a rewrite whose origins exist, the call to be made, or why no op of its kind stands for its origin."""
    calls, base_writer = calls_of(base), writers(base)
    distinct: dict[object, ExpectedCall | str] = {}
    places: dict[int, CallPlaces] = {}
    found: list[ExpectedCall | ExpectedPart | str] = []
    for origin, kind, part in zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True):
        row = calls.call[origin]
        if kind in HOST_KINDS:
            found.append(expected_copy(BaseOp(base, calls, base_writer, origin, texts[row]), part))
            continue
        if kind in PARTIAL_KINDS:
            found.append(expected_part(BaseOp(base, calls, base_writer, origin, texts[row]), kind, part))
            continue
        key = (row, kind, part)
        if key not in distinct:
            if row not in places:
                places[row] = CallPlaces.of(texts[row])
            distinct[key] = expected_call(places[row], kind, part, base.target)
        found.append(distinct[key])
    return tuple(found)


def calls_of(graph: Graph) -> OpCalls:
    """The calls of a graph of version 2."""
    assert graph.calls is not None
    return graph.calls


def is_persistent(graph: Graph, buffer: BufferId) -> bool:
    """Whether the buffer is there before the step and after it."""
    return graph.buffers.role[buffer] in PERSISTENT_ROLES


def place(graph: Graph, value: ValueId) -> tuple[BufferId, TensorWindow]:
    """Buffer and window of a value."""
    return graph.values.buffer[value], window_of(graph, value)
