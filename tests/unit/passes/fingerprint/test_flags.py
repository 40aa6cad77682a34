import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.passes.nets import Net, digest, multiplier

BASE = digest(Net())


@contextmanager
def switched(turn: Callable[[], object], back: Callable[[], object]) -> Iterator[None]:
    turn()
    try:
        yield
    finally:
        back()


def pair(switch: Callable[[Any], object], on: Any, off: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    return functools.partial(switch, on), functools.partial(switch, off)


FLAGS = {
    "default dtype": pair(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": pair(torch.use_deterministic_algorithms, True, False),
    "precision of products": pair(torch.set_float32_matmul_precision, "high", "highest"),
    "flash attention": pair(torch.backends.cuda.enable_flash_sdp, False, True),
    "efficient attention": pair(torch.backends.cuda.enable_mem_efficient_sdp, False, True),
    "mathematical attention": pair(torch.backends.cuda.enable_math_sdp, False, True),
    "grad": pair(torch._C._set_grad_enabled, False, True),
    "autocast": pair(functools.partial(torch.set_autocast_enabled, "cpu"), True, False),
    "autocast on a GPU": pair(functools.partial(torch.set_autocast_enabled, "cuda"), True, False),
    "autocast dtype": pair(functools.partial(torch.set_autocast_dtype, "cpu"), torch.float16, torch.bfloat16),
    "fast path": pair(torch.backends.mha.set_fastpath_enabled, False, True),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_switch_of_torch_counts(name: str) -> None:
    turn, back = FLAGS[name]
    args = (torch.zeros(2, 4),)
    net = Net()
    with switched(turn, back):
        assert digest(net, *args) != BASE
    assert digest(net, *args) == BASE


def test_hooks_of_every_module_count() -> None:
    handle = nn.modules.module.register_module_forward_hook(multiplier(2.0))
    try:
        assert digest(Net()) != BASE
    finally:
        handle.remove()
    assert digest(Net()) == BASE
