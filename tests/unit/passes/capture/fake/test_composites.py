"""While a graph is split, torch's rules in Python are out of the way, and afterwards they are back."""

from typing import Any

import pytest
import torch
from torch._C import DispatchKey
from torch._ops import OpOverload, OpOverloadPacket

from tmmu.passes.capture.fake.composites import composites_for, eager_composites

aten = torch.ops.aten


def python_kernels() -> dict[str, dict[DispatchKey, Any]]:
    """By operator, its kernels in Python other than those that only give shapes."""
    packets = [packet for packet in vars(aten).values() if isinstance(packet, OpOverloadPacket)]
    overloads = [op for packet in packets for op in vars(packet).values() if isinstance(op, OpOverload)]
    kernels: dict[str, dict[DispatchKey, Any]] = {
        str(op): {key: rule for key, rule in op.py_kernels.items() if key is not DispatchKey.Meta} for op in overloads
    }
    return {name: rules for name, rules in kernels.items() if rules}


def test_rules_in_python_are_hidden_but_for_those_that_mend_a_schema() -> None:
    before = python_kernels()
    assert "aten.upsample_bilinear2d.default" in before
    with eager_composites():
        left = python_kernels()
    assert {name: set(kernels) for name, kernels in left.items()} == {
        "aten.native_batch_norm.default": {DispatchKey.Autograd},
        "aten.cudnn_batch_norm.default": {DispatchKey.Autograd},
    }
    assert python_kernels() == before


def test_rules_given_stand_in_meanwhile() -> None:
    def rule(x: torch.Tensor) -> torch.Tensor:
        return x

    with eager_composites({aten.hardshrink.default: rule}):
        assert aten.hardshrink.default.py_kernels[DispatchKey.CompositeImplicitAutograd] is rule
    assert DispatchKey.CompositeImplicitAutograd not in aten.hardshrink.default.py_kernels


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kernels_of_a_trace_are_gone_after_it(device: str) -> None:
    def is_replaced() -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key("aten::linalg_svdvals", "AutogradCPU")

    for _ in range(2):
        with composites_for(device):
            assert is_replaced()
        assert not is_replaced()
