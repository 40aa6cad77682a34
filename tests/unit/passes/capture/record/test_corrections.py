"""Where fake kernels are not real ones, the capture follows the real ones."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.kernels import plain_kernels
from tests.runtime.harness import Tensors, bind_module, capture_program, randomize, run_eager, same_bits
from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.passes.capture.record.corrections.lstm import recurrent_workspace
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.trace import fake_environment


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Conjugates(nn.Module):
    """Views that put their work off until they are read."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        turned = torch.view_as_complex(x).conj()
        spectrum = torch.fft.ifft(torch.fft.rfft(x[..., 0]).conj())
        return [
            torch.view_as_real(turned * turned.conj()), torch.view_as_real(turned.resolve_conj()), turned.imag,
            turned.imag + 1, torch._neg_view(x) * 2, torch.view_as_real(turned + 1), turned.clone().imag,
            torch.view_as_real(spectrum),
        ]  # fmt: skip


class Turning(nn.Module):
    """A rotation by complex numbers, whose gradient conjugates them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(rand(3, 4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(self.weight) * torch.polar(torch.ones_like(x), x)
        return torch.view_as_real(turned).square().mul(torch.arange(24.0).view(3, 4, 2)).sum()


class Spectrum(nn.Module):
    """Numbers without vectors, which eager computes by another algorithm than with them."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        square = x @ x.mH
        values = torch.linalg.eigvals(square)
        return [
            torch.linalg.svdvals(x), torch.linalg.eigvalsh(square), torch.linalg.eigvalsh(square, "U"),
            values.abs(), torch.linalg.cond(x), torch.linalg.matrix_norm(x, "nuc"), torch.linalg.matrix_rank(x),
        ]  # fmt: skip


class SpectralLoss(Spectrum):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return sum(value.sum() for value in super().forward(x)[:-1])  # type: ignore[return-value]


