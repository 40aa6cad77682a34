"""Results have the strides of real kernels, whatever the strides of the arguments are along axes of one element."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.kernels import plain_kernels
from tests.unit.passes.capture.record.test_upsampling import window
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.trace import fake_environment

aten = torch.ops.aten
Operator = Callable[[torch.Tensor, torch.Tensor], Any]
FIRST = torch.zeros(2, dtype=torch.int64)
"""An index: the first of an axis, twice."""


def ones_of(batch: torch.Tensor) -> torch.Tensor:
    return torch.ones(batch.shape[1])


def batch_gradient(a: torch.Tensor, b: torch.Tensor, *, train: bool) -> torch.Tensor:
    sides = [ones_of(b) for _ in range(5)]
    return aten.native_batch_norm_backward.default(a, b, *sides, train, 1e-5, [True, True, True])[0]


def images(batch: torch.Tensor) -> torch.Tensor:
    """``int64``: the class of each pixel."""
    return torch.zeros(batch.shape[0], *batch.shape[2:], dtype=torch.int64)


LOSSES: dict[str, Operator] = {
    "binary cross entropy": lambda a, b: functional.binary_cross_entropy(a, b, reduction="none"),
    "binary cross entropy of logits": lambda a, b: functional.binary_cross_entropy_with_logits(a, b, reduction="none"),
    "huber loss": lambda a, b: functional.huber_loss(a, b, reduction="none"),
    "loss of each pixel, gradient": lambda a, b: aten.nll_loss2d_backward.default(
        torch.ones(()), a.contiguous(), images(a), None, 1, -100, torch.ones(())
    ),
    "mean squared": functional.mse_loss,
    "smooth loss": lambda a, b: functional.smooth_l1_loss(a, b, reduction="none"),
    "soft margin": lambda a, b: functional.soft_margin_loss(a, b, reduction="none"),
    "squares": lambda a, b: functional.mse_loss(a, b, reduction="none"),
}
NORMS: dict[str, Operator] = {
    "batch norm": lambda a, b: functional.batch_norm(a, ones_of(a), ones_of(a), ones_of(a), ones_of(a)),
    "batch norm of this batch": lambda a, b: functional.batch_norm(torch.cat((a, a)), None, None, None, None, True),
    "batch norm, gradient": lambda a, b: batch_gradient(a, b, train=True),
    "batch norm at rest, gradient": lambda a, b: batch_gradient(a, b, train=False),
    "norm of vectors": lambda a, b: torch.linalg.vector_norm(a, dim=1),
    "norm of planes": lambda a, b: torch.linalg.vector_norm(a, dim=(1, 3), keepdim=True),
}
INDEXED: dict[str, Operator] = {
    "rows": lambda a, b: a[FIRST],
    "columns": lambda a, b: a[:, FIRST],
    "planes": lambda a, b: a[:, :, FIRST[:1]],
    "neighbours": lambda a, b: a[:, FIRST, FIRST],
    "far axes": lambda a, b: a[FIRST, :, FIRST],
    "turned index": lambda a, b: a[:, :, torch.zeros(2, 3, dtype=torch.int64).t()],
    "broadcast indices": lambda a, b: a[FIRST[:, None], torch.zeros(1, 3, dtype=torch.int64)],
    "one index": lambda a, b: a[:, FIRST[0]],
}
OPERATORS: dict[str, Operator] = (
    LOSSES
    | NORMS
    | INDEXED
    | {
        "bounds": lambda a, b: a.clamp(b, b),
        "complex": torch.complex,
        "dropout": lambda a, b: aten.native_dropout.default(a, 0.5, True)[0],
        "dropout, mask": lambda a, b: aten.native_dropout.default(a, 0.5, True)[1],
        "dropout at rest": lambda a, b: aten.native_dropout.default(a, 0.5, False)[0],
        "exponents": lambda a, b: torch.frexp(a)[1],
        "gate": lambda a, b: functional.glu(
            torch.empty_strided((2 * a.shape[0], *a.shape[1:]), a.stride()).fill_(1), 0
        ),
        "gate, gradient": lambda a, b: aten.glu_backward.default(a, torch.cat((a, b), 1), 1),
        "group norm, gradient": lambda a, b: aten.native_group_norm_backward.default(
            a.contiguous(),
            b.contiguous(),
            *[torch.ones(a.shape[0], 1)] * 2,
            None,
            *a.shape[:2],
            a[0, 0].numel(),
            1,
            [True, False, False],
        )[0],
        "noisy": lambda a, b: functional.rrelu(a, 0.1, 0.3, False),
        "numbers": lambda a, b: a.nan_to_num(),
        "polar": torch.polar,
        "rolled": lambda a, b: a.roll(1, 2),
        "rolled along two": lambda a, b: a.roll((1, 1), (0, 2)),
        "turned": lambda a, b: a.rot90(1, (2, 3)),
        "turned twice": lambda a, b: a.rot90(2, (1, 3)),
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
        "layer norm": lambda a, b: functional.layer_norm(a, a.shape[3:]),
        "layer norm gradient": lambda a, b: aten.native_layer_norm_backward.default(
            a,
            b,
            a.shape[3:],
            torch.ones(*a.shape[:3], 1),
            torch.ones(*a.shape[:3], 1),
            None,
            None,
            [True, False, False],
        )[0],
        "log softmax": lambda a, b: a.log_softmax(1),
        "masked fill": lambda a, b: a.masked_fill(b > 2, 1.0),
        "masked fill of rows": lambda a, b: a.masked_fill(b[0, 0] > 2, 1.0),
        "patches": lambda a, b: functional.unfold(a, 1),
        "prelu": lambda a, b: functional.prelu(a, torch.ones(a.shape[1])),
        "reflected": lambda a, b: functional.pad(a[None], [0] * 6, "reflect"),
        "reflected, gradient": lambda a, b: aten.reflection_pad2d_backward.default(a, b, [0] * 4),
        "replicated": lambda a, b: functional.pad(a[None], [1] * 6, "replicate"),
        "replicated, gradient": lambda a, b: aten.replication_pad2d_backward.default(a, b, [0] * 4),
        "renorm": lambda a, b: a.renorm(2, 1, 1.0),
        "attention": lambda a, b: aten._scaled_dot_product_flash_attention_for_cpu.default(a, b, b)[0],
        "softmax": lambda a, b: a.softmax(1),
        "softmax gradient": lambda a, b: aten._softmax_backward_data.default(a, b, 1, torch.float32),
        "sort": lambda a, b: a.sort(1)[0],
        "sort, places": lambda a, b: a.sort(dim=1, stable=True)[1],
        "upper triangle": lambda a, b: a.triu(),
    }
)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize(
    "attempts", [12, pytest.param(150, marks=pytest.mark.slow), pytest.param(4000, marks=pytest.mark.long)]
)
def test_results_have_the_strides_of_real_kernels(operator: Operator, attempts: int) -> None:
    chance = random.Random(attempts)
    windows = []
    for _ in range(attempts):
        shape = [chance.choice((1, 1, 2, 3)) for _ in range(4)]
        windows.append((window(chance, shape), window(chance, shape)))

    def layouts() -> list[tuple[object, object]]:
        results = (operator(*(torch.empty_strided(*place).fill_(1) for place in places)) for places in windows)
        return [(result.shape, result.stride()) for result in results]

    with plain_kernels():
        real = layouts()
        with fake_environment("cpu"), Recorder(folder=""):
            planned = layouts()
    assert not [row for row in zip(windows, planned, real, strict=True) if row[1] != row[2]]
