"""Rows of the cuts, tried against torch: parts that are joined are the whole, bit for bit, or near where said."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.runtime.harness import same_bits
from tests.strategies import seeded
from tmmu.ir.call_text import DEFAULT, LIST, TENSOR, Argument, CallText, encode_call, encode_float
from tmmu.ir.graph import OpCalls
from tmmu.ir.parts.boxes import Box, TensorWindow, whole
from tmmu.ir.parts.cut_call import BY_ITEM, IN_PLACE, cut_beside, cut_call, cut_sum
from tmmu.ir.program import ValueRef
from tmmu.ir.rewrite import CLASSES, COLUMNS, LOSS, NUMBERS, ROWS, WEIGHT
from tmmu.judge.rewrite.cuts import CHANGING, CUTS, EXACT, FORM_ALONE, OF_ITEMS, SUMS, TRIED, ExpectedCut, expected_cut
from tmmu.judge.rewrite.picked import picked_step
from tmmu.passes.lowering.read_calls import read_call

T: list[Argument] = [TENSOR, 0]
D: list[Argument] = [DEFAULT]
THREADS = (1, 2)


@pytest.fixture(params=THREADS)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Case:
    """A call; its result may be cut along ``axes``, in parts of at least ``least``."""

    text: CallText
    tensors: tuple[torch.Tensor, ...]
    axes: tuple[int, ...]
    least: int = 1


def call(name: str, *arguments: Argument, results: int = 1) -> CallText:
    return CallText(operator=f"aten.{name}", arguments=arguments, results=(True,) * results)


def evaluate_all(text: CallText, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """All that torch makes of the call, on copies of what it changes."""
    changed = [tensors[0].clone(), *tensors[1:]] if text.operator in CHANGING else tensors
    results = evaluate(text, changed)
    return results if isinstance(results, tuple) else (results,)


def evaluate(text: CallText, tensors: Sequence[torch.Tensor]) -> Any:
    """What torch makes of the call."""
    count = len(tensors)
    operands = tuple(range(count + sum(text.results)))
    table = OpCalls(
        texts=(encode_call(text),),
        call=(0,),
        operands=(operands,),  # type: ignore[arg-type]
        effect=("pure",),
        numbers=((),),
    )
    made = read_call(table, 0)

    def bound(argument: Any) -> Any:
        if isinstance(argument, list):
            return [bound(each) for each in argument]
        return tensors[argument.value] if isinstance(argument, ValueRef) else argument

    return made.operator(*map(bound, made.args), **{name: bound(argument) for name, argument in made.kwargs})


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def targets(rows: int, classes: int) -> torch.Tensor:
    found = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(2))
    found[::5] = -100
    return found


def cases(name: str, dtype: torch.dtype, width: int) -> list[Case]:
    """Calls of one operator on rows of ``width``: whole vectors, or a few elements more."""
    short = name.removeprefix("aten.")
    return CASES[short](short, numbers(5, 70, width, dtype=dtype))


def products_of_elements(name: str, x: torch.Tensor) -> list[Case]:
    width = x.shape[-1]
    others = (numbers(*x.shape, seed=1), numbers(width, seed=1), numbers(5, 1, 1))
    tensors = [(x, other.to(x.dtype)) for other in others]
    return [*(Case(call(name, T, T), each, (0, 1, 2)) for each in tensors), Case(call(name, T, 3), (x,), (0, 1, 2))]


def sums_of_elements(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T, T, D), (x, numbers(x.shape[-1], seed=1, dtype=x.dtype)), (0, 1, 2))]


def copies(name: str, x: torch.Tensor) -> list[Case]:
    text = call(name, T, ["memory_format", "contiguous_format"])
    return [Case(text, (each,), (0, 1, 2)) for each in (x, x.transpose(1, 2))]


def casts(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T, ["dtype", other], D, D, D, D, D), (x,), (0, 1, 2)) for other in ("float32", "bfloat16")]


def softmaxes(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T, axis, False), (x,), (0, 1)) for axis in (-1, 2)]


def softmax_gradients(name: str, x: torch.Tensor) -> list[Case]:
    text = call(name, T, T, 2, ["dtype", str(x.dtype)[6:]])
    return [Case(text, (numbers(*x.shape, seed=1, dtype=x.dtype), torch.log_softmax(x, -1)), (0, 1))]


def class_gradients(name: str, x: torch.Tensor) -> list[Case]:
    log = torch.log_softmax(x[0], -1)
    tensors = (torch.tensor(0.7, dtype=x.dtype), log, targets(*log.shape), torch.tensor(56.0, dtype=x.dtype))
    return [Case(call(name, T, T, T, [], reduction, -100, T), tensors, (0,)) for reduction in (1, 2)]


def slice_gradients(name: str, x: torch.Tensor) -> list[Case]:
    lengths: list[Argument] = [LIST, *x.shape]
    places = ((0, -1), (1, 70), (-60, 65), (3, 9223372036854775807))
    return [
        Case(call(name, T, lengths, 1, low, high, 1), (x[:, low:high].contiguous(),), (0, 1, 2), least=12)
        for low, high in places
    ]


def factors(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return numbers(96, 24, seed=3, dtype=x.dtype), numbers(24, x.shape[-1], seed=1, dtype=x.dtype)


def products(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T, T), factors(x), (0,), least=32)]


def added_products(name: str, x: torch.Tensor) -> list[Case]:
    biases = [numbers(*shape, seed=4, dtype=x.dtype) for shape in ((x.shape[-1],), (96, x.shape[-1]))]
    return [Case(call(name, T, T, T, D, D), (bias, *factors(x)), (0,), least=32) for bias in biases]


def bounded(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T), (x,), (0, 1))]


def bounded_gradients(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T, T), (x, numbers(*x.shape, seed=1, dtype=x.dtype).tanh()), (0, 1))]


def scaled(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T, 3), (x,), (0, 1, 2))]


def approximated(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T, D), (x,), (0, 1))]


def probabilities(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T, axis, False), (x,), (0, 1)) for axis in (-1, 2)]


def looked_up(name: str, x: torch.Tensor) -> list[Case]:
    indices = torch.randint(50, (5, 70), generator=torch.Generator().manual_seed(2))
    return [Case(call(name, T, T, D, D, D), (numbers(50, x.shape[-1], dtype=x.dtype), indices), (0, 1))]


def joined(name: str, x: torch.Tensor) -> list[Case]:
    tensors = (x, numbers(5, 7, x.shape[-1], dtype=x.dtype))
    return [Case(call(name, [LIST, T, T], axis), tensors, (0,)) for axis in (1, -2)]


def images(x: torch.Tensor, channels: int = 8) -> list[torch.Tensor]:
    """Six images, in both layouts."""
    found = numbers(6, channels, 9, x.shape[-1] // 8, dtype=x.dtype)
    return [found, found.contiguous(memory_format=torch.channels_last)]


def pooled(name: str, x: torch.Tensor) -> list[Case]:
    two: list[Argument] = [LIST, 2, 2]
    rest, results = ((D, D, D), 2) if "indices" in name else ((D, D, D, D), 1)
    return [Case(call(name, T, two, two, *rest, results=results), (each,), (0,)) for each in images(x)]


def resized(name: str, x: torch.Tensor) -> list[Case]:
    rest = (D, D) if "upsample" in name else ()
    return [Case(call(name, T, [LIST, 3, 4], *rest), (each,), (0,)) for each in images(x)]


def convolved(name: str, x: torch.Tensor) -> list[Case]:
    one: list[Argument] = [LIST, 1, 1]
    found = []
    for each in images(x):
        for groups in (1, 8):
            weight, bias = numbers(16, 8 // groups, 3, 3, seed=1, dtype=x.dtype), numbers(16, seed=2, dtype=x.dtype)
            text = call(name, T, T, T, one, one, one, False, [LIST, 0, 0], groups)
            found.append(Case(text, (each, weight, bias), (0,)))
    return found


def group_norms(name: str, x: torch.Tensor) -> list[Case]:
    affine = numbers(8, seed=1, dtype=x.dtype), numbers(8, seed=2, dtype=x.dtype)
    each = images(x)[0]
    numbers_of = (6, 8, each[0, 0].numel(), 4, encode_float(1e-5))
    return [
        Case(call(name, T, T, T, *numbers_of, results=3), (each, *affine), (0,)),
        Case(call(name, T, [], [], *numbers_of, results=3), (each,), (0,)),
    ]


def layer_norms(name: str, x: torch.Tensor) -> list[Case]:
    width, eps = x.shape[-1], encode_float(1e-5)
    affine = numbers(width, seed=1, dtype=x.dtype), numbers(width, seed=2, dtype=x.dtype)
    return [
        Case(call(name, T, [LIST, width], T, T, eps, results=3), (x, *affine), (0, 1)),
        Case(call(name, T, [LIST, 70, width], [], [], eps, results=3), (x,), (0,)),
    ]


def batch_norms(name: str, x: torch.Tensor) -> list[Case]:
    vectors = [numbers(8, seed=seed).abs() for seed in range(4)]
    settings: tuple[Argument, ...] = (encode_float(0.1), encode_float(1e-5))
    trains: tuple[Argument, ...] = () if "legit" in name else (False,)
    text = call(name, T, T, T, T, T, *trains, *settings, results=3)
    return [Case(text, (each, *vectors), (0,)) for each in images(x)]


def means(name: str, x: torch.Tensor) -> list[Case]:
    return [Case(call(name, T, [LIST, -1, 2], keep, D), (each,), (0,)) for keep in (True, False) for each in images(x)]


CASES: dict[str, Callable[[str, torch.Tensor], list[Case]]] = {
    "mul.Tensor": products_of_elements,
    "div.Tensor": products_of_elements,
    "add.Tensor": sums_of_elements,
    "sub.Tensor": sums_of_elements,
    "clone.default": copies,
    "_to_copy.default": casts,
    "_log_softmax.default": softmaxes,
    "_log_softmax_backward_data.default": softmax_gradients,
    "nll_loss_backward.default": class_gradients,
    "slice_backward.default": slice_gradients,
    "mm.default": products,
    "tanh.default": bounded,
    "tanh_backward.default": bounded_gradients,
    "addmm.default": added_products,
    "relu_.default": bounded,
    "add_.Tensor": sums_of_elements,
    "mul.Scalar": scaled,
    "div.Scalar": scaled,
    "relu.default": bounded,
    "silu.default": bounded,
    "sigmoid.default": bounded,
    "gelu.default": approximated,
    "_softmax.default": probabilities,
    "embedding.default": looked_up,
    "cat.default": joined,
    "max_pool2d_with_indices.default": pooled,
    "avg_pool2d.default": pooled,
    "upsample_nearest2d.default": resized,
    "_adaptive_avg_pool2d.default": resized,
    "convolution.default": convolved,
    "native_group_norm.default": group_norms,
    "native_layer_norm.default": layer_norms,
    "native_batch_norm.default": batch_norms,
    "_native_batch_norm_legit_no_training.default": batch_norms,
    "mean.dim": means,
}


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
    "a mean over everything": (call("mean.dim", T, [LIST], True, D), [(4, 4)], ((0, 1), (0, 1))),
    "items that are joined": (call("cat.default", [LIST, T, T], 0), [(4, 4), (4, 4)], ((0, 2), (0, 4))),
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


@pytest.mark.parametrize("reduction", [1, 2])
@pytest.mark.parametrize("ignored", [-100, -1])
@pytest.mark.parametrize(("rows", "classes"), [(3, 7), (70, 131), (4099, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.usefixtures("threads")
def test_loss_by_class_is_that_of_one_column(
    dtype: torch.dtype, rows: int, classes: int, ignored: int, reduction: int
) -> None:
    log = torch.log_softmax(numbers(rows, classes, dtype=dtype), -1)
    wanted = targets(rows, classes)
    wanted[wanted < 0] = ignored
    text = CallText(
        operator="aten.nll_loss_forward.default", arguments=(T, T, [], reduction, ignored), results=(True, True)
    )
    loss, weight = evaluate(text, (log, wanted))
    made: dict[int, torch.Tensor] = {ROWS: torch.empty(rows, 1, dtype=dtype)}
    windows = [TensorWindow(0, tuple(tensor.shape), tensor.stride(), str(tensor.dtype)[6:]) for tensor in (log, wanted)]
    cut = rows // 2
    for part in ((CLASSES,), (COLUMNS,), (NUMBERS,), (WEIGHT,), (ROWS, 0, cut), (ROWS, cut, rows), (LOSS,)):
        step = picked_step(text, windows[0], windows[1], part)
        assert not isinstance(step, str)
        taken = [
            (made[maker] if maker >= 0 else (log, wanted)[-1 - maker])
            .view(-1)
            .as_strided(window.shape, window.stride, window.offset // (made | {-1: log, -2: wanted})[maker].itemsize)
            for maker, window in step.takes
        ]
        result = evaluate(step.text, taken)
        if part[0] == ROWS:
            made[ROWS][part[1] : part[2]] = result
        elif part[0] in (WEIGHT, LOSS):
            assert same_bits(result[part[0] == WEIGHT], weight if part[0] == WEIGHT else loss)
        else:
            made[part[0]] = result


def test_losses_that_are_of_no_column_are_refused() -> None:
    window = TensorWindow(0, (4, 3), (3, 1), "float32")
    columns = TensorWindow(0, (4,), (1,), "int64")
    good: tuple[Argument, ...] = (T, T, [], 1, -100)
    for arguments in ((T, T, T, 1, -100), (T, T, [], 0, -100), (T, T, [], 1, 0), (T, T, [], 1, 2)):
        text = CallText(operator="aten.nll_loss_forward.default", arguments=arguments, results=(True, True))
        assert isinstance(picked_step(text, window, columns, (CLASSES,)), str)
    text = CallText(operator="aten.nll_loss_forward.default", arguments=good, results=(True, True))
    assert isinstance(picked_step(text, window, columns._replace(dtype="uint8"), (CLASSES,)), str)
    for part in ((), (6,), (ROWS,), (ROWS, 0, 5), (ROWS, 2, 2), (LOSS, 0, 1)):
        assert isinstance(picked_step(text, window, columns, part), str)


@pytest.mark.parametrize("name", sorted(FORM_ALONE))
def test_operators_that_ask_for_form_alone(name: str) -> None:
    first, second = numbers(3, 4), numbers(3, 4, seed=1)
    value = (b"?\xf0\x00\x00\x00\x00\x00\x00",) if "full" in name else ()
    text = CallText(operator=name, arguments=(T, *value, D, D, D, D, D), results=(True,))
    assert same_bits(evaluate(text, [first]), evaluate(text, [second]))


def test_tables_are_apart() -> None:
    assert not set(EXACT) & set(TRIED)
    assert whole((2, 3)) == ((0, 2), (0, 3))
