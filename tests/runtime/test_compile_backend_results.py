"""Compiled functions as their caller sees them: results that alias, inputs of any strides, inputs that are changed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.compiled import all_planned, compile_planned
from tests.runtime.harness import same_bits

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def two_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.exp()
    return y[0], y[1:], y


def one_twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y


def detached_result(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    return y.detach(), y * 2


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "its input": lambda x: (x, x + 1),
    "a view of its input": lambda x: (x[1:].t(), x.view(-1)),
    "two views of one tensor": two_views,
    "the same twice": one_twice,
    "a number and a name": lambda x: (x.sum(), 3, "name", None),
    "an expanded tensor": lambda x: x.exp().sum(1, keepdim=True).expand(4, 6),
    "an empty tensor": lambda x: (x[:0].exp(), x + 1),
    "a constant": lambda x: (torch.tensor([1.0, 2.0, 3.0]), x + torch.arange(6)),
    "a transposed tensor": lambda x: x.exp().t() + 1,
    "a dtype": lambda x: (x.to(torch.bfloat16), x > 0, x.long()),
    "a detached tensor": detached_result,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_results_alias_what_they_alias_in_eager(name: str, grad: bool) -> None:
    function = FUNCTIONS[name]
    run = compile_planned(function)
    for _ in range(2):
        x = torch.randn(4, 6, requires_grad=grad)
        planned, expected = (outcome(run_function, x) for run_function in (run, function))
        assert planned == expected


def outcome(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[Any]:
    """Everything about the results that a caller can see."""
    x = x.detach().clone().requires_grad_(x.requires_grad)
    results = function(x)
    results = results if isinstance(results, tuple) else (results,)
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    visible: list[Any] = [result for result in results if not isinstance(result, torch.Tensor)]
    candidates = [x, *tensors]
    for result in tensors:
        first_alias = next(
            index
            for index, candidate in enumerate(candidates)
            if candidate.untyped_storage()._cdata == result.untyped_storage()._cdata
        )
        visible.append(
            (result.shape, result.stride(), result.dtype, result.requires_grad, result.tolist(), first_alias)
        )
    trained = [result.sum() for result in tensors if result.requires_grad]
    if trained:
        torch.stack([result.float() for result in trained]).sum().backward()
        assert x.grad is not None
        visible.append(x.grad.tolist())
    return visible


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda x: x.add_(1) * 2,
    "a part": lambda x: (x[0].mul_(3), x.sum())[1],
    "twice": lambda x: (x.mul_(2), x.sin_(), x * x)[2],
    "and returned": lambda x: x.exp_(),
}


def overlapping_views(*, first: int) -> tuple[torch.Tensor, ...]:
    """A tensor at offset ``first`` of its storage that is no view to autograd, and two views of it that overlap."""
    base = torch.randn(12)[first:].detach()
    return base, base[:3], base[1:5]


@pytest.mark.parametrize("first", [0, 4])
def test_inputs_that_share_memory_see_each_others_changes(first: int) -> None:
    """Autograd puts windows together by their offsets in storages, which are not where ours begin."""
    function = lambda x, y: (x.add_(1), y * 2)[1]  # noqa: E731
    run = compile_planned(function)
    for _ in range(2):
        planned, eager = overlapping_views(first=first), overlapping_views(first=first)
        eager[0].copy_(planned[0])
        assert same_bits(run(*planned[1:]), function(*eager[1:]))
        assert same_bits(planned[0], eager[0])
    assert all_planned()


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "expanded": lambda: torch.randn(1, 4).expand(3, 4),
    "overlapping": lambda: torch.randn(8).as_strided((3, 4), (1, 1)),
    "transposed": lambda: torch.randn(4, 3).t(),
    "with gaps": lambda: torch.randn(8, 8)[::2, 1::3],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a number": lambda: torch.tensor(2.5),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_inputs_may_have_any_strides(name: str) -> None:
    run = compile_planned(lambda x: x.sin() * 2 + x)
    for _ in range(2):
        x = LAYOUTS[name]()
        planned, expected = run(x), x.sin() * 2 + x
        assert same_bits(planned, expected)
        assert planned.stride() == expected.stride()
    assert all_planned()


def test_dropout_of_a_transposed_tensor_draws_as_eager_does() -> None:
    function = lambda x: nn.functional.dropout(x.transpose(0, 1), 0.15) * 2  # noqa: E731
    outcomes = []
    for run in (compile_planned(function), function):
        torch.manual_seed(3)
        x = torch.arange(2400.0).view(3, 40, 20).requires_grad_()
        result = run(x)
        result.sum().backward()
        assert x.grad is not None
        outcomes.append((result.tolist(), result.stride(), x.grad.tolist()))
    assert outcomes[0] == outcomes[1]
    assert all_planned()


@pytest.mark.parametrize("name", CHANGES)
def test_changed_inputs_are_changed_for_the_caller(name: str) -> None:
    function = CHANGES[name]
    run = compile_planned(function)
    for _ in range(2):
        x = torch.randn(4, 6)
        y = x.clone()
        assert same_bits(run(x), function(y))
        assert same_bits(x, y)
    assert all_planned()
