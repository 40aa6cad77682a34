"""What norms and embedding bags return beside their result: dtypes, shapes and storages are those of real kernels."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.trace import fake_environment

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Fact = tuple[torch.dtype, torch.Size, tuple[int, ...], int]


def facts(make: Callable[[], Any]) -> list[Fact | None]:
    result = make()
    leaves = result if isinstance(result, tuple) else (result,)
    return [
        None if leaf is None else (leaf.dtype, leaf.shape, leaf.stride(), leaf.untyped_storage().nbytes())
        for leaf in leaves
    ]


def traced(make: Callable[[], Any], device: str = "cpu") -> list[Fact | None]:
    with fake_environment(device), Recorder(folder="", device=device):
        return facts(make)


def batch_norm(dtype: torch.dtype, other: torch.dtype, *, affine: bool, running: bool) -> Callable[[], Any]:
    def make() -> Any:
        x, weight = torch.ones(2, 4, 3, 3, dtype=dtype), torch.ones(4, dtype=other) if affine else None
        known = (torch.zeros(4, dtype=other), torch.ones(4, dtype=other)) if running else (None, None)
        out = aten.native_batch_norm.default(x, weight, weight, *known, True, 0.1, 1e-5)
        gradients = aten.native_batch_norm_backward.default(
            x, x, weight, *known, *out[1:], True, 1e-5, [True, affine, affine]
        )
        return *out, *gradients

    return make


def group_norm(dtype: torch.dtype, other: torch.dtype, *, affine: bool) -> Callable[[], Any]:
    def make() -> Any:
        x, weight = torch.ones(2, 4, 3, 3, dtype=dtype), torch.ones(4, dtype=other) if affine else None
        out = aten.native_group_norm.default(x, weight, weight, 2, 4, 9, 2, 1e-5)
        mask = [True, affine, affine]
        return *out, *aten.native_group_norm_backward.default(x, x, *out[1:], weight, 2, 4, 9, 2, mask)

    return make


def layer_norm(dtype: torch.dtype, other: torch.dtype) -> Callable[[], Any]:
    def make() -> Any:
        x, weight = torch.ones(2, 3, 4, dtype=dtype), torch.ones(4, dtype=other)
        out = aten.native_layer_norm.default(x, [4], weight, weight, 1e-5)
        return *out, *aten.native_layer_norm_backward.default(x, x, [4], *out[1:], weight, weight, [True] * 3)

    return make


NORMS = {
    **{
        f"batch norm, {dtype}, {other}, {affine}, {running}": batch_norm(dtype, other, affine=affine, running=running)
        for dtype in DTYPES
        for other in dict.fromkeys((torch.float32, dtype))
        for affine, running in product((True, False), repeat=2)
    },
    **{
        f"group norm, {dtype}, {other}, {affine}": group_norm(dtype, other, affine=affine)
        for dtype in DTYPES
        for other in dict.fromkeys((torch.float32, dtype))
        for affine in (True,)
    },
    **{
        f"layer norm, {dtype}, {other}": layer_norm(dtype, other)
        for dtype in DTYPES
        for other in dict.fromkeys((torch.float32, dtype))
    },
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_keep_their_statistics_as_real_kernels_do(name: str) -> None:
    assert traced(NORMS[name]) == facts(NORMS[name])


@pytest.mark.parametrize("kind", [batch_norm, layer_norm])
def test_statistics_on_a_gpu_are_in_single_precision(kind: Callable[..., Callable[[], Any]]) -> None:
    options = {"affine": True, "running": True} if kind is batch_norm else {}
    _, mean, deviation, *_ = traced(kind(torch.bfloat16, torch.bfloat16, **options), "cuda")
    assert mean is not None
    assert deviation is not None
    assert mean[0] is deviation[0] is torch.float32


@pytest.mark.parametrize("func", [aten._embedding_bag.default, aten._embedding_bag_forward_only.default])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags_allocate_their_tables_as_real_kernels_do(func: Any, dtype: torch.dtype, mode: int) -> None:
    for has_end, padding, is_weighted in product((False, True), (-1, 0), (False, True)):
        if is_weighted and mode:
            continue

        def make(has_end: bool = has_end, padding: int = padding, is_weighted: bool = is_weighted) -> Any:
            offsets = torch.tensor([0, 6, 12, 18, *([24] if has_end else [])])
            weights = torch.ones(24, dtype=dtype) if is_weighted else None
            table, ids = torch.ones(50, 8, dtype=dtype), torch.arange(24)
            return func(table, ids, offsets, False, mode, False, weights, has_end, padding)

        assert traced(make) == facts(make), (has_end, padding, is_weighted)
