"""Calls run under the kernel switches under which the model made them, whatever they are when the plan runs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import TOKEN, bind_module, capture_program, plan_of, randomize, same_bits, weights_of
from tmmu.backend import reports
from tmmu.kernel_switches import current_switches, under_switches
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind import bind

F = nn.functional
X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
DETERMINISTIC = (("torch.use_deterministic_algorithms", "on"),)


@pytest.fixture(autouse=True)
def switches_as_before() -> Iterator[None]:
    before = current_switches("cpu")
    yield
    torch.use_deterministic_algorithms(False)
    assert current_switches("cpu") == before


class Switching(nn.Module):
    """Memory made empty and filled, kernels that differ from call to call, and an op that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 40)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with under_switches((("torch.backends.mkldnn.enabled", False),), "cpu"):
            y = self.conv(x)
            x.exp()
        with under_switches((("torch.backends.mkldnn.matmul.fp32_precision", "bf16"),), "cpu"):
            z = self.linear(y.mean((2, 3)))
        with under_switches(DETERMINISTIC, "cpu"):
            filled, counts = torch.empty(5), torch.empty(3, dtype=torch.int32)
        return z, self.conv(x), filled, counts, filled.isnan()


def expected_of(module: nn.Module) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return module(X)  # type: ignore[no-any-return]


@pytest.mark.parametrize("replay", [True, False])
def test_calls_under_switches_have_the_bits_of_eager(replay: bool) -> None:
    real = randomize(Switching())
    program, constants = capture_program(Switching, {"x": X})
    weights = constants | weights_of(real)
    executor = bind(program, plan_of(program), token=TOKEN, weights=weights, replay=replay)
    outputs, expected = executor(x=X), expected_of(real)
    assert all(map(same_bits, outputs, expected))
    assert outputs[2].isnan().all()
    assert outputs[3].eq(torch.iinfo(torch.int32).max).all()
    run_sanitized(program, executor, weights, {"x": X}, token=TOKEN)


@pytest.mark.parametrize("outside", [(), DETERMINISTIC])
def test_a_bound_program_keeps_its_switches_whatever_the_caller_sets(outside: Any) -> None:
    class Empty(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x + 1, x.new_empty(2, 3), x * 2

    with under_switches(DETERMINISTIC, "cpu"):
        executor = bind_module(Empty, Empty(), {"x": X})
    with under_switches(outside, "cpu"):
        again = bind_module(Empty, Empty(), {"x": X})
        assert executor(x=X)[1].isnan().all()
        assert bool(again(x=X)[1].isnan().all()) == bool(outside)
        assert executor.launch_count == 1  # nothing is left to Python where all calls agree
        assert current_switches("cpu") == outside


def compile_planned(model: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(model, backend="tmmu")  # type: ignore[call-overload, no-any-return]


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_graph_follows_the_switches_of_each_call() -> None:
    weight = torch.randn(8, 3, 3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.conv2d(x, weight), x.new_empty(3)

    compiled = compile_planned(model)
    for mode in (False, True, False, True):
        for is_enabled in (True, False):
            with under_switches((*(DETERMINISTIC if mode else ()), *mkldnn(is_enabled)), "cpu"):
                (y, empty), expected = compiled(X), model(X)[0]
                assert same_bits(y, expected)
                assert bool(empty.isnan().all()) == mode
                gradients = [torch.autograd.grad(out.sum(), weight)[0] for out in (y, expected)]
                assert same_bits(*gradients)
    assert not any(report.plain for report in reports())


def mkldnn(is_enabled: bool) -> tuple[tuple[str, bool], ...]:
    return () if is_enabled else (("torch.backends.mkldnn.enabled", False),)


@pytest.mark.usefixtures("fresh_compiler")
def test_switches_that_change_before_the_gradient_are_those_of_the_gradient() -> None:
    weight = torch.randn(8, 3, 3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    compiled = compile_planned(lambda x: F.conv2d(x, weight))
    with under_switches(mkldnn(is_enabled=True), "cpu"):
        y, expected = compiled(X), F.conv2d(X, weight)
    with under_switches(mkldnn(is_enabled=False), "cpu"):
        gradients = [torch.autograd.grad(out.sum(), weight)[0] for out in (y, expected)]
    assert same_bits(*gradients)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_function_that_sets_deterministic_algorithms_runs_as_it_is() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(True)
        empty = x.new_empty(3)
        torch.use_deterministic_algorithms(False)
        return empty

    assert compile_planned(model)(X).isnan().all()
