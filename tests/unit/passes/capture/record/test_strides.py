"""Results have the strides of real kernels, whatever the strides of the arguments are along axes of one element."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels import plain_kernels
from tests.unit.passes.capture.record.test_upsampling import window
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.trace import fake_environment

aten = torch.ops.aten
OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "empty like": lambda a, b: torch.empty_like(a),
    "zeros like": lambda a, b: torch.zeros_like(a),
    "zeros like, contiguous": lambda a, b: torch.zeros_like(a, memory_format=torch.contiguous_format),
    "full like": lambda a, b: torch.full_like(a, 2.0),
    "random like": lambda a, b: torch.rand_like(a),
    "flip": lambda a, b: a.flip(2),
    "group norm": lambda a, b: aten.native_group_norm.default(
        a.contiguous(), None, None, a.shape[0], a.shape[1], a.shape[2] * a.shape[3], 1, 1e-5
    )[0],
    "index add": lambda a, b: a.index_add(0, torch.zeros(a.shape[0], dtype=torch.int64), b),
    "index put": lambda a, b: a.index_put([torch.zeros(1, dtype=torch.int64)], torch.ones(())),
    "layer norm": lambda a, b: torch.nn.functional.layer_norm(a, a.shape[3:]),
    "layer norm gradient": lambda a, b: aten.native_layer_norm_backward.default(
        a, b, a.shape[3:], torch.ones(*a.shape[:3], 1), torch.ones(*a.shape[:3], 1), None, None, [True, False, False]
    )[0],
    "log softmax": lambda a, b: a.log_softmax(1),
    "masked fill": lambda a, b: a.masked_fill(b > 2, 1.0),
    "masked fill of rows": lambda a, b: a.masked_fill(b[0, 0] > 2, 1.0),
    "patches": lambda a, b: torch.nn.functional.unfold(a, 1),
    "prelu": lambda a, b: torch.nn.functional.prelu(a, torch.ones(a.shape[1])),
    "reflected": lambda a, b: torch.nn.functional.pad(a[None], [0] * 6, "reflect"),
    "reflected, gradient": lambda a, b: aten.reflection_pad2d_backward.default(a, b, [0] * 4),
    "replicated": lambda a, b: torch.nn.functional.pad(a[None], [1] * 6, "replicate"),
    "replicated, gradient": lambda a, b: aten.replication_pad2d_backward.default(a, b, [0] * 4),
    "renorm": lambda a, b: a.renorm(2, 1, 1.0),
    "attention": lambda a, b: aten._scaled_dot_product_flash_attention_for_cpu.default(a, b, b)[0],
    "softmax": lambda a, b: a.softmax(1),
    "softmax gradient": lambda a, b: aten._softmax_backward_data.default(a, b, 1, torch.float32),
    "sort": lambda a, b: a.sort(1)[0],
    "sort, places": lambda a, b: a.sort(dim=1, stable=True)[1],
    "upper triangle": lambda a, b: a.triu(),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("attempts", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_results_have_the_strides_of_real_kernels(
    operator: Callable[[torch.Tensor, torch.Tensor], Any], attempts: int
) -> None:
    chance = random.Random(attempts)
    for _ in range(attempts):
        shape = [chance.choice((1, 1, 2, 3)) for _ in range(4)]
        windows = window(chance, shape), window(chance, shape)
        with plain_kernels():
            real = operator(*(torch.empty_strided(*each).fill_(1) for each in windows))
            with fake_environment("cpu"), Recorder(folder=""):
                planned = operator(*(torch.empty_strided(*each).fill_(1) for each in windows))
        assert (planned.shape, planned.stride()) == (real.shape, real.stride()), windows