class Grouped(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(x, weight, offs=ends)


def test_lazy_conjugates_and_negatives_have_eagers_bits() -> None:
    inputs = {"x": rand(3, 4, 2)}
    results, expected = bind_module(Conjugates, Conjugates(), inputs)(**inputs), run_eager(Conjugates(), inputs)
    assert len(results) == len(expected)
    assert all(map(same_bits, results, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_spectra_without_vectors_have_eagers_bits(dtype: torch.dtype) -> None:
    inputs = {"x": torch.randn(5, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))}
    results, expected = bind_module(Spectrum, Spectrum(), inputs)(**inputs), run_eager(Spectrum(), inputs)
    assert len(results) == len(expected)
    assert all(map(same_bits, results, expected))


def test_gradients_of_spectra_have_eagers_bits() -> None:
    inputs = {"x": rand(5, 6).requires_grad_()}
    executor = bind_module(SpectralLoss, SpectralLoss(), inputs, mode="backward", preset="train_full")
    SpectralLoss()(**inputs).backward()
    _, gradient = executor(x=inputs["x"].detach())
    assert inputs["x"].grad is not None
    assert same_bits(gradient, inputs["x"].grad)


def test_gradients_through_complex_numbers_have_eagers_bits() -> None:
    inputs, real = {"x": rand(3, 4)}, Turning()
    executor = bind_module(Turning, real, inputs, mode="backward", preset="train_full")
    loss = real(**inputs)
    loss.backward()
    _, gradient = executor(**inputs)
    assert real.weight.grad is not None
    assert same_bits(gradient, real.weight.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("left", "right"), [((8, 16), (2, 16, 8)), ((2, 8, 16), (16, 8)), ((8, 16), (16, 8))])
def test_grouped_products_are_planned_in_each_dtype_that_runs(
    dtype: torch.dtype, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    inputs: Tensors = {"x": rand(*left).to(dtype), "weight": rand(*right).to(dtype)}
    inputs["ends"] = torch.tensor([4, 16 if len(left) == len(right) else 8], dtype=torch.int32)
    with plain_kernels():
        (results,), (expected,) = bind_module(Grouped, Grouped(), inputs)(**inputs), run_eager(Grouped(), inputs)
    assert same_bits(results, expected)


class EmptyLoss(nn.Linear):
    def __init__(self, loss: Any) -> None:
        super().__init__(4, 4)
        self.loss = loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(super().forward(x)[:0], x[:0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.SmoothL1Loss(), nn.HuberLoss()])
def test_means_of_no_elements_have_gradients(loss: nn.Module) -> None:
    real, inputs = EmptyLoss(loss), {"x": rand(2, 4)}
    executor = bind_module(partial(EmptyLoss, loss), real, inputs, mode="backward", preset="train_full")
    real(**inputs).backward()
    value, *gradients = executor(**inputs)
    assert value.isnan()
    assert real.weight.grad is not None
    assert any(same_bits(gradient, real.weight.grad) for gradient in gradients)


def test_grouped_product_of_two_dtypes_is_refused() -> None:
    inputs = {"x": rand(8, 16), "weight": rand(2, 16, 8).half(), "ends": torch.tensor([4, 8], dtype=torch.int32)}
    with pytest.raises(CaptureFailed, match="float32 and"):
        capture_program(Grouped, inputs)


class Rounding(nn.Module):
    """Numbers as a quantized network would have them, in plain tensors."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        scale, zero = torch.full((4,), 0.1), torch.zeros(4, dtype=torch.int32)
        return [
            torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
            torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -128, 127),
            torch.fake_quantize_per_tensor_affine(x, scale[0], zero[0], 0, 255),
        ]


def test_fake_quantization_is_planned() -> None:
    inputs = {"x": rand(3, 4)}
    results, expected = bind_module(Rounding, Rounding(), inputs)(**inputs), run_eager(Rounding(), inputs)
    assert len(results) == len(expected)
    assert all(map(same_bits, results, expected))


QUANTIZING = {
    "by tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "by a keyword": lambda x: torch._empty_affine_quantized(x.shape, scale=0.1, zero_point=0, dtype=torch.quint8),
    "by channel": lambda x: torch.quantize_per_channel(x, torch.ones(4), torch.zeros(4), 1, torch.qint8),
    "as it comes": lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, reduce_range=False),
}


class Quantizing(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.quantized = QUANTIZING[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quantized(x).dequantize()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", QUANTIZING)
def test_quantized_tensors_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedOp, match="quantized tensor"):
        capture_program(lambda: Quantizing(name), {"x": rand(3, 4)})


class Recurrent(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 20, 2, **options, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0].sum()  # type: ignore[no-any-return]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "both ways": {"bidirectional": True, "bias": False},
    "batch first": {"batch_first": True, "dropout": 0.5},
    "projected": {"proj_size": 4},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_recurrent_layers_and_their_gradients_have_eagers_bits(options: dict[str, Any]) -> None:
    inputs = {"x": rand(5, 3, 8)}
    make, real = partial(Recurrent, **options), randomize(Recurrent(**options)).train()
    executor = bind_module(make, real, inputs, mode="backward", preset="train_full")
    torch.manual_seed(0)
    real(**inputs).backward()
    torch.manual_seed(0)
    _, *gradients = executor(**inputs)
    assert len(gradients) == len(list(real.parameters()))
    expected = [parameter.grad for parameter in real.parameters()]
    assert all(any(same_bits(g, e) for e in expected if e is not None and e.shape == g.shape) for g in gradients)


def test_half_precision_is_planned_alike_on_every_processor() -> None:
    program, _ = capture_program(lambda: Recurrent(torch.bfloat16), {"x": rand(5, 3, 8).bfloat16()})
    assert "aten.mkldnn_rnn_layer.default" not in program.graph.ops.target


def test_switched_off_library_is_left_out() -> None:
    with plain_kernels():
        program, _ = capture_program(Recurrent, {"x": rand(5, 3, 8)})
    assert "aten.mkldnn_rnn_layer.default" not in program.graph.ops.target


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (10, 4, 8, 16), (5, 7, 13, 33), (33, 1, 16, 16), (3, 2, 300, 64), (2, 5, 256, 256)]
)
def testrecurrent_workspace_has_the_bytes_of_the_real_one(shape: tuple[int, int, int, int]) -> None:
    steps, rows, features, hidden = shape
    x, state = rand(steps, rows, features), torch.zeros(1, rows, hidden)
    weights = [rand(4 * hidden, features), rand(4 * hidden, hidden), rand(4 * hidden), rand(4 * hidden)]
    options = (state, state, False, [], 2, hidden, 1, True, False, False, True)
    workspace = torch.ops.aten.mkldnn_rnn_layer(x, *weights, *options)[3]
    planned = recurrent_workspace(x, *weights)
    assert planned is not None
    assert (planned.shape, planned.dtype) == (workspace.shape, workspace.dtype)
    with torch.no_grad():
        assert torch.ops.aten.mkldnn_rnn_layer(x, *weights, *options)[3] is recurrent_workspace(x, *weights) is None


class Contraction(nn.Module):
    """A product whose result is a factor again, with axes of one element."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        summed = torch.einsum("bclsh,bcshp->bclhp", x, y)
        return torch.einsum("bclhp,bclsh->bchps", summed, x)


def test_axes_of_one_element_have_eagers_strides() -> None:
    inputs = {"x": rand(2, 1, 64, 64, 32), "y": rand(2, 1, 64, 32, 1)}
    (result,), (expected,) = bind_module(Contraction, Contraction(), inputs)(**inputs), run_eager(Contraction(), inputs)
    assert same_bits(result, expected)
    with fake_environment("cpu"), Recorder(folder=""):
        planned = turned_view()
    assert planned.stride() == turned_view().stride()


aten = torch.ops.aten
LAID_OUT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "binary": lambda g, x: aten.binary_cross_entropy_backward.default(g, x, g, None, 0),
    "copysign": aten.copysign.Tensor,
    "dropout": lambda g, x: aten.native_dropout_backward.default(g, x > 0, 2.0),
    "elu": lambda g, x: aten.elu_backward.default(g, 1, 1, 1, False, x),
    "floor_divide": aten.floor_divide.default,
    "gamma": lambda g, x: aten._standard_gamma.default(x.abs()),
    "hardsigmoid": aten.hardsigmoid_backward.default,
    "hardswish": aten.hardswish_backward.default,
    "hardtanh": lambda g, x: aten.hardtanh_backward.default(g, x, -1, 1),
    "huber": lambda g, x: aten.huber_loss_backward.default(g, x, g, 0, 1.0),
    "isin": aten.isin.Tensor_Tensor,
    "log_softmax": lambda g, x: aten._log_softmax_backward_data.default(g, x, 1, torch.float32),
    "logit": lambda g, x: aten.logit_backward.default(g, x, 0.1),
    "mse": lambda g, x: aten.mse_loss_backward.default(g, x, g, 0),
    "normal": lambda g, x: torch.normal(g, x.abs()),
    "poisson": lambda g, x: torch.poisson(x.abs()),
    "pow": lambda g, x: torch.pow(2.0, x),
    "smooth_l1": lambda g, x: aten.smooth_l1_loss_backward.default(g, x, g, 0, 1.0),
    "softplus": lambda g, x: aten.softplus_backward.default(g, x, 1, 20),
    "xlog1py": torch.special.xlog1py,
    "xlogy": torch.xlogy,
}


@pytest.mark.parametrize("operator", LAID_OUT.values(), ids=LAID_OUT)
@pytest.mark.parametrize("turned", [(True, False), (False, True), (True, True)])
def test_results_are_laid_out_as_by_real_kernels(
    operator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], turned: tuple[bool, bool]
) -> None:
    def made() -> torch.Tensor:
        return operator(
            *(torch.rand(2, 4, 3).transpose(1, 2) if is_turned else torch.rand(2, 3, 4) for is_turned in turned)
        )

    with fake_environment("cpu"), Recorder(folder=""):
        planned = made()
    assert planned.stride() == made().stride()


AMBIGUOUS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "times a number": lambda x, y: y * 2,
    "to a power": lambda x, y: y.pow(2),
    "gelu": lambda x, y: torch.nn.functional.gelu(y),
    "gelu gradient": aten.gelu_backward.default,
    "relu gradient": lambda x, y: aten.threshold_backward.default(x, y, 0),
    "silu gradient": aten.silu_backward.default,
    "chosen": lambda x, y: torch.where(x > 0, x, y),
    "softplus gradient": lambda x, y: aten.softplus_backward.default(x, y, 1, 20),
    "batch norm": lambda x, y: aten.native_batch_norm.default(y, None, None, None, None, True, 0.1, 1e-5)[0],
    "broadcast": lambda x, y: x[0] * y,
    "cloned": lambda x, y: y.clone(),
}


