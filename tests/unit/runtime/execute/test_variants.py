"""Numbers that vary from run to run: bound with the plan, validated, launched one by one, exchanged without capture."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.runtime.harness import TOKEN, capture_program, plan_of, randomize, weights_of
from tmmu.errors import InvalidConfig
from tmmu.ir.program import Call, Program
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
FACTORS = (0.5, 0.25, -3.0)


class Scaled(nn.Module):
    """Calls before and after one whose number varies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``float32[4, 8]``."""
        hidden = self.first(x).relu().exp().neg()
        return self.second((hidden * FACTORS[0]).relu().exp().neg())


def varying(program: Program) -> tuple[Program, list[dict[int, Call]]]:
    """The program, and its product with each of the factors."""
    (op,) = [op for op, target in enumerate(program.graph.ops.target) if target == "aten.mul.Tensor"]
    calls = [replace(program.calls[op], args=(program.calls[op].args[0], factor)) for factor in FACTORS]
    return program, [{op: call} for call in calls]


@pytest.fixture
def executor() -> Executor:
    program, variants = varying(capture_program(Scaled, {"x": X})[0])
    torch.manual_seed(0)
    module = Scaled()
    randomize(module)
    return bind(program, plan_of(program), token=TOKEN, weights=weights_of(module), variants=variants)


def expected(executor: Executor, factor: float) -> torch.Tensor:
    """By torch, from the executor's own weights."""
    names = executor.bound.graph.notes.buffers
    weights = {
        name: executor.bound.views.bytes(buffer).view(torch.float32).clone()
        for buffer, name in enumerate(names)
        if name.startswith(("first", "second"))
    }
    hidden = torch.addmm(weights["first.bias"], X, weights["first.weight"].view(8, 8).t()).relu().exp().neg()
    return torch.addmm(
        weights["second.bias"], (hidden * factor).relu().exp().neg(), weights["second.weight"].view(8, 8).t()
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0), (1, 1, 0)])
def test_run_takes_the_numbers_of_its_variant(executor: Executor, order: tuple[int, ...]) -> None:
    for variant in order:
        executor.take_numbers(variant)
        (output,) = executor(x=X)
        assert output.equal(expected(executor, FACTORS[variant]))


def test_call_with_varying_numbers_has_a_launch_of_its_own(executor: Executor) -> None:
    (position,) = executor.bound.variants[0]
    count = executor.launch_count
    executor.take_numbers(1)
    assert executor.launch_count == count
    assert count < len(executor.order)  # the others are captured, before it and after it
    assert executor.bound.steps[position] is executor.bound.variants[1][position]


def test_no_such_variant_is_refused(executor: Executor) -> None:
    with pytest.raises(InvalidConfig, match="there is no variant 3"):
        executor.take_numbers(3)
