"""Where fake kernels are not real ones, the capture follows the real ones."""

import pytest
import torch
from torch import nn

from tests.kernels import plain_kernels
from tests.runtime.harness import Tensors, bound, captured, eager, same_bits
from tmmu.errors import CaptureFailed


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Conjugates(nn.Module):
    """Views that put their work off: of a window there is nothing left to say so."""

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


class Grouped(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(x, weight, offs=ends)


def test_what_a_lazy_view_puts_off_is_done() -> None:
    inputs = {"x": rand(3, 4, 2)}
    found, wanted = bound(Conjugates, Conjugates(), inputs)(**inputs), eager(Conjugates(), inputs)
    assert len(found) == len(wanted)
    assert all(map(same_bits, found, wanted))


def test_gradients_through_complex_numbers_are_the_modules() -> None:
    inputs, real = {"x": rand(3, 4)}, Turning()
    executor = bound(Turning, real, inputs, mode="backward", preset="train_full")
    loss = real(**inputs)
    loss.backward()
    _, gradient = executor(**inputs)
    assert same_bits(gradient, real.weight.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("left", "right"), [((8, 16), (2, 16, 8)), ((2, 8, 16), (16, 8)), ((8, 16), (16, 8))])
def test_grouped_products_are_planned_in_each_dtype_that_runs(
    dtype: torch.dtype, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    inputs: Tensors = {"x": rand(*left).to(dtype), "weight": rand(*right).to(dtype)}
    inputs["ends"] = torch.tensor([4, 16 if len(left) == len(right) else 8], dtype=torch.int32)
    with plain_kernels():
        (found,), (wanted,) = bound(Grouped, Grouped(), inputs)(**inputs), eager(Grouped(), inputs)
    assert same_bits(found, wanted)


def test_a_grouped_product_of_two_dtypes_is_refused() -> None:
    inputs = {"x": rand(8, 16), "weight": rand(2, 16, 8).half(), "ends": torch.tensor([4, 8], dtype=torch.int32)}
    with pytest.raises(CaptureFailed, match="float32 and"):
        captured(Grouped, inputs)
