"""Fitted training steps have eager's bits over two steps, are clean, and take the memory that their plan says."""

from functools import cache

import pytest
import torch

from tests.kernels import plain_kernels
from tests.runtime.fitted_models import ARCHITECTURES, real_module, training_step
from tests.runtime.harness import TOKEN, Tensors, same_bits, weights_of
from tests.runtime.test_unplanned_bytes import declared_bytes, profiled_allocations
from tmmu.ir.plan import segment_bytes
from tmmu.ir.program import Program
from tmmu.passes.lowering.read_calls import read_program
from tmmu.passes.lowering.rewrite_program import rewrite_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit.curve import step_curve
from tmmu.planner.fit.fit_step import FittedStep, PlanSettings, fit_point, judge_step
from tmmu.planner.fit.forms import ALL_NAMES, LEVER_NAMES, OFFLOAD
from tmmu.planner.fit.offload.offload_step import offload_step
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor

ARENAS = default_arenas()
SETTINGS = PlanSettings(preset="train_full", token=TOKEN)
LEVERS = {**{name: (name,) for name in ALL_NAMES}, "all": LEVER_NAMES}
EVERY = [(name, levers) for name in ARCHITECTURES for levers in LEVERS]
SAMPLE = {("convolutions", "all"), ("convolutions", "offload")}
SLOW = {("transformer", "all"), ("lora", "all")}
CASES = [
    pytest.param(*case, marks=() if case in SAMPLE else pytest.mark.slow if case in SLOW else pytest.mark.long)
    for case in EVERY
]
OPTIMIZERS = {
    "adamw:fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "sgd": torch.optim.SGD,
}


@cache
def fitted_step(name: str, levers: str) -> FittedStep:
    """The least that these levers make of the step."""
    curve = step_curve(training_step(name), ARENAS, LEVERS[levers])
    if levers == OFFLOAD:
        limits = (curve.points[-1].peak * share // 20 for share in range(8, 20))
        return next(fitted for limit in limits if (fitted := offload_step(curve, limit, SETTINGS)) is not None)
    return judge_step(curve, fit_point(curve, len(curve.points) - 1, SETTINGS), SETTINGS)


def rewritten(name: str, fitted: FittedStep) -> Program:
    """What runs, and what it was made of."""
    return rewrite_program(read_program(training_step(name)), fitted.rewrite)


def bound(name: str, fitted: FittedStep, **options: Tensors) -> Executor:
    """On fresh weights."""
    weights = weights_of(real_module(name))
    program = rewritten(name, fitted)
    return bind(program, fitted.plan, token=TOKEN, weights=weights, device="cpu", **options)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Of all elements in their order."""
    return tensor.contiguous().view(-1).view(torch.uint8)


@cache
def eager_results(name: str) -> tuple[list[torch.Tensor], list[Tensors]]:
    """The losses of two steps, and all parameters and buffers after each."""
    each, module = ARCHITECTURES[name], real_module(name)
    optimizer = OPTIMIZERS[each.optimizer]([p for p in module.parameters() if p.requires_grad])
    losses, states = [], []
    torch.manual_seed(11)
    for _ in range(2):
        optimizer.zero_grad()
        loss = module(**each.inputs()).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        states.append({key: value.clone() for key, value in weights_of(module).items()})
    return losses, states


@pytest.mark.parametrize(("name", "levers"), CASES)
def test_two_fitted_steps_have_the_bits_of_eager(name: str, levers: str) -> None:
    with plain_kernels():
        executor, inputs = bound(name, fitted_step(name, levers)), ARCHITECTURES[name].inputs()
        losses, (_, state) = eager_results(name)
        torch.manual_seed(11)
        for loss in losses:
            assert same_bits(executor.run(inputs)[0], loss)
        trained = [key for key in state if key in executor.states]
        assert {key for key, value in real_module(name).named_parameters() if value.requires_grad} <= set(trained)
        assert {key for key, _ in real_module(name).named_buffers()} <= set(trained)
        assert all(same_bits(executor.state(key), bytes_of(state[key])) for key in trained)
        executor.close()


@pytest.mark.parametrize(("name", "levers"), CASES)
def test_fitted_step_is_clean_under_the_sanitizer(name: str, levers: str) -> None:
    with plain_kernels():
        fitted = fitted_step(name, levers)
        executor, program = bound(name, fitted), rewritten(name, fitted)
        inputs = ARCHITECTURES[name].inputs()
        report = run_sanitized(program, executor, weights_of(real_module(name)), inputs, token=TOKEN)
        assert report.ops == len(fitted.graph.ops)
        assert report.compared > report.ops
        executor.close()


@pytest.mark.parametrize(("name", "levers"), CASES)
def test_fitted_step_takes_what_its_plan_says_and_operators_what_they_declare(name: str, levers: str) -> None:
    with plain_kernels():
        fitted, inputs = fitted_step(name, levers), ARCHITECTURES[name].inputs()
        executor = bound(name, fitted, external=inputs)
        executor.run({}, views=True)
        with profiled_allocations() as sizes:
            executor.run({}, views=True)
        assert sum(sizes) == declared_bytes(executor)
        assert executor.segments.usage["stack"].peak == segment_bytes(fitted.plan.arenas, "stack")
        executor.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in ARCHITECTURES])
def test_all_levers_take_less_than_any_alone(name: str) -> None:
    least = {levers: fitted_step(name, levers).live for levers in LEVERS if levers != OFFLOAD}
    assert least["all"] <= min(least.values())
    assert least["all"] < fitted_step(name, "takeover").live
