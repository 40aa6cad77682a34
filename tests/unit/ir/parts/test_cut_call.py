"""Calls on a part: where shapes do not belong together, there is none."""

import pytest

from tmmu.ir.call_text import LIST, TENSOR, CallText
from tmmu.ir.parts.cut_call import cut_call

JOIN = CallText(operator="aten.cat.default", arguments=([LIST, [TENSOR, 0], [TENSOR, 0]], 1), results=(True,))
SUM = CallText(operator="aten.add.Tensor", arguments=([TENSOR, 0], [TENSOR, 0], 1), results=(True,))
HALF = ((0, 4), (0, 6))
"""Of a result of 8 rows and 6 columns."""


def test_part_takes_its_items_of_each_operand() -> None:
    cut = cut_call(JOIN, [(8, 4), (8, 2)], HALF)
    assert cut is not None
    assert cut.boxes == (((0, 4), (0, 4)), ((0, 4), (0, 2)))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [(JOIN, [(8, 4), (3, 2)]), (SUM, [(8, 6), (3, 6)]), (SUM, [(8, 6), (8, 5)]), (SUM, [(8, 6), (2, 8, 6)])],
)
def test_what_is_not_there_is_in_no_part(text: CallText, shapes: list[tuple[int, ...]]) -> None:
    assert cut_call(text, shapes, HALF) is None
