"""Rows of the cuts, tried against torch: parts that are joined are the whole, bit for bit, or near where said."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from tests.runtime.harness import same_bits
from tests.strategies import seeded
from tests.unit.judge.rewrite.cut_cases import Case, D, T, call, cases, evaluate, evaluate_all, numbers
from tmmu.ir.call_text import LIST, CallText
from tmmu.ir.parts.boxes import Box, whole
from tmmu.ir.parts.cut_call import BY_ITEM, IN_PLACE, cut_beside, cut_call, cut_sum
from tmmu.judge.rewrite.cuts import CHANGING, CUTS, EXACT, FORM_ALONE, OF_ITEMS, SUMS, TRIED, ExpectedCut, expected_cut


def parts(shape: Sequence[int], axis: int, least: int, seed: int) -> list[Box]:
    """Boxes that cover a shape, cut along one axis."""
    pick, bounds = seeded(seed), [0]
    while bounds[-1] < shape[axis]:
        step = least + pick(max(1, shape[axis] // 2 - least + 1))
        bounds.append(shape[axis] if shape[axis] - bounds[-1] - step < least else bounds[-1] + step)
    return [tuple(each if index == axis else (0, n) for index, n in enumerate(shape)) for each in pairwise(bounds)]


def narrowed(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(*each) for each in box)]


def in_parts(case: Case, results: Sequence[torch.Tensor], axis: int, seed: int) -> list[torch.Tensor]:
    """The results, of parts that lie one after the other as rows of a buffer do."""
    joined = [torch.empty_like(result) for result in results]
    shapes = [tuple(tensor.shape) for tensor in case.tensors]
    for box in parts(results[0].shape, axis, case.least, seed):
        cut = expected_cut(case.text, shapes, box)
        assert isinstance(cut, ExpectedCut), cut
        taken = [narrowed(tensor, each) for tensor, each in zip(case.tensors, cut.boxes, strict=True)]
        boxes = [box, *(cut.others(tuple(other.shape)) for other in results[1:] if cut.others is not None)]
        for whole_result, each, part in zip(joined, boxes, evaluate_all(cut.text, taken), strict=True):
            narrowed(whole_result, each).copy_(part)
    return joined


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 131])
@pytest.mark.parametrize("name", CUTS)
@pytest.mark.usefixtures("threads")
def test_parts_are_the_whole(name: str, width: int, dtype: torch.dtype) -> None:
    for case in cases(name, dtype, width):
        results = evaluate_all(case.text, case.tensors)
        for seed, axis in enumerate(case.axes):
            same = has_bits_of_its_size if name in OF_THEIR_SIZE else same_bits
            assert all(map(same, in_parts(case, results, axis, seed), results)), (case.text, axis)


OF_THEIR_SIZE = {f"aten.{name}.default" for name in ("gelu", "silu", "sigmoid", "convolution")}
"""Operators of ``TRIED`` whose kernels on a CPU take other ways for some of these sizes."""


def has_bits_of_its_size(part: torch.Tensor, whole_result: torch.Tensor) -> bool:
    return bool((part - whole_result).abs().max() <= 8 * torch.finfo(part.dtype).eps * whole_result.abs().max())


@pytest.mark.parametrize("name", CUTS)
def test_what_rebuilds_cuts_as_the_judge_does(name: str) -> None:
    for case in cases(name, torch.float32, 40):
        results, shapes = evaluate_all(case.text, case.tensors), [tuple(tensor.shape) for tensor in case.tensors]
        others = [tuple(other.shape) for other in results[1:]]
        for axis in case.axes:
            for box in parts(results[0].shape, axis, case.least, axis):
                cut, expected = cut_call(case.text, shapes, box), expected_cut(case.text, shapes, box)
                assert cut is not None
                assert isinstance(expected, ExpectedCut)
                assert (cut.text, cut.boxes) == (expected.text, expected.boxes)
                beside = [expected.others(other) for other in others if expected.others is not None]
                assert list(cut_beside(case.text, others, box)) == beside
                assert len(beside) == len(others)


def test_operators_of_items_are_the_same_for_what_rebuilds() -> None:
    assert OF_ITEMS == BY_ITEM
    assert CHANGING == IN_PLACE


REFUSED = {
    "no row": (call("sort.default", T), [(4, 4)], ((0, 2), (0, 4))),
    "a norm of one batch": (
        call("native_batch_norm.default", T, T, T, T, T, True, 0, 0, results=3),
        [(4, 3, 2, 2), *[(3,)] * 4],
        ((0, 2), (0, 3), (0, 2), (0, 2)),
    ),
    "a row that is normed": (
        call("native_layer_norm.default", T, [LIST, 4], [], [], 0, results=3),
        [(4, 4)],
        ((0, 4), (0, 2)),
    ),
    "a norm of other items": (
        call("native_group_norm.default", T, [], [], 3, 2, 4, 1, 0, results=3),
        [(4, 2, 2, 2)],
        ((0, 2), (0, 2), (0, 2), (0, 2)),
    ),
    "a mean over items": (call("mean.dim", T, [LIST, 0], True, D), [(4, 4)], ((0, 1), (0, 4))),
    "a mean over items and more": (call("mean.dim", T, [LIST, 1, 0], True, D), [(4, 4)], ((0, 1), (0, 1))),
    "a mean over everything": (call("mean.dim", T, [LIST], True, D), [(4, 4)], ((0, 1), (0, 1))),
    "items that are joined": (call("cat.default", [LIST, T, T], 0), [(4, 4), (4, 4)], ((0, 2), (0, 4))),
    "what is joined to nothing": (call("cat.default", [LIST, T, T], 1), [(4, 4), (0,)], ((0, 2), (0, 4))),
    "items of another number": (call("cat.default", [LIST, T, T], 1), [(4, 4), (2, 4)], ((0, 2), (0, 8))),
    "one image": (
        call("max_pool2d_with_indices.default", T, [LIST, 2, 2], D, D, D, D, results=2),
        [(4, 4, 4)],
        ((0, 2), (0, 2), (0, 2)),
    ),
    "within rows of a table": (call("embedding.default", T, T, D, D, D), [(9, 4), (3,)], ((0, 3), (0, 2))),
    "the axis of a softmax": (call("_log_softmax.default", T, 1, False), [(4, 4)], ((0, 4), (0, 2))),
    "a softmax along another axis": (call("_log_softmax.default", T, 0, False), [(4, 4)], ((0, 4), (0, 2))),
    "no such axis": (call("_log_softmax.default", T, 2, False), [(4, 4)], ((0, 2), (0, 4))),
    "a factor of a sum": (call("add.Tensor", T, T, 2), [(4, 4), (4, 4)], ((0, 2), (0, 4))),
    "classes": (call("nll_loss_backward.default", T, T, T, [], 1, -100, T), [(), (4, 4), (4,), ()], ((0, 4), (0, 2))),
    "a loss for each row": (
        call("nll_loss_backward.default", T, T, T, [], 0, -100, T),
        [(4,), (4, 4), (4,), ()],
        ((0, 2), (0, 4)),
    ),
    "weights of classes": (
        call("nll_loss_backward.default", T, T, T, T, 1, -100, T),
        [(), (4, 4), (4,), (4,), ()],
        ((0, 2), (0, 4)),
    ),
    "zeros alone": (call("slice_backward.default", T, [LIST, 4, 4], 0, 0, -1, 1), [(3, 4)], ((3, 4), (0, 4))),
    "a step of a slice": (call("slice_backward.default", T, [LIST, 4, 4], 0, 0, 4, 2), [(2, 4)], ((0, 2), (0, 4))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_cuts_are_refused(name: str) -> None:
    text, shapes, box = REFUSED[name]
    assert isinstance(expected_cut(text, shapes, box), str)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_parts_are_near(dtype: torch.dtype) -> None:
    first, second = numbers(31, 96, dtype=dtype), numbers(96, 17, seed=1, dtype=dtype)
    for operator, rule in SUMS.items():
        text = call(operator.removeprefix("aten."), T, T)
        total = torch.empty(0)
        for low, high in ((0, 40), (40, 41), (41, 96)):
            cut = rule(text, [(31, 96), (96, 17)], low, high)
            assert (cut.text, cut.boxes) == (
                (again := cut_sum(text, [(31, 96), (96, 17)], low, high)).text,
                again.boxes,
            )
            pieces = [narrowed(tensor, box) for tensor, box in zip((first, second), cut.boxes[-2:], strict=True)]
            total = evaluate(cut.text, pieces if low == 0 else [total, *pieces])
        result = evaluate(text, (first, second))
        assert (total - result).abs().max() <= 4 * torch.finfo(dtype).eps * result.abs().max()


@pytest.mark.parametrize("name", sorted(FORM_ALONE))
def test_operators_that_ask_for_form_alone(name: str) -> None:
    first, second = numbers(3, 4), numbers(3, 4, seed=1)
    value = (b"?\xf0\x00\x00\x00\x00\x00\x00",) if "full" in name else ()
    text = CallText(operator=name, arguments=(T, *value, D, D, D, D, D), results=(True,))
    assert same_bits(evaluate(text, [first]), evaluate(text, [second]))


def test_tables_are_apart() -> None:
    assert not set(EXACT) & set(TRIED)
    assert whole((2, 3)) == ((0, 2), (0, 3))
