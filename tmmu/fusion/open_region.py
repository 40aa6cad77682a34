"""A region that ops still join: what its members and bases are so far, and whether one more op can be a member."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from tmmu.fusion.group import CHANGED, MADE, READ, Base, GroupMember, TensorRef, window_bytes
from tmmu.fusion.operator_kinds import ATTENTION, PRODUCT, kind_of
from tmmu.fusion.window_views import Strided, is_reshaped, view_steps
from tmmu.ir.graph import DTYPE_BYTES, HOST, Graph
from tmmu.ir.ids import OpId, ValueId
from tmmu.ir.program import Call, Program, ValueRef
from tmmu.ir.windows import is_dense
from tmmu.passes.operators.schema import argument_names, signature
from tmmu.torch_private import OpOverload

MAX_QUERY_ROWS: Final = 4
"""Rows of queries to a head of keys up to which attention is computed as sums."""
_DTYPES: Final = frozenset(
    {"float32", "float64", "bfloat16", "float16", "bool", "uint8", "int8", "int16", "int32", "int64"}
)
_MASKS: Final = ("bool", "uint8")
"""Dtypes of an index that selects by value, of which nobody knows how many it selects."""


def window_of(graph: Graph, value: ValueId) -> Strided:
    """The window of a value on its buffer."""
    values = graph.values
    dtype = values.dtype[value]
    return Strided(values.shape[value], values.stride[value], dtype, values.offset[value] // DTYPE_BYTES[dtype])


@dataclass(slots=True)
class OpenRegion:
    """Ops from ``first`` on. An op that cannot be a member spoils the region, which is then made again without it."""

    program: Program
    first: OpId
    bases: list[Base] = field(default_factory=list)
    members: list[GroupMember] = field(default_factory=list)
    own_bases: dict[int, int] = field(default_factory=dict)
    """By buffer that the region makes or changes."""
    read_buffers: set[int] = field(default_factory=set)
    base_values: dict[int, ValueId] = field(default_factory=dict)
    """By base, the value that it is: before the region of what is read or changed."""
    result_values: dict[int, ValueId] = field(default_factory=dict)
    """By base that is made or changed, the value that it is after the last member that wrote it."""
    _read_bases: dict[ValueId, int] = field(default_factory=dict)
    """By value, of what the region reads and has not changed."""

    def join(self, op: OpId) -> bool:
        """Adds an op; false where it cannot be a member."""
        call = self.program.calls[op]
        if not self._can_be_member(op, call):
            return False
        written = _written_arguments(call)
        places: dict[ValueId, TensorRef] = {}
        for value in dict.fromkeys(argument_values(call)):
            place = self._changed_base(value) if value in written else self._read_base(value)
            if place is None:
                return False
            places[value] = place
        if written:
            return len(written) == 1 and self._change(op, written[0], places) and self._add(call, places, ())
        results = self._made_bases(call)
        return results is not None and self._add(call, places, results)

    def _can_be_member(self, op: OpId, call: Call) -> bool:
        graph, kind = self.program.graph, kind_of(call.operator)
        if kind is None or not isinstance(call.operator, OpOverload):
            return False
        if call.numbers_vary or call.has_formulas or any(ref.conj or ref.neg for ref in call.refs()):
            return False
        touched = (*graph.ops.reads[op], *graph.ops.writes[op])
        if not all(self._can_be_touched(value) for value in touched):
            return False
        if str(call.operator) == "aten.index.Tensor":
            return all(graph.values.dtype[value] not in _MASKS for value in tuple(argument_values(call))[1:])
        return kind not in (PRODUCT, ATTENTION) or self._can_be_sum(call, kind)

    def _can_be_sum(self, call: Call, kind: str) -> bool:
        """Whether a product or an attention is a member, as a sum; on a GPU none is: its libraries do one row."""
        fits = self._is_row_product(call) if kind == PRODUCT else self._is_row_attention(call)
        is_on_cpu = self.program.graph.target == "cpu"
        return is_on_cpu and fits and not any(self._is_formula(value) for value in _operands(call))

    def _can_be_touched(self, value: ValueId) -> bool:
        """Whether a kernel reads and writes such a value: nothing but copies touches host memory."""
        values, roles = self.program.graph.values, self.program.graph.buffers.role
        is_known = values.dtype[value] in _DTYPES and 0 not in values.shape[value]
        return is_known and roles[values.buffer[value]] != HOST

    def _is_formula(self, value: ValueId) -> bool:
        """Whether a value is one that a member makes, and not what lies in memory before the region or is changed."""
        own = self.own_bases.get(self.program.graph.values.buffer[value])
        return own is not None and self.bases[own].kind == MADE

    def _is_row_product(self, call: Call) -> bool:
        shapes = [self.program.graph.values.shape[value] for value in _operands(call)]
        has_scale = dict(call.kwargs).keys() & {"alpha", "beta"}
        return len(shapes) == 2 and shapes[0][-2] == 1 and not has_scale

    def _is_row_attention(self, call: Call) -> bool:
        arguments = dict(zip(argument_names(call.operator), call.args, strict=False)) | dict(call.kwargs)
        query, key = (self.program.graph.values.shape[arguments[name].value] for name in ("query", "key"))
        is_plain = not arguments.get("dropout_p") and not arguments.get("is_causal")
        return is_plain and len(query) == 4 and query[2] <= MAX_QUERY_ROWS and query[:2] == key[:2]

    def _read_base(self, value: ValueId) -> TensorRef | None:
        buffer = self.program.graph.values.buffer[value]
        own = self.own_bases.get(buffer)
        if own is not None:
            window = self._from_origin(own, value)
            return None if view_steps(self.bases[own].window, window) is None else TensorRef(own, window)
        if value not in self._read_bases:
            self._read_bases[value] = self._new_base(READ, value)
            self.read_buffers.add(buffer)
        return TensorRef(self._read_bases[value], self.bases[self._read_bases[value]].window)

    def _changed_base(self, value: ValueId) -> TensorRef | None:
        """The base of an argument that is written, which is the whole of it, in its shape or reshaped."""
        graph = self.program.graph
        buffer, window = graph.values.buffer[value], window_of(graph, value)
        own = self.own_bases.get(buffer)
        if own is None:
            others = [other for other in self._read_bases if graph.values.buffer[other] == buffer]
            if not is_dense(window.shape, window.stride) or any(other != value for other in others):
                return None
            own = self._read_bases.pop(value) if others else self._new_base(CHANGED, value)
            self.bases[own] = replace(self.bases[own], kind=CHANGED)
            self.own_bases[buffer] = own
        changed = self._from_origin(own, value)
        return TensorRef(own, changed) if is_reshaped(self.bases[own].window, changed) else None

    def _from_origin(self, base: int, value: ValueId) -> Strided:
        """The window of a value, whose offset counts from where a base begins."""
        graph = self.program.graph
        window, origin = window_of(graph, value), window_of(graph, self.base_values[base])
        offset = window.offset * DTYPE_BYTES[window.dtype] - origin.offset * DTYPE_BYTES[origin.dtype]
        return replace(window, offset=offset // DTYPE_BYTES[window.dtype])

    def _new_base(self, kind: str, value: ValueId) -> int:
        window = replace(window_of(self.program.graph, value), offset=0)
        self.bases.append(Base(kind=kind, window=window, result=window))
        self.base_values[len(self.bases) - 1] = value
        return len(self.bases) - 1

    def _change(self, op: OpId, value: ValueId, places: dict[ValueId, TensorRef]) -> bool:
        """Whether what an op changes is what its argument says; notes the version that is there afterwards."""
        graph = self.program.graph
        buffer, written = graph.values.buffer[value], graph.ops.writes[op]
        same = [after for after in written if window_of(graph, after) == window_of(graph, value)]
        if not same or {graph.values.buffer[after] for after in written} != {buffer}:
            return False
        base = places[value].base
        self.result_values[base] = same[0]
        if self.bases[base].kind == MADE:
            self.bases[base] = replace(self.bases[base], result=replace(window_of(graph, same[0]), offset=0))
        return True

    def _made_bases(self, call: Call) -> tuple[int | None, ...] | None:
        """A new base for each tensor that a call makes; ``None`` where one is no dense whole buffer of its own."""
        graph, results = self.program.graph, list[int | None]()
        for result in call.results:
            if result is None:
                results.append(None)
                continue
            value = ValueId(result)
            window, buffer = window_of(graph, value), graph.values.buffer[value]
            is_whole = window_bytes(window) == graph.buffers.bytes[buffer] and is_dense(window.shape, window.stride)
            if not is_whole or buffer in self.own_bases or buffer in self.read_buffers:
                return None
            base = self._new_base(MADE, value)
            self.own_bases[buffer], self.result_values[base] = base, value
            results.append(base)
        return tuple(results) if any(result is not None for result in results) else None

    def _add(self, call: Call, places: dict[ValueId, TensorRef], results: tuple[int | None, ...]) -> bool:
        def place(argument: Any) -> Any:
            if isinstance(argument, ValueRef):
                return places[ValueId(argument.value)]
            if isinstance(argument, (list, tuple)) and not isinstance(argument, torch.Size):
                return tuple(map(place, argument))
            return argument

        member = GroupMember(
            operator=call.operator,
            args=tuple(map(place, call.args)),
            kwargs=tuple((name, place(argument)) for name, argument in call.kwargs),
            results=results,
        )
        self.members.append(member)
        return True


def argument_values(call: Call) -> Iterator[ValueId]:
    """The tensors among its arguments, in the order of the arguments."""
    pending: list[Any] = [*call.args, *(argument for _, argument in call.kwargs)]
    while pending:
        argument = pending.pop(0)
        if isinstance(argument, ValueRef):
            yield ValueId(argument.value)
        elif isinstance(argument, (list, tuple)):
            pending[:0] = argument


def _written_arguments(call: Call) -> tuple[ValueId, ...]:
    """The tensors that an operator changes."""
    arguments = dict(zip(argument_names(call.operator), call.args, strict=False)) | dict(call.kwargs)
    written = (arguments.get(name) for name in signature(call.operator).keywords)
    return tuple(ValueId(argument.value) for argument in written if isinstance(argument, ValueRef))


def _operands(call: Call) -> tuple[ValueId, ...]:
    """What a product or an attention reads again and again."""
    values = tuple(argument_values(call))
    if str(call.operator) == "aten.addmm.default":
        return values[1:3]
    return values[:3] if kind_of(call.operator) == ATTENTION else values[:2]