@pytest.mark.parametrize("operator", AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.parametrize("shape", [(2, 6, 1, 1), (2, 1, 3, 4), (1, 6, 3, 1)])
def test_axes_of_one_element_do_not_decide_a_layout(
    operator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], shape: tuple[int, ...]
) -> None:
    def made() -> torch.Tensor:
        return operator(torch.rand(shape), torch.rand(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2))

    with fake_environment("cpu"), Recorder(folder=""):
        planned = made()
    assert planned.stride() == made().stride()


ELEMENTWISE: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "times a number": lambda a, b, c: a * 2,
    "number less": lambda a, b, c: 2 - a,
    "over a number": lambda a, b, c: a / 2,
    "above a number": lambda a, b, c: a > 2,
    "times no axes": lambda a, b, c: a * torch.ones(()),
    "negative": lambda a, b, c: a.neg(),
    "to a power": lambda a, b, c: a.pow(2),
    "relu": lambda a, b, c: a.relu(),
    "gelu": lambda a, b, c: torch.nn.functional.gelu(a),
    "clamped": lambda a, b, c: a.clamp(0),
    "sum": lambda a, b, c: a + b,
    "larger": lambda a, b, c: torch.maximum(a, b),
    "chosen": lambda a, b, c: torch.where(a > 0, b, c),
    "chosen or zero": lambda a, b, c: torch.where(a > 0, b, 0.0),
    "sum of products": torch.addcmul,
    "between": lambda a, b, c: torch.lerp(a, b, 0.5),
}


