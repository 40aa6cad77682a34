"""Rows of the facts, tried against torch: twice on the same bits, without draws, without hidden changes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from benchmarks.operators.samples import operator_database
from tests.unit.judge.rewrite.trial import Twice, copied, same
from tmmu.ir.call_text import NUMBER, TENSOR, CallText, encode_float
from tmmu.judge.rewrite.facts import (
    ATOMIC,
    CONDITIONS,
    EMPTY,
    LIST_OPERATORS,
    OPERATORS,
    TWINS,
    computes_alone,
    has_same_bits,
    has_twin,
    twin_scale,
)

aten = torch.ops.aten
FEW = ["add", "addmm", "cumsum", "div", "gather", "mul", "native_layer_norm", "softmax", "sort", "sum", "where"]


def samples(names: list[str] | None) -> Iterator[Any]:
    """Calls of torch's operator database, with their gradients."""
    for entry in operator_database():
        if entry.name.startswith("jiterator") or (names is not None and entry.name not in names):
            continue
        for dtype in (torch.float32, torch.int64):
            if dtype in entry.dtypes and dtype in entry.supported_dtypes("cpu"):
                grad = dtype.is_floating_point and entry.supports_autograd
                for sample in list(entry.sample_inputs("cpu", dtype, requires_grad=grad))[:4]:
                    yield entry, sample, grad


def try_database(names: list[str] | None = None) -> Twice:
    mode = Twice()
    for entry, sample, grad in samples(names):
        try:
            with mode:
                result = entry(sample.input, *sample.args, **sample.kwargs)
                outs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
                if grad and outs:
                    sum(t.abs().sum() for t in outs).backward()
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AssertionError):
            continue  # the database has samples that this build refuses
    return mode


