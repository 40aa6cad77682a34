"""Two graphs of a step become one program in halves: what crosses the border, and when results leave."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.ir.calls import Ref
from tmmu.ir.halves import Given, Halves
from tmmu.judge.rules import require_legal
from tmmu.passes.autograd.halves import EARLY, HAND_OUT, Step, trace_halves
from tmmu.passes.autograd.joint_graph import run_plain, split_by_autograd


def step_of(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Step, tuple[Any, ...], frozenset[int]]:
    """What AOTAutograd splits the function into, and the arguments of the first half."""
    found: list[Any] = []

    class Spy:
        def __init__(self, step: Step, static: frozenset[int]) -> None:
            self.step, self.static = step, static

        def first(self, args: Any) -> list[Any]:
            found[:] = [self.step, args, self.static]
            return run_plain(self.step.first, args)

        def second(self, args: Any) -> list[Any]:
            raise NotImplementedError

    torch._dynamo.reset()
    split = lambda graph, given: split_by_autograd(graph, given, Spy, recompute=False)  # noqa: E731
    torch.compile(function, backend=split)(*inputs)
    return found[0], found[1], found[2]


def halves_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Halves:
    step, args, _ = step_of(function, *inputs)
    traced = trace_halves(step, args, name="t")
    require_legal(traced.halves.program.graph)
    return traced.halves


def test_inference_is_one_half() -> None:
    halves = halves_of(lambda x: x.exp() + 1, torch.randn(3))
    assert halves.second is None
    assert halves.returned == ()
    assert halves.border == len(halves.program.calls) == 3
    (one,) = halves.first.handed
    assert isinstance(one, Ref)
    assert halves.first.deliveries[0].after == 3


def test_what_is_saved_crosses_the_border_by_its_value() -> None:
    halves = halves_of(lambda x: x.exp().sin(), torch.randn(3, requires_grad=True))
    assert halves.second is not None
    targets = [str(call.operator) for call in halves.program.calls]
    assert targets[: halves.border] == ["aten.exp.default", "aten.sin.default", str(HAND_OUT)]
    assert set(halves.program.graph.ops.stage[halves.border :]) == {"backward"}
    saved = [halves.first.handed[at] for at in halves.returned if at >= 0]
    assert len(saved) == len(halves.first.handed) - halves.results
    written = {v for op in range(halves.border) for v in halves.program.graph.ops.writes[op]}
    assert all(isinstance(one, Ref) and one.value in written for one in saved)
    assert [name is None for name in halves.second.arguments] == [at >= 0 for at in halves.returned]


def test_arguments_that_are_saved_are_no_copies() -> None:
    halves = halves_of(lambda x, y: x * y, torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True))
    saved = halves.first.handed[halves.results :]
    assert [isinstance(one, Given) and one.whole for one in saved] == [True, True]


def test_a_view_of_an_argument_is_a_window_on_it() -> None:
    halves = halves_of(lambda x: (x.t()[1:], x + 1), torch.randn(4, 3))
    windows = [one for one in halves.first.handed if isinstance(one, Given)]
    assert windows == [Given(position=0, whole=False, shape=(2, 4), stride=(1, 3), offset=1)]


def test_large_results_leave_when_they_are_made_and_small_ones_last() -> None:
    wide = EARLY // 4
    halves = halves_of(lambda x: (x.exp(), x[:4].sin(), (x + 1).sum()), torch.randn(wide))
    after = {at: one.after for one in halves.first.deliveries for at in one.places}
    assert after[0] == 2
    assert after[1] == after[2] == halves.border
    small = halves_of(lambda x: (x.exp(), x[:4].sin(), (x + 1).sum()), torch.randn(wide - 1))
    assert len(small.first.deliveries) == 1


def test_results_on_one_storage_leave_together() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return y, y[1:], x + 1

    halves = halves_of(function, torch.randn(EARLY))
    together = [one.places for one in halves.first.deliveries]
    assert together == [(0, 1, 2)]


def test_a_constant_of_the_graph_keeps_its_value() -> None:
    step, args, _ = step_of(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), torch.randn(3))
    traced = trace_halves(step, args, name="t")
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
    notes = halves_of(Nested(), torch.randn(4, 3)).program.graph.notes.ops
    at = notes.module.index("parts.one.0")
    assert notes.source[at].startswith("tests/unit/passes/autograd/test_halves.py:")
    assert set(notes.module) <= {"parts.one.0", "parts.one", ""}


def test_operators_that_take_graphs_are_refused() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    step, args, _ = step_of(function, torch.randn(3))
    with pytest.raises(UnsupportedOp, match="takes graphs"):
        trace_halves(step, args, name="t")


def test_what_torch_refuses_on_fakes_is_a_coded_error() -> None:
    step, _, _ = step_of(lambda x: x.view(3, 2) + 1, torch.randn(6))
    with pytest.raises(CaptureFailed):
        trace_halves(step, (torch.randn(5),), name="t")
