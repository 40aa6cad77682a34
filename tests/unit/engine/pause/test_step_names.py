"""Names of values in a step: modules with one end, and what became of a value that is gone."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import plan_of
from tmmu.engine.capture.module_results import ModuleResults
from tmmu.engine.pause.step_names import StepNames
from tmmu.errors import InvalidConfig
from tmmu.passes.capture.modules import ModuleStack
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture_workload
from tmmu.passes.capture.workload import Workload
from tmmu.passes.pipeline import lower_program
from tmmu.runtime.execute.pieces import live_versions


class Pair(nn.Module):
    """Returns two tensors."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"sine": x.sin(), "nothing": None, "cosines": [x.cos()]}


class Inner(nn.Module):
    """Called by itself and by its parent's parent."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


class Outer(nn.Module):
    """Holds a module that is called apart from it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()


class Whole(nn.Module):
    """A module that is called twice in a row, one whose part is called apart, one of two results, and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.outer, self.pair, self.same = nn.Tanh(), Outer(), Pair(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.same(self.twice(self.twice(x)))
        y = self.outer(y) - y
        y = self.outer.inner(y)
        both = self.pair(y)
        return both["sine"] * both["cosines"][0]


@pytest.fixture(scope="module")
def names() -> tuple[StepNames, Any, Any]:
    results = ModuleResults()

    def load(_: object) -> Workload:
        module = Whole()
        stack = ModuleStack(results.note)
        return Workload(name="whole", folder="", run=module, module=module, args=(torch.empty(1, 8),), modules=stack)

    program = lower_program(capture_workload(load, CaptureRequest(model="whole", device="cpu")))
    plan = plan_of(program)
    return StepNames(program.graph, plan, results.of_single_calls), program.graph, plan


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("twice", "twice has no one end in a step: it is not called just once"),
        ("outer", "outer has no one end in a step: other ops run between its own"),
        ("same", "no op of a step is in a module 'same'"),
        ("pear", "the nearest are pair"),
    ],
)
def test_module_without_one_end_is_refused(names: Any, module: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        names[0].end_of(module)


def test_results_have_the_path_of_their_module_and_all_else_that_of_its_op(names: Any) -> None:
    step, graph, plan = names
    end = step.end_of("pair")
    versions = live_versions(graph, plan, end)
    assert step.names_at(end, versions, "pair") == ("pair[0]", "pair[1]")
    inner = step.end_of("outer.inner")
    assert step.names_at(inner, live_versions(graph, plan, inner), "pair") == ("outer.inner",)
    early = 1
    (name,) = step.names_at(early, live_versions(graph, plan, early), "pair")
    assert name == f"op {plan.order[0]} aten.tanh.default"
    for known in ("pair[0]", "pair[1]"):
        value = step.find(known, end, versions)
        assert value.window.shape == (1, 8)
    assert step.has("pair[0]", end, versions)
    assert not step.has("pair", end, versions)
    with pytest.raises(InvalidConfig, match="several tensors"):
        step.find("pair", end, versions)
    with pytest.raises(InvalidConfig, match=r"outer.inner was written over by op \d+ aten.cos.default \(pair\)"):
        step.find("outer.inner", end, versions)
    with pytest.raises(InvalidConfig, match="is not computed yet"):
        step.find("pair[1]", inner, live_versions(graph, plan, inner))


def test_padding_is_cut_off_where_the_axis_of_positions_is_known(names: Any) -> None:
    step, graph, plan = names
    end = step.end_of("pair")
    value = step.find("pair[0]", end, live_versions(graph, plan, end))
    assert value.window_of(8, 3) == value.window  # two axes: nobody knows
