"""Step memory: residuals are handed out once, under a lease, and no other step runs there meanwhile."""

from typing import Any

import torch

from tests.unit.passes.autograd.test_joint_graph import step_of
from tmmu.backend import _TRAINING
from tmmu.driver import compile_graph
from tmmu.passes.autograd.joint_graph import trace_joint
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.execute.step_memory import StepMemory, bind_step_memory
from tmmu.runtime.execute.step_memory_pool import MAX_STEPS, StepMemoryPool


class StepMemories:
    """The pool of a function's program, and arguments of its halves."""

    def __init__(self, function: Any, *inputs: torch.Tensor) -> None:
        step, self.args, self._static = step_of(function, *inputs)
        self._traced = trace_joint(step, self.args, name="t")
        self._plan = compile_graph(self._traced.program.graph, _TRAINING).plan
        self.pool = StepMemoryPool(self._traced.program)

    def make(self) -> StepMemory:
        program, weights = self._traced.program, self._traced.constants
        request = BindRequest(program=program, plan=self._plan, token=_TRAINING.token, weights=weights)
        return bind_step_memory(request, self.args, static=self._static)

    def forward(self) -> tuple[StepMemory, list[Any]]:
        with self.pool.acquire_forward(self.args, self.make) as memory:
            assert memory is not None
            assert memory.is_busy
            return memory, memory.forward(self.args)

    def backward_args(self, outputs: list[Any], *tangents: torch.Tensor) -> list[Any]:
        remaining = iter(tangents)
        return [outputs[index] if index >= 0 else next(remaining) for index in self.pool.joint.residuals]


def sine_of_exp() -> StepMemories:
    return StepMemories(lambda x: x.exp().sin(), torch.randn(3, requires_grad=True))


def test_memory_is_leased_while_any_residual_lives() -> None:
    step = sine_of_exp()
    memory, outputs = step.forward()
    assert not memory.is_idle
    second, _ = step.forward()
    assert second is not memory
    del outputs
    assert memory.is_idle
    assert step.forward()[0] in (memory, second)


def test_pool_has_a_limit() -> None:
    step = sine_of_exp()
    leases = [step.forward() for _ in range(MAX_STEPS)]
    with step.pool.acquire_forward(step.args, step.make) as memory:
        assert memory is None
    leases.pop()
    with step.pool.acquire_forward(step.args, step.make) as memory:
        assert memory is not None


def test_residuals_are_consumed_once() -> None:
    step = sine_of_exp()
    memory, outputs = step.forward()
    args = step.backward_args(outputs, torch.ones(3))
    assert memory.holds_residuals(args)
    with step.pool.acquire_backward(args, retain=False) as (acquired, load_residuals):
        assert (acquired, load_residuals) == (memory, False)
        gradient = acquired.backward(args, load_residuals=load_residuals)[0]
    assert not memory.holds_residuals(args)
    x = step.args[0].detach().requires_grad_()
    x.exp().sin().sum().backward()
    assert gradient.equal(x.grad)


def test_residuals_identify_their_memory_among_equal_ones() -> None:
    step = sine_of_exp()
    memory, outputs = step.forward()
    second, others = step.forward()
    args = step.backward_args(outputs, torch.ones(3))
    assert memory.holds_residuals(args)
    assert not second.holds_residuals(args)
    del others
    with step.pool.acquire_backward(args, retain=True) as (acquired, load_residuals):
        assert (acquired, load_residuals) == (second, True)


def test_weights_are_bound_by_address() -> None:
    step = StepMemories(torch.nn.Linear(3, 2), torch.randn(4, 3))
    memory, _ = step.forward()
    assert memory.is_bound_to(step.args)
    moved = [arg.clone() if isinstance(arg, torch.nn.Parameter) else arg for arg in step.args]
    assert not memory.is_bound_to(moved)
