"""Boxes and windows, worked out by hand."""

import pytest

from tmmu.ir.parts.boxes import TensorWindow, box_of, part_of, whole


@pytest.mark.parametrize(
    ("part", "box"),
    [
        ((0, 1, 3), ((1, 3), (0, 5))),
        ((1, 0, 5), ((0, 4), (0, 5))),
        ((0, 0, 1, 1, 2, 4), ((0, 1), (2, 4))),
        ((), None),
        ((0, 1), None),
        ((0, 3, 3), None),
        ((0, 2, 5), None),
        ((0, -1, 2), None),
        ((2, 0, 1), None),
        ((-1, 0, 1), None),
        ((0, 0, 1, 0, 1, 2), None),
        ((1, 0, 1, 0, 1, 2), None),
    ],
)
def test_triples_are_a_box(part: tuple[int, ...], box: object) -> None:
    assert box_of(part, (4, 5)) == box


@pytest.mark.parametrize("part", [(0, 1, 3), (1, 2, 4), (0, 0, 1, 1, 2, 4), (0, 0, 4)])
def test_part_of_a_box_is_its_triples(part: tuple[int, ...]) -> None:
    box = box_of(part, (4, 5))
    assert box is not None
    assert part_of(box, (4, 5)) == part


def test_narrowed_window_keeps_the_strides() -> None:
    window = TensorWindow(8, (4, 5), (5, 1), "float32")
    assert window.span == (8, 88)
    rows = window.narrowed(((1, 3), (0, 5)))
    assert rows == TensorWindow(28, (2, 5), (5, 1), "float32")
    assert rows.span == (28, 68)
    assert rows.is_dense
    columns = window.narrowed(((0, 4), (3, 5)))
    assert columns == TensorWindow(20, (4, 2), (5, 1), "float32")
    assert columns.span == (20, 88)
    assert not columns.is_dense
    assert window.narrowed(whole(window.shape)) == window


def test_turned_window_is_cut_along_its_own_axes() -> None:
    window = TensorWindow(0, (5, 4), (1, 5), "bfloat16")
    assert window.narrowed(((0, 5), (1, 2))) == TensorWindow(10, (5, 1), (1, 5), "bfloat16")


def test_form_is_all_but_the_offset() -> None:
    window = TensorWindow(8, (4,), (1,), "float32")
    assert window.has_form_of(window._replace(offset=0))
    assert not window.has_form_of(window._replace(stride=(2,)))
