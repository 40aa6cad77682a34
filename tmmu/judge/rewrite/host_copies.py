"""What an op has to call that copies a result of its origin to the host, or back from it."""

from dataclasses import replace
from typing import Final

from tmmu.ir.call_text import DEFAULT, TENSOR
from tmmu.ir.graph import PERSISTENT_ROLES
from tmmu.ir.ids import ValueId
from tmmu.ir.rewrite import Part
from tmmu.judge.rewrite.parts import BaseOp, Claim, ExpectedPart, Outcome

COPY: Final = "aten.clone.default"


def expected_copy(origin: BaseOp, part: Part) -> ExpectedPart | str:
    """The copy of the value that ``part`` names: of that version and window, which has its bytes afterwards.

    As the copy back has to read that version too, and a copy to the host alone makes it there, it is the one that went.
    """
    graph, op = origin.graph, origin.op
    value = ValueId(part[0]) if len(part) == 1 else ValueId(-1)
    if value not in graph.ops.writes[op]:
        return f"{part} is no value that op {op} of the base makes"
    source = origin.source(value)
    buffer, window = graph.values.buffer[value], source.window
    if graph.buffers.role[buffer] in PERSISTENT_ROLES or not window.is_dense:
        return f"value {value} of the base persists, or has gaps"
    low, high = window.span
    return ExpectedPart(
        text=replace(origin.text, operator=COPY, arguments=([TENSOR, 0], [DEFAULT]), results=(True,)),
        numbers=(),
        sources=(source,),
        outcomes=(Outcome(window=window, claim=Claim(buffer, op, 0, low, high)),),
    )
