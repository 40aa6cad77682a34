"""Models in ``torch.compile(backend="tmmu")`` train as in eager, bit for bit, with all that autograd allows."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.compiled import CASES, Mlp, all_planned, compile_planned, the_report, train
from tests.runtime.harness import same_bits
from tmmu.backend import reports

pytestmark = pytest.mark.usefixtures("fresh_compiler")

F = nn.functional


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("name", CASES)
def test_training_has_the_losses_and_weights_of_eager(name: str, kind: Any) -> None:
    make, shape = CASES[name]
    model = make()
    real = copy.deepcopy(model)
    batches = [torch.randn(shape) for _ in range(5)]
    planned = train(compile_planned(model), model, batches, kind)
    expected = train(real, real, batches, kind)
    assert all(map(same_bits, planned, expected))
    for (label, weight), eager_weight in zip(model.state_dict().items(), real.state_dict().values(), strict=True):
        assert same_bits(weight, eager_weight), label
    assert all_planned()
    assert the_report().trains
    assert the_report().planned == 10


def test_forwards_before_their_backwards_do_not_disturb_each_other() -> None:
    """Step memory for the first four, torch for the rest; each backward finds the residuals of its own forward."""
    model = Mlp()
    real = copy.deepcopy(model)
    run = compile_planned(model)
    inputs = [torch.randn(4, 6) for _ in range(7)]
    for order in ([*range(7)], [*reversed(range(7))], [3, 0, 6, 2, 5, 1, 4]):
        for module, function in ((model, run), (real, real)):
            module.zero_grad()
            losses = [function(x).square().sum() for x in inputs]
            for index in order:
                losses[index].backward()
        for planned, eager in zip(model.parameters(), real.parameters(), strict=True):
            assert planned.grad is not None
            assert eager.grad is not None
            assert same_bits(planned.grad, eager.grad)
    assert len(the_report().stack_bytes) == 4
    assert the_report().plain["more steps are under way than there are frames"] >= 3


def test_forward_without_a_backward_frees_its_memory() -> None:
    model = Mlp()
    run = compile_planned(model)
    for _ in range(9):
        run(torch.randn(4, 6))
    assert len(the_report().stack_bytes) == 1
    assert all_planned()


def test_retained_graph_gives_the_gradient_again() -> None:
    model = Mlp()
    real = copy.deepcopy(model)
    x = torch.randn(4, 6)
    for module, run in ((model, compile_planned(model)), (real, real)):
        loss = run(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        assert module is not None
    for planned, eager in zip(model.parameters(), real.parameters(), strict=True):
        assert planned.grad is not None
        assert eager.grad is not None
        assert same_bits(planned.grad, eager.grad)


@pytest.mark.parametrize("weights", [True, False], ids=["weights too", "but weights"])
def test_saved_tensors_may_be_moved_by_hooks(weights: bool) -> None:
    """Residuals at other addresses are loaded; with weights at other addresses torch runs the graph."""
    model = Mlp()
    real = copy.deepcopy(model)
    x = torch.randn(4, 6)
    run = compile_planned(model)
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t if t.data_ptr() in pointers and not weights else t.clone(), lambda t: t
    ):
        loss = run(x).square().sum()
    run(x + 1)
    loss.backward()
    real(x).square().sum().backward()
    for planned, eager in zip(model.parameters(), real.parameters(), strict=True):
        assert same_bits(planned.grad, eager.grad)  # type: ignore[arg-type]
    assert sum(the_report().plain.values()) == int(weights)


def test_double_backward_is_refused() -> None:
    x = torch.randn(4, requires_grad=True)
    (gradient,) = torch.autograd.grad(compile_planned(lambda x: x.tanh().sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"double backward|does not require grad"):  # torch 2.13, torch 2.11
        gradient.sum().backward()


def test_inputs_get_gradients_where_weights_need_none() -> None:
    model = Mlp().requires_grad_(requires_grad=False)
    run = compile_planned(model)
    for _ in range(2):
        x = torch.randn(4, 6, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        run(x).square().sum().backward()
        model(y).square().sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert same_bits(x.grad, y.grad)
    assert all_planned()


def test_residuals_that_are_only_arguments_find_their_own_step() -> None:
    """No residual lies in the step's memory, so that it is free before the backward."""
    run = compile_planned(lambda x, y: x * y)
    pairs = [[torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)] for _ in range(3)]
    results = [run(*pair) for pair in pairs]
    for result in results:
        result.sum().backward()
    for x, y in pairs:
        assert x.grad is not None
        assert y.grad is not None
        assert x.grad.equal(y.detach())
        assert y.grad.equal(x.detach())
    assert all_planned()


@pytest.mark.parametrize("grad", [False, True])
def test_changed_buffers_get_a_new_version(grad: bool) -> None:
    """Autograd must notice a change of what it saved."""
    model = nn.BatchNorm1d(4)
    run = compile_planned(model)
    before = model.running_mean._version  # type: ignore[union-attr]
    with torch.set_grad_enabled(grad):
        run(torch.randn(3, 4))
        run(torch.randn(3, 4))
    assert model.running_mean._version >= before + 2  # type: ignore[union-attr]


class Composed(nn.Module):
    """An activation made of many cheap operators, and dropout, which must not be drawn twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 64), nn.Linear(64, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        y = y * 0.5 * (1 + torch.tanh(0.8 * (y + 0.04 * y.pow(3))))
        return self.outer(F.dropout(y, 0.15))  # type: ignore[no-any-return]


def test_recomputation_keeps_the_bits_and_takes_less_memory() -> None:
    model = Composed()
    reals = [copy.deepcopy(model) for _ in range(2)]
    batches = [torch.randn(64, 6) for _ in range(3)]
    expected = train(reals[0], reals[0], batches)
    sizes = []
    for module, options in ((model, {}), (reals[1], {"options": {"recompute": True}})):
        torch._dynamo.reset()
        assert all(map(same_bits, train(compile_planned(module, **options), module, batches), expected))
        sizes.append(reports()[-1].stack_bytes[0])
    assert sizes[1] < sizes[0]


def test_autocast_has_the_bits_of_eager() -> None:
    model = Mlp()
    real = copy.deepcopy(model)
    run = compile_planned(model)
    x = torch.randn(4, 6)
    for module, function in ((model, run), (real, real)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = function(x)
        result.float().square().sum().backward()
        assert module is not None
    for planned, eager in zip(model.parameters(), real.parameters(), strict=True):
        assert same_bits(planned.grad, eager.grad)  # type: ignore[arg-type]
    assert all_planned()
