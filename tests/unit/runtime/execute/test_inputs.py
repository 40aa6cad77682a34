"""Inputs fit the plan, or one clear line says what they are instead."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.runtime.harness import same_bits
from tmmu.errors import InvalidConfig
from tmmu.runtime.execute.inputs import InputSpec, check_inputs
from tmmu.runtime.memory.sizing import device_of

CPU = torch.device("cpu")
SPECS = (InputSpec(name="x", value=0, shape=(2, 3), dtype=torch.float32, device=CPU),)


def ones() -> torch.Tensor:
    return torch.ones(2, 3)


BAD: dict[str, tuple[Any, str]] = {
    "nothing": (None, "the inputs are a NoneType, not a mapping"),
    "a list": ([torch.ones(2, 3)], "the inputs are a list, not a mapping"),
    "a tensor": (torch.ones(2, 3), "the inputs are a Tensor, not a mapping"),
    "a tensor for a name": ({torch.ones(2): torch.ones(2)}, "the name of an input is a Tensor"),
    "another name": ({"a\nb": torch.ones(2)}, r"no input is called 'a\\nb' \(the inputs are x\)"),
    "none of that name": ({}, r"input x is missing \(give x=float32\[2,3\]\)"),
    "a list for a tensor": ({"x": [[1.0] * 3] * 2}, r"input x is no dense tensor \(list\)"),
    "nothing for a tensor": ({"x": None}, r"input x is no dense tensor \(NoneType\)"),
    "a number": ({"x": 3}, r"input x is no dense tensor \(int\)"),
    "sparse": ({"x": torch.ones(2, 3).to_sparse()}, "input x is no dense tensor"),
    "fake": ({"x": FakeTensorMode().from_tensor(torch.ones(2, 3))}, r"no dense tensor \(FakeTensor\)"),
    "without bytes": ({"x": torch.ones(2, 3, device="meta")}, "input x has device meta, and the plan is for cpu"),
    "another shape": ({"x": torch.ones(3, 2)}, r"input x has shape \(3, 2\), and the plan is for \(2, 3\)"),
    "another dtype": ({"x": torch.ones(2, 3, dtype=torch.float64)}, "input x has dtype torch.float64"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_inputs_are_one_clear_line(name: str) -> None:
    inputs, line = BAD[name]
    with pytest.raises(InvalidConfig, match=line) as caught:
        check_inputs(SPECS, inputs)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_inputs_inside_a_transform_are_refused() -> None:
    def check_one(x: torch.Tensor) -> torch.Tensor:
        return check_inputs(SPECS, {"x": x})[0]

    with pytest.raises(InvalidConfig, match="no dense tensor"):
        torch.vmap(check_one)(torch.ones(5, 2, 3))


def test_program_without_inputs_takes_none() -> None:
    assert check_inputs((), {}) == []
    with pytest.raises(InvalidConfig, match="there are no inputs"):
        check_inputs((), {"x": ones()})


@pytest.mark.parametrize(
    "tensor", [ones(), torch.nn.Parameter(ones()), torch.ones(3, 2).t(), torch.ones(2, 3, device="cpu:0")]
)
def test_tensors_that_fit_are_taken_as_they_are(tensor: torch.Tensor) -> None:
    (checked,) = check_inputs(SPECS, {"x": tensor})
    assert checked is tensor
    assert same_bits(checked.detach().contiguous(), ones())


@pytest.mark.parametrize(
    ("spec", "device"),
    [("cpu", CPU), ("cpu:0", CPU), (CPU, CPU), ("cuda", torch.device("cuda")), ("cuda:1", torch.device("cuda", 1))],
)
def test_device_has_one_name(spec: Any, device: torch.device) -> None:
    assert device_of(spec) == device


@pytest.mark.parametrize("spec", ["nope", "", "cpu:1", "cpu:x", "cuda:-1", "cuda:0:0", "meta", "mps", None, [1]])
def test_bad_devices_are_one_clear_line(spec: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"device|there is no cpu:1") as caught:
        device_of(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 120
