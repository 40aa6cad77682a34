"""The context of one check of a rewrite: both graphs, the rewrite, and what follows from them, worked out once.

A value has the *class* (base buffer, base op) and its window: the version of a buffer that an op makes is the version
that its origin makes of the buffer at the same place.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from tmmu.ir.call_text import CallText, decode_call
from tmmu.ir.graph import PERSISTENT_ROLES, Graph, OpCalls
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.rewrite import SUBLIST, TWIN, Rewrite
from tmmu.ir.windows import writers
from tmmu.judge.rewrite.expected import ExpectedCall, expected_call
from tmmu.judge.rewrite.facts import computes_alone, has_same_bits

VersionClass: TypeAlias = tuple[BufferId, OpId]
"""A base buffer, and the base op that made this version of it; -1: there from the start."""


@dataclass(frozen=True, kw_only=True)
class RewriteContext:
    """What every rule is given: two legal graphs with calls, and the rewrite between them."""

    base: Graph
    rewritten: Graph
    rewrite: Rewrite

    @cached_property
    def texts(self) -> tuple[CallText, ...]:
        """Per row of the base's texts, the call that it is."""
        return tuple(text for text in map(decode_call, calls_of(self.base).texts) if text is not None)

    @cached_property
    def expected(self) -> tuple[ExpectedCall | str, ...]:
        """Per op of the rewritten graph, what it has to call."""
        row_of = calls_of(self.base).call
        rows = zip(self.rewrite.origin, self.rewrite.kind, self.rewrite.part, strict=True)
        distinct: dict[object, ExpectedCall | str] = {}
        found = []
        for origin, kind, part in rows:
            key = (row_of[origin], kind, part)
            if key not in distinct:
                distinct[key] = expected_call(self.texts[row_of[origin]], kind, part)
            found.append(distinct[key])
        return tuple(found)

    @cached_property
    def base_writer(self) -> list[OpId]:
        """Per base value, the op that writes it."""
        return writers(self.base)

    @cached_property
    def writer(self) -> list[OpId]:
        """Per value of the rewritten graph, the op that writes it."""
        return writers(self.rewritten)

    @cached_property
    def classes(self) -> dict[tuple[BufferId, OpId], VersionClass]:
        """The class of each version of the rewritten graph: by (buffer, op that makes it)."""
        base, rewritten = self.base, self.rewritten
        found: dict[tuple[BufferId, OpId], VersionClass] = {
            (buffer, OpId(-1)): (buffer, OpId(-1)) for buffer in base.buffers.ids if is_persistent(base, buffer)
        }
        for op, origin in enumerate(self.rewrite.origin):
            for value, base_value in zip(rewritten.ops.writes[op], self.written(OpId(op)), strict=False):
                version = rewritten.values.buffer[value], OpId(op)
                found.setdefault(version, (base.values.buffer[base_value], origin))
        return found

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

    def reads(self, op: OpId) -> list[ValueId]:
        """What the origin of an op reads, as far as the op has to read it too."""
        origin = self.rewrite.origin[op]
        return [value for value in self.base.ops.reads[origin] if self._concerns(op, value)]

    def written(self, op: OpId) -> list[ValueId]:
        """What the origin of an op writes, as far as the op has to write it too."""
        origin = self.rewrite.origin[op]
        return [value for value in self.base.ops.writes[origin] if self._concerns(op, value)]

    def _concerns(self, op: OpId, value: ValueId) -> bool:
        """Whether a value of the origin belongs to an op that stands for part of it: by the buffers of its operands."""
        kind = self.rewrite.kind[op]
        if kind not in (TWIN, SUBLIST):
            return True
        return self.base.values.buffer[value] in self._concerned[op]

    @cached_property
    def _concerned(self) -> dict[int, frozenset[BufferId]]:
        """For ops that stand for part of their origin, the base buffers of the operands that they have."""
        operands, buffer_of = calls_of(self.base).operands, self.base.values.buffer
        return {
            op: frozenset()
            if isinstance(expected, str)
            else frozenset(buffer_of[operands[self.rewrite.origin[op]][place]] for place in expected.operands)
            for op, expected in enumerate(self.expected)
            if self.rewrite.kind[op] in (TWIN, SUBLIST)
        }


def calls_of(graph: Graph) -> OpCalls:
    """The calls of a graph of version 2."""
    assert graph.calls is not None
    return graph.calls


def is_persistent(graph: Graph, buffer: BufferId) -> bool:
    """Whether the buffer is there before the step and after it."""
    return graph.buffers.role[buffer] in PERSISTENT_ROLES


def place(graph: Graph, value: ValueId) -> tuple[object, ...]:
    """Buffer and window of a value."""
    return graph.values.buffer[value], *window(graph, value)


def window(graph: Graph, value: ValueId) -> tuple[object, ...]:
    """Offset, shape, stride and dtype of a value."""
    values = graph.values
    return values.offset[value], values.shape[value], values.stride[value], values.dtype[value]
