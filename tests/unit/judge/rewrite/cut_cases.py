"""Calls of the operators that may be cut, as texts and tensors, and what torch makes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tmmu.ir.call_text import DEFAULT, LIST, TENSOR, Argument, CallText, encode_call, encode_float
from tmmu.ir.graph import OpCalls
from tmmu.ir.program import ValueRef
from tmmu.judge.rewrite.cuts import CHANGING
from tmmu.passes.lowering.read_calls import read_call

T: list[Argument] = [TENSOR, 0]
D: list[Argument] = [DEFAULT]


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
