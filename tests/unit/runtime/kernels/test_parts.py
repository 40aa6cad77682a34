"""Calls in parts have the bits of the whole, cover it once, and allocate less."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels import plain_kernels
from tests.runtime.harness import same_bits
from tmmu.runtime.kernels.code import Code, leaves, runnable_of
from tmmu.runtime.kernels.lowerings import IN_PARTS
from tmmu.runtime.kernels.overloads import arguments_by_name
from tmmu.runtime.kernels.parts import MAX_PARTS, split_blocks, split_range
from tmmu.runtime.steps.unplanned import count_allocations

aten = torch.ops.aten
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def saved_by_attention(q: torch.Tensor, k: torch.Tensor, **options: Any) -> tuple[Any, ...]:
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, options.pop("causal", False), **options)
    return q, k, k, out, sums


def attention(*, key_heads: int = 4, mask: torch.Tensor | None = None, causal: bool = False) -> Call:
    q, k = rand(3, 4, 64, 16), rand(3, key_heads, 64, 16, seed=1)
    return aten._scaled_dot_product_flash_attention_for_cpu.default, (q, k, k, 0.0, causal), {"attn_mask": mask}


def attention_gradient(*, causal: bool = False, mask: torch.Tensor | None = None) -> Call:
    q, k = rand(3, 64, 4, 16).transpose(1, 2), rand(3, 64, 4, 16, seed=1).transpose(1, 2)
    saved = saved_by_attention(q, k, causal=causal, attn_mask=mask)
    arguments = (rand(3, 4, 64, 16, seed=2), *saved, 0.0, causal)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward.default, arguments, {"attn_mask": mask}


def normalization_gradient(mask: list[bool]) -> Call:
    x, weight, bias = rand(6, 50, 32), rand(32, seed=1), rand(32, seed=2)
    _, mean, rstd = aten.native_layer_norm(x, [32], weight, bias, 1e-5)
    arguments = (rand(6, 50, 32, seed=3), x, [32], mean, rstd, weight, bias, mask)
    return aten.native_layer_norm_backward.default, arguments, {}


def convolution(*images: int, size: int = 3, stride: int = 1, padding: int = 1, dilation: int = 1) -> Call:
    axes = len(images) - 2
    weight = rand(8, images[1], *[size] * axes, seed=1)
    options = ([stride] * axes, [padding] * axes, [dilation] * axes, False, [0] * axes, 1)
    return aten.convolution.default, (rand(*images), weight, rand(8, seed=2), *options), {}


def convolution_gradient(mask: list[bool]) -> Call:
    x, weight = rand(6, 4, 20, 20), rand(8, 4, 3, 3)
    arguments = (rand(6, 8, 18, 18, seed=1), x, weight, [8], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)
    return aten.convolution_backward.default, arguments, {}


def embedding_gradient(*, padding: int = -1, by_frequency: bool = False) -> Call:
    indices = torch.randint(0, 9, (4, 16), generator=torch.Generator().manual_seed(0))
    grad = rand(4, 16, 32).bfloat16()
    return aten.embedding_dense_backward.default, (grad, indices, 1200, padding, by_frequency), {}


def softmax() -> Call:
    scores = rand(2, 4, 64, 64)
    scores[0, 1, 3:9] = float("-inf")
    return aten._safe_softmax.default, (scores, -1), {}


def normalization(x: torch.Tensor, *shape: int) -> Call:
    return aten.native_layer_norm.default, (x, list(shape), rand(*shape), rand(*shape), 1e-5), {}


MASK = (rand(3, 1, 64, 64) > 0).float().log().clamp_min(-30)
CASES: dict[str, Callable[[], Call]] = {
    "normalization": lambda: normalization(rand(6, 50, 32), 32),
    "normalization-of-images": lambda: normalization(rand(5, 5, 12, 4, 8), 4, 8),
    "normalization-of-turned-rows": lambda: normalization(rand(2, 32, 150).transpose(1, 2), 32),
    "normalization-gradient": lambda: normalization_gradient([True, True, True]),
    "normalization-gradient-of-the-input": lambda: normalization_gradient([True, False, False]),
    "normalization-gradient-of-input-and-bias": lambda: normalization_gradient([True, False, True]),
    "attention": attention,
    "attention-causal": lambda: attention(causal=True),
    "attention-masked": lambda: attention(mask=MASK),
    "attention-with-one-mask": lambda: attention(mask=MASK[:1]),
    "attention-in-groups": lambda: attention(key_heads=2),
    "attention-of-one-key": lambda: attention(key_heads=1),
    "attention-gradient": attention_gradient,
    "attention-gradient-causal": lambda: attention_gradient(causal=True),
    "attention-gradient-masked": lambda: attention_gradient(mask=MASK),
    "softmax": softmax,
    "embedding-gradient": embedding_gradient,
    "embedding-gradient-padded": lambda: embedding_gradient(padding=3),
    "convolution": lambda: convolution(4, 8, 16, 20),
    "convolution-of-one-image": lambda: convolution(1, 8, 90, 20),
    "convolution-by-patches": lambda: convolution(2, 3, 96, 24, size=4, stride=4, padding=0),
    "convolution-by-steps": lambda: convolution(1, 16, 901, stride=2),
    "convolution-with-much-padding": lambda: convolution(1, 4, 120, 20, size=7, stride=2, padding=3),
    "convolution-of-sound": lambda: convolution(2, 1, 4000, size=10, stride=5, padding=0),
    "convolution-with-gaps": lambda: convolution(1, 4, 140, 20, dilation=2, padding=2),
    "convolution-gradient": lambda: convolution_gradient([True, True, True]),
    "convolution-gradient-of-the-weight-and-bias": lambda: convolution_gradient([False, True, True]),
}


def in_parts(call: Call, places: list[torch.Tensor | None], scratch: int) -> Code | None:
    operator, args, kwargs = call
    defaults = {a.name: a.default_value for a in operator._schema.arguments if a.has_default_value()}
    return IN_PARTS[str(operator)](defaults | arguments_by_name(operator, args, kwargs), places, scratch)


def spare(whole: torch.Tensor | None) -> torch.Tensor | None:
    return None if whole is None else torch.full_like(whole, float("nan"))


@pytest.mark.parametrize("scratch", [1 << 13, 1 << 15])
@pytest.mark.parametrize("name", CASES)
def test_parts_have_the_bits_of_the_whole_and_allocate_less(name: str, scratch: int) -> None:
    with plain_kernels():
        call = CASES[name]()
        operator, args, kwargs = call
        with count_allocations() as whole_count:
            whole = leaves(operator(*args, **kwargs))
        places = [spare(result) for result in whole]
        code = in_parts(call, places, scratch)
        assert code is not None
        assert len(code) > 1
        with count_allocations() as in_parts_count:
            runnable_of(code)()
    pairs = [(result, place) for result, place in zip(whole, places, strict=True) if result is not None]
    assert pairs
    assert all(same_bits(result, place) for result, place in pairs)
    assert in_parts_count.peak[-1] < whole_count.peak[-1]


@pytest.mark.parametrize("name", CASES)
def test_unread_results_are_not_copied(name: str) -> None:
    with plain_kernels():
        call = CASES[name]()
        operator, args, kwargs = call
        whole = leaves(operator(*args, **kwargs))
        last = max(index for index, result in enumerate(whole) if result is not None)
        places = [spare(result) for result in whole]
        if last == 0:
            return
        places[last] = None
        code = in_parts(call, places, 1 << 13)
        assert code is not None
        runnable_of(code)()
    for result, place in zip(whole[:last], places[:last], strict=True):
        assert result is None or place is None or same_bits(result, place)


@pytest.mark.parametrize("name", CASES)
def test_calls_that_fit_in_scratch_run_whole(name: str) -> None:
    call = CASES[name]()
    operator, args, kwargs = call
    places = [spare(result) for result in leaves(operator(*args, **kwargs))]
    code = in_parts(call, places, 1 << 30)
    assert code is None or str(operator) in {
        "aten.convolution_backward.default",
        "aten.native_layer_norm_backward.default",
    }


def test_embedding_gradient_scaled_by_frequency_is_left_to_the_operator() -> None:
    assert in_parts(embedding_gradient(by_frequency=True), [torch.empty(1200, 32).bfloat16()], 1 << 12) is None


def test_attention_with_unsupported_mask_is_left_to_the_operator() -> None:
    operator, args, kwargs = attention(mask=MASK[:, 0])
    assert in_parts((operator, args, kwargs), [rand(3, 4, 64, 16), None], 1 << 10) is None


SIZES = [(10, 1000, 100), (7, 1000, 300), (3, 1 << 20, 1), (0, 0, 9)]


@pytest.mark.parametrize(("count", "total_bytes", "scratch"), SIZES)
def test_split_range_covers_every_index_once(count: int, total_bytes: int, scratch: int) -> None:
    runs = split_range(count, total_bytes, scratch)
    assert [i for low, high in runs for i in range(low, high)] == list(range(count))
    assert len(runs) <= MAX_PARTS


@pytest.mark.parametrize(
    ("outer", "inner", "total_bytes"), [(3, 4, 1 << 20), (100, 2, 1 << 20), (1, 9, 5000), (2, 1, 1 << 30)]
)
def test_split_blocks_cover_every_pair_once(outer: int, inner: int, total_bytes: int) -> None:
    blocks = split_blocks(outer, inner, total_bytes, 1 << 12)
    pairs = [(i, j) for rows, columns in blocks for i in range(*rows) for j in range(*columns)]
    assert sorted(pairs) == [(i, j) for i in range(outer) for j in range(inner)]
