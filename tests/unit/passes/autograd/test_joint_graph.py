"""Two graphs of a step become one program in halves: what crosses the border, and when results leave."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.ir.program import ArgumentView, Program, ValueRef, joint_graph
from tmmu.judge.rules import require_legal
from tmmu.passes.autograd.joint_graph import EARLY_BYTES, HAND_OUT, SplitStep, trace_joint
from tmmu.passes.autograd.split import run_plain, split_by_autograd


def step_of(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[SplitStep, tuple[Any, ...], frozenset[int]]:
    """What AOTAutograd splits the function into, and the arguments of the first half."""
    found: list[Any] = []

    class Spy:
        def __init__(self, step: SplitStep, static: frozenset[int]) -> None:
            self.step, self.static = step, static

        def run_forward(self, args: Any) -> list[Any]:
            found[:] = [self.step, args, self.static]
            return run_plain(self.step.forward, args)

        def run_backward(self, args: Any) -> list[Any]:
            raise NotImplementedError

    torch._dynamo.reset()
    split = lambda graph, given: split_by_autograd(graph, given, Spy, recompute=False)  # noqa: E731
    torch.compile(function, backend=split)(*inputs)
    return found[0], found[1], found[2]


def halves_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Program:
    step, args, _ = step_of(function, *inputs)
    traced = trace_joint(step, args, name="t")
    require_legal(traced.program.graph)
    return traced.program


def test_inference_is_one_half() -> None:
    program = halves_of(lambda x: x.exp() + 1, torch.randn(3))
    halves = joint_graph(program)
    assert halves.backward is None
    assert halves.residuals == ()
    assert halves.forward_ops == len(program.calls) == 3
    (one,) = halves.forward.outputs
    assert isinstance(one, ValueRef)
    assert halves.forward.deliveries[0].after == 3


def test_what_is_saved_crosses_the_border_by_its_value() -> None:
    program = halves_of(lambda x: x.exp().sin(), torch.randn(3, requires_grad=True))
    halves = joint_graph(program)
    assert halves.backward is not None
    targets = [str(call.operator) for call in program.calls]
    assert targets[: halves.forward_ops] == ["aten.exp.default", "aten.sin.default", str(HAND_OUT)]
    assert set(program.graph.ops.stage[halves.forward_ops :]) == {"backward"}
    saved = [halves.forward.outputs[at] for at in halves.residuals if at >= 0]
    assert len(saved) == len(halves.forward.outputs) - halves.user_outputs
    written = {v for op in range(halves.forward_ops) for v in program.graph.ops.writes[op]}
    assert all(isinstance(one, ValueRef) and one.value in written for one in saved)
    assert [name is None for name in halves.backward.arguments] == [at >= 0 for at in halves.residuals]


def test_arguments_that_are_saved_are_no_copies() -> None:
    program = halves_of(lambda x, y: x * y, torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True))
    halves = joint_graph(program)
    saved = halves.forward.outputs[halves.user_outputs :]
    assert [isinstance(one, ArgumentView) and one.whole for one in saved] == [True, True]


def test_a_view_of_an_argument_is_a_window_on_it() -> None:
    program = halves_of(lambda x: (x.t()[1:], x + 1), torch.randn(4, 3))
    halves = joint_graph(program)
    windows = [one for one in halves.forward.outputs if isinstance(one, ArgumentView)]
    assert windows == [ArgumentView(argument=0, whole=False, shape=(2, 4), stride=(1, 3), offset=1)]


def test_large_results_leave_when_they_are_made_and_small_ones_last() -> None:
    wide = EARLY_BYTES // 4
    program = halves_of(lambda x: (x.exp(), x[:4].sin(), (x + 1).sum()), torch.randn(wide))
    halves = joint_graph(program)
    after = {at: one.after for one in halves.forward.deliveries for at in one.outputs}
    assert after[0] == 2
    assert after[1] == after[2] == halves.forward_ops
    small = joint_graph(halves_of(lambda x: (x.exp(), x[:4].sin(), (x + 1).sum()), torch.randn(wide - 1)))
    assert len(small.forward.deliveries) == 1


def test_results_on_one_storage_leave_together() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return y, y[1:], x + 1

    program = halves_of(function, torch.randn(EARLY_BYTES))
    halves = joint_graph(program)
    together = [one.outputs for one in halves.forward.deliveries]
    assert together == [(0, 1, 2)]


def test_a_constant_of_the_graph_keeps_its_value() -> None:
    step, args, _ = step_of(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), torch.randn(3))
    traced = trace_joint(step, args, name="t")
    assert [one.tolist() for one in traced.constants.values()] == [[1.0, 2.0, 3.0]]


def test_weights_are_told_from_inputs() -> None:
    model = nn.Linear(3, 2)
    _, args, static = step_of(model, torch.randn(4, 3))
    assert {tuple(args[at].shape) for at in static} == {(2, 3), (2,)}


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"one": nn.Sequential(nn.Linear(3, 2))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts["one"](x)  # type: ignore[no-any-return]


def test_modules_and_lines_are_noted() -> None:
    notes = halves_of(Nested(), torch.randn(4, 3)).graph.notes.ops
    at = notes.module.index("parts.one.0")
    assert notes.source[at].startswith("tests/unit/passes/autograd/test_joint_graph.py:")
    assert set(notes.module) <= {"parts.one.0", "parts.one", ""}


def test_operators_that_take_graphs_are_refused() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    step, args, _ = step_of(function, torch.randn(3))
    with pytest.raises(UnsupportedOp, match="takes graphs"):
        trace_joint(step, args, name="t")


def test_what_torch_refuses_on_fakes_is_a_coded_error() -> None:
    step, _, _ = step_of(lambda x: x.view(3, 2) + 1, torch.randn(6))
    with pytest.raises(CaptureFailed):
        trace_joint(step, (torch.randn(5),), name="t")
