"""Storages that the caller frees, cuts, fills again or swaps around calls: eager's result, or an error with a code."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.compiled import compile_planned
from tests.runtime.harness import TOKEN, capture_program, plan_of, same_bits, weights_of
from tmmu.backend import reports
from tmmu.errors import InvalidConfig
from tmmu.runtime.execute.bind import bind

pytestmark = pytest.mark.usefixtures("fresh_compiler")

FREED = r"float32\[8,8\], and its storage has \d+ bytes: it was freed or cut"


@pytest.fixture
def model() -> nn.Linear:
    return nn.Linear(8, 8)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


@pytest.mark.parametrize("size", [0, 16, 255])
@pytest.mark.parametrize("calls_before", [0, 1])
def test_a_weight_without_its_bytes_is_refused_and_left_alone(model: nn.Linear, size: int, calls_before: int) -> None:
    compiled, x = compile_planned(model), torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(calls_before):
            compiled(x)
        storage_of(model.weight).resize_(size)
        with pytest.raises(InvalidConfig, match=FREED):
            compiled(x)
    assert storage_of(model.weight).nbytes() == size


@pytest.mark.parametrize("size", [0, 16, 255])
@pytest.mark.parametrize("view", [lambda a: a, lambda a: a.t(), lambda a: a[4:]], ids=["whole", "transposed", "end"])
def test_an_input_without_its_bytes_is_refused_and_left_alone(
    view: Callable[[torch.Tensor], torch.Tensor], size: int
) -> None:
    compiled, whole = compile_planned(lambda a: a * 2), torch.randn(8, 8)
    argument = view(whole)
    compiled(argument)
    storage_of(whole).resize_(size)
    with pytest.raises(InvalidConfig, match="its storage has"):
        compiled(argument)
    assert storage_of(whole).nbytes() == size


def test_weights_that_are_freed_and_filled_again_around_each_half_have_the_gradients_of_eager(
    model: nn.Linear,
) -> None:
    """As a sharded model does: gathered for the forward, freed, and gathered again for the backward."""
    compiled, x, values = compile_planned(model), torch.randn(4, 8, requires_grad=True), model.weight.detach().clone()

    def gather() -> None:
        storage_of(model.weight).resize_(256)
        model.weight.data.copy_(values)

    for _ in range(3):
        gather()
        result = compiled(x)
        storage_of(model.weight).resize_(0)
        other = [torch.full((8, 8), 7.0) for _ in range(8)]  # what takes the freed bytes meanwhile
        gather()
        gradients = torch.autograd.grad(result.square().sum(), [x, model.weight])
        expected = torch.autograd.grad(model(x).square().sum(), [x, model.weight])
        assert all(map(same_bits, gradients, expected))
        assert all(tensor.eq(7).all() for tensor in other)
    assert sum(report.planned for report in reports()) >= 3


def test_a_weight_that_is_free_when_the_backward_runs_is_refused(model: nn.Linear) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    result = compile_planned(model)(x)
    storage_of(model.weight).resize_(0)
    with pytest.raises(InvalidConfig, match=FREED):
        result.sum().backward()


def test_a_saved_result_that_is_free_when_the_backward_runs_is_refused() -> None:
    x = torch.randn(8, 8, requires_grad=True)
    result = compile_planned(lambda x: (x * 2).tanh())(x)
    storage_of(result).resize_(0)
    with pytest.raises(InvalidConfig, match=FREED):
        result.backward(torch.ones(8, 8))


def test_weights_that_are_swapped_between_calls_are_used(model: nn.Linear) -> None:
    compiled, x = compile_planned(model), torch.randn(4, 8)
    with torch.no_grad():
        compiled(x)
        model.weight.data = torch.randn(8, 8)
        assert same_bits(compiled(x), model(x))
        model.weight.set_(torch.randn(8, 8))  # type: ignore[call-overload]
        assert same_bits(compiled(x), model(x))


def frees_its_input(x: torch.Tensor) -> torch.Tensor:
    result = x * 2
    x.untyped_storage().resize_(0)
    return result


def fills_its_input(x: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(256)
    x.fill_(1.5)
    return x * 2


def frees_what_it_made(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    result = y * 2
    y.untyped_storage().resize_(0)
    return result


def swaps_its_input(x: torch.Tensor) -> torch.Tensor:
    x.data = x + 1
    return x * 2


@pytest.mark.parametrize("body", [frees_its_input, fills_its_input, frees_what_it_made, swaps_its_input])
def test_a_graph_that_changes_storages_itself_leaves_what_eager_leaves(body: Any) -> None:
    compiled = compile_planned(body)
    for _ in range(2):
        ours, theirs = torch.full((8, 8), 2.0), torch.full((8, 8), 2.0)
        if body is fills_its_input:
            storage_of(ours).resize_(0)
            storage_of(theirs).resize_(0)
        assert same_bits(compiled(ours), body(theirs))
        assert storage_of(ours).nbytes() == storage_of(theirs).nbytes()
        assert body is frees_its_input or same_bits(ours, theirs)


def test_an_executor_refuses_inputs_and_weights_without_their_bytes(model: nn.Linear) -> None:
    x = torch.randn(8, 8)
    program, constants = capture_program(lambda: nn.Linear(8, 8), {"input": x})
    weights = constants | weights_of(model)
    executor = bind(program, plan_of(program), token=TOKEN, weights=weights, adopt=True)
    executor(input=x)
    storage_of(model.weight).resize_(0)
    with pytest.raises(InvalidConfig, match="weight was bound with a storage of 256 bytes"):
        executor(input=x)
    storage_of(x).resize_(0)
    with pytest.raises(InvalidConfig, match="input input is " + FREED):
        executor(input=x)
    with pytest.raises(InvalidConfig, match=r"weight is float32.*its storage has 0 bytes"):
        bind(program, plan_of(program), token=TOKEN, weights=weights)