def windows_of_small_shapes(chance: random.Random) -> list[tuple[list[int], list[int]]]:
    """Three windows of one shape, or the second broadcast, with any strides along axes of one element."""
    shape = [chance.choice((1, 1, 2, 3)) for _ in range(chance.randint(1, 4))]
    windows = []
    for place in range(3):
        is_broadcast = place == 1 and chance.random() < 0.3
        sizes = [1 if is_broadcast and chance.random() < 0.4 else size for size in shape]
        order = chance.sample(range(len(sizes)), len(sizes)) if chance.random() < 0.7 else range(len(sizes))
        strides, step = [0] * len(sizes), 1
        for axis in reversed(order):
            strides[axis], step = step, step * sizes[axis]
        if chance.random() < 0.3:
            strides = [s if n > 1 else chance.choice((1, s, 7)) for n, s in zip(sizes, strides, strict=True)]
        windows.append((sizes, strides))
    return windows


@pytest.mark.parametrize("operator", ELEMENTWISE.values(), ids=ELEMENTWISE)
@pytest.mark.parametrize(
    "attempts", [60, pytest.param(1000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.long)]
)
def test_elementwise_results_have_the_strides_of_the_real_iterator(
    operator: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], attempts: int
) -> None:
    chance = random.Random(attempts)
    windows = [windows_of_small_shapes(chance) for _ in range(attempts)]

    real = [operator(*(torch.empty_strided(*window).fill_(1) for window in each)).stride() for each in windows]
    with fake_environment("cpu"), Recorder(folder=""):
        planned = [operator(*(torch.empty_strided(*window) for window in each)).stride() for each in windows]
    assert not [row for row in zip(windows, planned, real, strict=True) if row[1] != row[2]]


def turned_view() -> torch.Tensor:
    return torch.empty(2, 1, 8, 4, 1, 1).transpose(2, 3).view(2, 1, 4, 8, 1)


class Unpooled(nn.Module):
    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_unpool2d(x, positions, 2)


class Shuffled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.channel_shuffle(x, 2)


class Sigmoid(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.logsigmoid(x)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("make", [Unpooled, Shuffled, Sigmoid])
def test_results_have_the_strides_of_real_kernels(make: type[nn.Module], memory_format: torch.memory_format) -> None:
    x = rand(1, 2, 4, 6).to(memory_format=memory_format)
    inputs: Tensors = {"x": x}
    if make is Unpooled:
        inputs["x"], inputs["positions"] = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    (result,), (expected,) = bind_module(make, make(), inputs)(**inputs), run_eager(make(), inputs)
    assert same_bits(result, expected)
    assert result.stride() == expected.stride()
