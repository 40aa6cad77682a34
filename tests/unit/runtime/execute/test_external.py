"""External inputs are read and changed where the caller has them, and unchanged by binding."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import TOKEN, capture_program, plan_of
from tmmu.errors import InvalidConfig
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.slab import Slab


class Scaled(nn.Module):
    """Reads ``w``, and counts in ``n``."""

    def forward(self, x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        n.add_(1)
        return x @ w + n


def tensors() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(2, 3), "w": torch.randn(3, 3).t(), "n": torch.zeros(1)}


def executor(**external: torch.Tensor) -> Executor:
    program, constants = capture_program(Scaled, tensors())
    return bind(program, plan_of(program), token=TOKEN, weights=constants, external=external)


def test_external_inputs_are_read_and_changed_in_place() -> None:
    inputs = tensors()
    run = executor(w=inputs["w"], n=inputs["n"])
    assert [spec.name for spec in run.inputs] == ["x"]
    for step in (1, 2):
        inputs["w"].mul_(2)
        (output,) = run(x=inputs["x"])
        assert output.equal(inputs["x"] @ inputs["w"] + step)
        assert inputs["n"].item() == step


def test_external_inputs_are_unchanged_by_binding() -> None:
    inputs = tensors()
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    executor(w=inputs["w"], n=inputs["n"])
    assert all(inputs[name].equal(before[name]) for name in inputs)


@pytest.mark.parametrize(
    ("external", "says"),
    [
        ({"other": torch.zeros(3)}, "no input is called 'other'"),
        ({"w": torch.zeros(3, 4)}, "shape"),
        ({"w": torch.zeros(3, 3)}, "strides"),
        ({"w": torch.zeros(3, 3).t().double()}, "dtype"),
    ],
)
def test_external_inputs_that_do_not_fit_are_refused(external: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        executor(**external)


def test_external_inputs_are_refused_by_calls() -> None:
    inputs = tensors()
    arguments: Any = inputs
    with pytest.raises(InvalidConfig, match="no input is called 'w'"):
        executor(w=inputs["w"])(**arguments)


def test_slab_over_a_tensor_begins_at_its_first_element() -> None:
    whole = torch.arange(12, dtype=torch.float32).view(3, 4)
    slab = Slab.over(whole[1])
    assert slab.size == 32
    assert slab.view(4, (2,), (1,), torch.float32).tolist() == [5.0, 6.0]
    slab.view(0, (1,), (1,), torch.float32).fill_(-1)
    assert whole[1, 0].item() == -1
