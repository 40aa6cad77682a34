"""The ops that copy to the host what an op made, and back from it into a buffer of its own."""

from dataclasses import replace

from tmmu.errors import InternalError
from tmmu.ir.call_text import DEFAULT, TENSOR, CallText, decode_call, encode_call
from tmmu.ir.graph import HOST_COPY, PURE
from tmmu.ir.ids import OpId, ValueId
from tmmu.ir.parts.boxes import window_of
from tmmu.ir.parts.tables import Row, Tables
from tmmu.ir.rewrite import TO_HOST, Part


def add_host_copy(tables: Tables, op: OpId, kind: str, part: Part, *, stage: str) -> None:
    """The next op, in a stage; ``INTERNAL`` where ``part`` is no value that ``op`` makes, or has no copy to come from.

    What reads values of the buffer later reads the copy that came back, all of it.
    """
    base, value = tables.base, ValueId(part[0]) if len(part) == 1 else ValueId(-1)
    if value not in base.ops.writes[op] or (kind != TO_HOST and value not in tables.on_host):
        raise InternalError(f"{base.ops.target[op]} has no {kind} of {part}")
    buffer = base.values.buffer[value]
    place = tables.fresh_buffer(base.buffers.bytes[buffer], buffer)
    if kind == TO_HOST:
        source, copies = tables.current(value), {value: tables.fresh_value(place, window_of(base, value))}
        tables.on_host[value] = copies[value]
    else:
        beside = [each for each in base.ops.writes[op] if base.values.buffer[each] == buffer]
        copies = {each: tables.fresh_value(place, window_of(base, each)) for each in beside}
        source = tables.on_host[value]
    tables.append(
        Row(
            origin=op,
            target=HOST_COPY,
            reads=(source,),
            writes=tuple(copies.values()),
            stage=stage,
            call=tables.texts.setdefault(encode_call(_copy_text(tables, op)), len(tables.texts)),
            operands=(source, copies[value]),
            effect=PURE,
            numbers=(),
            share=(0, 0, 1),
        )
    )
    if kind != TO_HOST:
        tables.latest.setdefault(buffer, {}).update(copies)
        tables.forget_parts([buffer])


def _copy_text(tables: Tables, op: OpId) -> CallText:
    text = decode_call(tables.calls.texts[tables.calls.call[op]])
    assert text is not None  # the graph is legal
    return replace(text, operator=HOST_COPY, arguments=([TENSOR, 0], [DEFAULT]), results=(True,))