def operator(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def test_operators_of_the_database_compute_alone() -> None:
    mode = try_database(FEW)
    assert len(mode.tried) > 20
    assert not mode.faults


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.1


def rows(seed: int = 0) -> list[torch.Tensor]:
    """Three tensors of different sizes."""
    return [numbers(2, 3, seed=seed), numbers(4, seed=seed + 1), numbers(1, 5, seed=seed + 2)]


X, Y, W = numbers(2, 3), numbers(2, 3, seed=1), numbers(3)
INTS, MASK, PLACES = torch.arange(6).view(2, 3), X > 0.5, torch.tensor([1, 0])
IMAGES = numbers(1, 2, 4, 4)
HEADS = [numbers(1, 2, 4, 8, seed=seed) for seed in range(3)]
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default(*HEADS)
STEPS = [torch.full((), 2.0) for _ in range(3)]
ADAM: dict[str, Any] = {
    "lr": 0.1,
    "beta1": 0.9,
    "beta2": 0.99,
    "weight_decay": 0.1,
    "eps": 1e-8,
    "amsgrad": False,
    "maximize": False,
}
SGD: dict[str, Any] = {
    "weight_decay": 0.1,
    "momentum": 0.9,
    "lr": 0.1,
    "dampening": 0.0,
    "nesterov": True,
    "maximize": False,
    "is_first_step": False,
}
NUMBERED = [0.5, 0.25, 2.0]
ADAGRAD = {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
GROUPED = numbers(16, 32).bfloat16(), numbers(4, 32, 24, seed=1).bfloat16(), torch.arange(4, 17, 4, dtype=torch.int32)
BY_HAND: dict[str, tuple[Any, ...]] = {
    "_grouped_mm": GROUPED,
    "_native_batch_norm_legit_no_training": (IMAGES, *(numbers(2, seed=seed) for seed in range(4)), 0.1, 1e-5),
    **dict.fromkeys(["abs_", "cos_", "rsqrt_", "sigmoid_", "silu_", "tanh_"], (X,)),
    **dict.fromkeys(["bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar"], (INTS, 3)),
    **dict.fromkeys(["clamp_max", "copysign.Scalar", "floor_divide.Scalar", "fmod.Scalar", "sub_.Scalar"], (X, 0.3)),
    **dict.fromkeys(["addcdiv_", "addcmul_", "lerp.Tensor"], (X, Y, Y)),
    **dict.fromkeys(["index_put_"], (X, [PLACES], Y)),
    **dict.fromkeys(["scatter_.src", "scatter_add_"], (X, 0, torch.zeros(2, 3, dtype=torch.int64), Y)),
    **dict.fromkeys(
        [
            "_foreach_add.Scalar",
            "_foreach_add_.Scalar",
            "_foreach_div.Scalar",
            "_foreach_div_.Scalar",
            "_foreach_mul.Scalar",
            "_foreach_mul_.Scalar",
            "_foreach_pow.Scalar",
            "_foreach_sub.Scalar",
            "_foreach_sub_.Scalar",
            "_foreach_clamp_max_.Scalar",
            "_foreach_clamp_min_.Scalar",
            "_foreach_pow_.Scalar",
        ],
        (rows(), 0.3),
    ),
    **dict.fromkeys(
        [
            "_foreach_add.List",
            "_foreach_add_.List",
            "_foreach_div.List",
            "_foreach_div_.List",
            "_foreach_mul.List",
            "_foreach_mul_.List",
            "_foreach_sub.List",
            "_foreach_sub_.List",
            "_foreach_maximum_.List",
            "_foreach_copy_",
        ],
        (rows(), rows(7)),
    ),
    **dict.fromkeys(
        [
            "_foreach_abs",
            "_foreach_abs_",
            "_foreach_neg",
            "_foreach_neg_",
            "_foreach_reciprocal_",
            "_foreach_rsqrt_",
            "_foreach_sign_",
            "_foreach_sqrt",
            "_foreach_sqrt_",
            "_foreach_zero_",
        ],
        (rows(),),
    ),
    **dict.fromkeys(
        ["_foreach_addcdiv_.Scalar", "_foreach_addcmul.Scalar", "_foreach_addcmul_.Scalar"],
        (rows(), rows(3), rows(6), 0.5),
    ),
    **dict.fromkeys(
        ["_foreach_addcdiv_.ScalarList", "_foreach_addcmul_.ScalarList"], (rows(), rows(3), rows(6), NUMBERED)
    ),
    **dict.fromkeys(["_fused_adam_", "_fused_adamw_"], (rows(), rows(3), rows(6), rows(9), [], STEPS, ADAM)),
    "_foreach_add_.Tensor": (STEPS, torch.ones(())),
    **dict.fromkeys(
        ["_foreach_add_.ScalarList", "_foreach_div_.ScalarList", "_foreach_mul.ScalarList", "_foreach_mul_.ScalarList"],
        (rows(), NUMBERED),
    ),
    "_foreach_lerp_.ScalarList": (rows(), rows(3), NUMBERED),
    "_fused_adagrad_": (rows(), rows(3), rows(6), STEPS, ADAGRAD),
    "_foreach_lerp_.Scalar": (rows(), rows(3), 0.1),
    "_fused_sgd_": (rows(), rows(3), rows(6), SGD),
    "_native_batch_norm_legit.no_stats": (X, W, W, True, 0.1, 1e-5),
    "_scaled_dot_product_flash_attention_for_cpu": (*HEADS,),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (HEADS[0], *HEADS, *ATTENTION, 0.0, False),
    "_weight_norm_interface": (X, numbers(2, 1), 0),
    "bitwise_not_": (INTS,),
    "div.Scalar_mode": (X, 0.3, {"rounding_mode": "floor"}),
    "fill_.Tensor": (X, torch.ones(())),
    "index_copy_": (X, 0, PLACES, Y),
    "index_fill_.int_Scalar": (X, 0, PLACES, 1.0),
    "lerp_.Scalar": (X, Y, 0.1),
    "masked_fill_.Tensor": (X, MASK, torch.ones(())),
    "reflection_pad2d": (IMAGES, [1, 1, 1, 1]),
    "reflection_pad2d_backward": (numbers(1, 2, 6, 6), IMAGES, [1, 1, 1, 1]),
    "remainder.Scalar_Tensor": (2.0, X),
    "upsample_nearest2d": (IMAGES, [8, 8]),
    "upsample_nearest2d_backward": (numbers(1, 2, 8, 8), [8, 8], [1, 2, 4, 4]),
}
"""Arguments of operators that the database does not call; a dict at the end is of keyword arguments."""
ON_A_GPU = {f"aten._scaled_dot_product_{kind}_attention.default" for kind in ("cudnn", "efficient", "flash")} | {
    "aten._fused_rms_norm.default",
    "aten._fused_rms_norm_backward.default",
}
"""Operators that have kernels on a GPU alone."""


@pytest.mark.parametrize("name", BY_HAND)
def test_other_operators_compute_alone(name: str) -> None:
    full = f"aten.{name}" if "." in name else f"aten.{name}.default"
    arguments = BY_HAND[name]
    keywords = arguments[-1] if isinstance(arguments[-1], dict) else {}
    mode = Twice()
    with mode, torch.no_grad():
        operator(full)(*copied(arguments[: len(arguments) - bool(keywords)]), **keywords)
    assert mode.tried[full] == 1
    assert not mode.faults


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_all_operators_of_the_database_compute_alone() -> None:
    mode = try_database()
    by_hand = {f"aten.{name}" if "." in name else f"aten.{name}.default" for name in BY_HAND}
    assert not mode.faults
    assert not OPERATORS - set(mode.tried) - by_hand - ON_A_GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_root_mean_square_norm_on_a_gpu_computes_alone() -> None:
    x, weight = X.cuda(), W.cuda()
    mode = Twice()
    with mode, torch.no_grad():
        _, deviation = aten._fused_rms_norm.default(x, [3], weight, 1e-5)
        aten._fused_rms_norm_backward.default(x, x, [3], deviation, weight, [True, True])
    assert set(mode.tried) == {"aten._fused_rms_norm.default", "aten._fused_rms_norm_backward.default"}
    assert not mode.faults


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", ["cudnn", "efficient", "flash"])
def test_attention_on_a_gpu_computes_alone(kind: str) -> None:
    heads = [head.to("cuda", torch.bfloat16) for head in HEADS]
    extra = {"cudnn": (None, True), "efficient": (None, True), "flash": ()}[kind]
    mode = Twice()
    with mode, torch.no_grad():
        operator(f"aten._scaled_dot_product_{kind}_attention.default")(*heads, *extra)
    assert mode.tried
    assert not mode.faults


def test_attention_that_drops_out_does_not_compute_alone() -> None:
    for name, (place, allowed) in CONDITIONS.items():
        for value in (*allowed, encode_float(0.1)):
            arguments = tuple(value if index == place else [] for index in range(12))
            text = CallText(operator=name, arguments=arguments, results=(True,))
            assert computes_alone(text) == (value in allowed)


def test_what_draws_or_is_not_listed_does_not_compute_alone() -> None:
    for name in ("aten.bernoulli_.float", "aten.native_dropout.default", "aten.rand.default", "mine.scan.default"):
        assert not computes_alone(CallText(operator=name, arguments=(), results=(True,)))


def test_atomic_additions_and_empty_tensors_have_no_bits_of_their_own() -> None:
    for name in OPERATORS:
        text = CallText(operator=name, arguments=(), results=(True,))
        assert has_same_bits(text, "cpu") == (name not in EMPTY)
        assert has_same_bits(text, "cuda") == (name not in EMPTY | ATOMIC)


def test_every_row_is_an_operator_of_torch() -> None:
    for name in OPERATORS:
        schema = operator(name)._schema
        changes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        assert not any(a.alias_info is not None and not a.alias_info.is_write for a in schema.returns)
        assert changes == (schema.name.endswith("_") or name == "aten._native_batch_norm_legit.default")
    assert LIST_OPERATORS | ATOMIC | EMPTY | {twin.operator for twin in TWINS.values()} <= OPERATORS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_twin_of_a_batch_norm_has_its_results(dtype: torch.dtype) -> None:
    batch = numbers(4, 3, 5).to(dtype)
    sides = [numbers(3, seed=seed).to(dtype) for seed in range(4)]
    whole = aten.native_batch_norm.default(batch, *sides, True, 0.1, 1e-5)
    twin = aten.native_batch_norm.default(batch, *sides[:2], None, None, True, 0.1, 1e-5)
    assert same(whole, twin)
    functional = aten._native_batch_norm_legit.default(batch, *sides, True, 0.1, 1e-5)
    assert same(functional, aten._native_batch_norm_legit.no_stats(batch, *sides[:2], True, 0.1, 1e-5))


def dropout_text(p: Any, train: Any = True) -> CallText:
    return CallText(operator="aten.native_dropout.default", arguments=([TENSOR, 0], p, train), results=(True, True))


def specials(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Infinities, NaNs of both signs, zeros of both signs, the least and the greatest, among other numbers."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64).to(dtype)
    kinds = torch.finfo(dtype)
    rows = [float("inf"), -float("inf"), float("nan"), -0.0, 0.0, kinds.max, -kinds.max, kinds.tiny, kinds.tiny / 4]
    few = torch.tensor(rows, dtype=torch.float64).to(dtype)[: count // 2]
    x[: len(few)] = few
    x[count - len(few) :] = few.flip(0)
    return torch.where(torch.arange(count) % 7 == 3, -x, x)


def has_bits_of_its_twin(p: float, dtype: torch.dtype, count: int, device: str) -> bool:
    x = specials(dtype, count).to(device)
    scale = twin_scale(encode_float(p), device)
    assert scale is not None
    torch.manual_seed(count)
    out, mask = aten.native_dropout.default(x, p, True)
    state, before = torch.get_rng_state(), copied((x, mask))
    twin = aten.native_dropout_backward.default(x, mask, scale)
    return same((x, mask), before) and torch.equal(state, torch.get_rng_state()) and same(out.cpu(), twin.cpu())


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WITH_TWIN = {"cpu": (0.0, 0.2, 0.5, 0.75, 0.9), "cuda": (0.0, 0.1, 0.2, 0.25, 0.3, 0.5, 0.9)}
COUNTS = (1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 65, 127, 1000, 4099)


@pytest.mark.parametrize("dtype", FLOATS)
def test_twin_of_a_dropout_has_its_result(dtype: torch.dtype) -> None:
    assert all(has_bits_of_its_twin(p, dtype, count, "cpu") for p in WITH_TWIN["cpu"] for count in COUNTS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", FLOATS)
def test_twin_of_a_dropout_has_its_result_on_a_gpu(dtype: torch.dtype) -> None:
    assert all(has_bits_of_its_twin(p, dtype, count, "cuda") for p in WITH_TWIN["cuda"] for count in (*COUNTS, 1 << 21))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_dropout_has_a_twin_while_it_trains_and_both_multiply_by_one_number(target: str) -> None:
    for p in WITH_TWIN[target]:
        scale = twin_scale(encode_float(p), target)
        assert scale is not None
        kept = 1 - torch.tensor(p, dtype=torch.float64)
        for dtype in (torch.bfloat16, torch.float16) if target == "cpu" else ():
            assert torch.tensor(scale).to(dtype).float() == torch.tensor(scale)
        if target == "cuda":
            assert torch.tensor(scale) == (1 / kept.float().double()).float() == (1 / kept).float()
        assert has_twin(dropout_text(encode_float(p)), target)
        assert has_twin(dropout_text(encode_float(p), []), target)
        assert not has_twin(dropout_text(encode_float(p), train=False), target)
    for p in (0.04, 0.15, 1.0, -0.5, 1.5, float("nan"), float("inf")):
        assert not has_twin(dropout_text(encode_float(p)), target)
    half = dropout_text(encode_float(0.5))
    for other in (
        dropout_text([NUMBER]),
        replace(half, results=(True, False)),
        replace(half, arguments=([TENSOR, 0],)),
    ):
        assert not has_twin(other, target)


def test_dropout_of_half_precision_has_other_bits_where_it_has_no_twin() -> None:
    """On a CPU, whose dropout rounds its scale to the type of its input."""
    x = torch.linspace(1, 2, 4096, dtype=torch.bfloat16)
    out, mask = aten.native_dropout.default(x, 0.1, True)
    assert not same(out, aten.native_dropout_backward.default(x, mask, 1 / (1 - 0.1)))
    assert twin_scale(encode_float(0.1), "cpu") is None
    assert twin_scale(encode_float(0.1), "cuda") == 1 / (1 - 0.1)
