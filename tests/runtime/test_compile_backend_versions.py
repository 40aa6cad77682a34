"""A result that the backward needs, changed by the caller: autograd sees it as in eager, and nothing is kept alive."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.runtime.harness import same_bits
from tmmu.backend import reports

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Function = Callable[[torch.Tensor], Any]
STALE = "modified by an inplace operation"


def with_parts(y: torch.Tensor) -> torch.Tensor:
    return y + (y[:, 1:] * y[:, :-1]).sum() * 0


def with_product(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return y, y.t() @ y[:, 1:]


def with_sine(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return y, y.sin()


FUNCTIONS: dict[str, Function] = {
    "saved": lambda x: (x * 2).tanh(),
    "large": lambda x: (x.repeat(200, 200) * 2).tanh(),
    "a part": lambda x: (x * 2).tanh()[1:],
    "turned": lambda x: (x * 2).sigmoid().t(),
    "as other numbers": lambda x: torch.view_as_real((x * torch.complex(x, x)).tanh()),
    "saved as a part": lambda x: with_parts((x * 2).exp()),
    "saved turned and in parts": lambda x: with_product((x * 2).sin()),
    "a part that is saved": lambda x: with_sine((x * 2)[1:]),
    "not needed": lambda x: (x * 2).tanh() + 1,
}


VIEWS = ("a part", "turned", "as other numbers", "a part that is saved")


def no_grad(y: torch.Tensor) -> None:
    with torch.no_grad():
        y.mul_(3)


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda y: y.mul_(3),
    "without gradients": no_grad,
    "a view of it": lambda y: y.detach()[1:].zero_(),
    "behind autograd's back": lambda y: y.data.mul_(3),
    "not at all": lambda y: None,
}


def gradients(backend: str | None, function: Function) -> dict[str, torch.Tensor | None]:
    """By change: the gradient after the result was changed so, or nothing where autograd refuses."""
    torch._dynamo.reset()
    run = function if backend is None else torch.compile(function, backend=backend)
    return {change: gradient(run, change) for change in CHANGES}


def gradient(run: Function, change: str) -> torch.Tensor | None:
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    returned = run(x)
    results = returned if isinstance(returned, tuple) else (returned,)
    CHANGES[change](results[0])
    try:
        torch.cat([result.flatten() for result in results]).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        assert STALE in str(error)  # noqa: PT017 - one of two outcomes
        return None
    return x.grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_changed_results_are_noticed_as_by_aot_eager(name: str) -> None:
    """Where the result is a view of what is saved, AOTAutograd hands out a tensor of another version."""
    found = gradients("tmmu", FUNCTIONS[name])
    for backend in ("aot_eager", None) if name not in VIEWS else ("aot_eager",):
        for change, expected in gradients(backend, FUNCTIONS[name]).items():
            planned = found[change]
            assert (planned is None) == (expected is None), (backend, change)
            assert planned is None or expected is None or same_bits(planned, expected), (backend, change)
    assert all(report.planned > 0 and not report.plain for report in reports())


INPUTS: dict[str, Callable[[torch.Tensor], object]] = CHANGES | {"a view of it": lambda x: x.detach().zero_()}


@pytest.mark.parametrize("change", INPUTS)
def test_changed_inputs_are_noticed_as_by_eager(change: str) -> None:
    def gradient_of(backend: str | None) -> torch.Tensor | None:
        torch._dynamo.reset()
        layer = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
        for weight in layer.parameters():
            torch.nn.init.constant_(weight, 0.1)
        run = layer if backend is None else torch.compile(layer, backend=backend)
        x = torch.linspace(-1, 1, 12).view(3, 4)
        result = run(x)
        INPUTS[change](x)
        try:
            result.sum().backward()
        except RuntimeError as error:
            assert STALE in str(error)  # noqa: PT017 - one of two outcomes
            return None
        return layer[0].weight.grad  # type: ignore[return-value]

    planned, expected = gradient_of("tmmu"), gradient_of(None)
    assert (planned is None) == (expected is None)
    assert planned is None or expected is None or same_bits(planned, expected)
    assert all(report.planned > 0 and not report.plain for report in reports())


def test_retained_graph_still_reads_the_result() -> None:
    x = torch.linspace(-1, 1, 12).requires_grad_()
    result = torch.compile(FUNCTIONS["saved"], backend="tmmu")(x)
    result.sum().backward(retain_graph=True)
    once = x.grad.clone()  # type: ignore[union-attr]
    result.sum().backward(retain_graph=True)
    assert x.grad.equal(once * 2)  # type: ignore[union-attr]
    no_grad(result)
    with pytest.raises(RuntimeError, match=STALE):
        result.sum().backward()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dropped_results_are_freed(name: str) -> None:
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    returned = torch.compile(FUNCTIONS[name], backend="tmmu")(x)
    result = returned[0] if isinstance(returned, tuple) else returned
    del returned
    gc.collect()
    gc.disable()
    try:
        alive = StorageWeakRef(result.untyped_storage())  # type: ignore[no-untyped-call]
        del result
        assert alive.expired()  # type: ignore[no-untyped-call]
    finally:
        gc.enable()


def test_forwards_keep_their_results_apart() -> None:
    run = torch.compile(FUNCTIONS["saved"], backend="tmmu")
    inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(6)]
    results = [run(x) for x in inputs]
    for x, result in reversed(list(zip(inputs, results, strict=True))):
        result.sum().backward()
        eager_x = x.detach().clone().requires_grad_()
        FUNCTIONS["saved"](eager_x).sum().backward()
        assert x.grad is not None
        assert eager_x.grad is not None
        assert same_bits(x.grad, eager_x.grad)
