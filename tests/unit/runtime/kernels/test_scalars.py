"""Numbers become tensors only where every bit stays."""

from itertools import product
from typing import Any

import pytest
import torch

from tmmu.runtime.kernels.code import instruction, runnable_of

aten = torch.ops.aten
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
NUMBERS: tuple[Any, ...] = (2, 0.1, 1e-3, True, 2**40, -7, 3.0)
SHAPES = ((3,), (), (2, 2))


@pytest.mark.parametrize("operator", ["add", "mul", "div", "sub", "pow", "remainder", "maximum"])
def test_scalar_promotion_keeps_the_bits_of_the_number(operator: str) -> None:
    promoted = 0
    for dtype, number, shape in product(DTYPES, NUMBERS, SHAPES):
        x = (torch.rand(shape) * 50).to(dtype)
        packet = getattr(aten, operator)
        name = "Tensor_Tensor_out" if operator == "pow" else "Tensor_out" if operator == "remainder" else "out"
        overload = getattr(packet, name)
        try:
            expected = torch.empty_like(getattr(torch, operator)(x, number))
            overload(x, number, out=expected)
        except (RuntimeError, TypeError):
            continue
        out = torch.empty_like(expected)
        code = instruction(overload, x, number, out=out)
        promoted += isinstance(code.args[1], torch.Tensor)
        runnable_of((code,))()
        assert out.dtype == expected.dtype
        assert torch.equal(out.view(-1).view(torch.uint8), expected.view(-1).view(torch.uint8)), (dtype, number, shape)
    assert promoted > 20 or operator not in ("add", "mul", "div", "sub")


def test_scalars_stay_numbers_where_no_tensor_of_the_result_dtype_has_axes() -> None:
    out = torch.empty(())
    assert instruction(aten.add.out, torch.ones(()), 2.5, out=out).args[1] == 2.5
    whole = torch.ones(3, dtype=torch.int64)
    assert instruction(aten.mul.out, whole, 2.5, out=torch.empty(3)).args[1] == 2.5


def test_scalars_of_short_floats_keep_full_precision() -> None:
    x = torch.ones(3, dtype=torch.bfloat16)
    scalar = instruction(aten.mul.out, x, 0.1, out=torch.empty_like(x)).args[1]
    assert (scalar.dtype, scalar.item()) == (torch.float64, 0.1)


@pytest.mark.parametrize("operator", ["add_", "mul_", "div_", "sub_", "remainder_"])
def test_in_place_calls_keep_the_bits_of_the_number(operator: str) -> None:
    promoted = 0
    overload = getattr(aten, operator).Tensor
    for dtype, number, shape in product(DTYPES, NUMBERS, SHAPES):
        before = (torch.rand(shape) * 50).to(dtype)
        expected, actual = before.clone(), before.clone()
        try:
            getattr(expected, operator)(number)
        except RuntimeError:
            continue
        code = instruction(overload, actual, number)
        promoted += isinstance(code.args[1], torch.Tensor)
        runnable_of((code,))()
        assert torch.equal(actual.view(-1).view(torch.uint8), expected.view(-1).view(torch.uint8)), (
            dtype,
            number,
            shape,
        )
    assert promoted > 20


def test_int64_scalars_become_tensors_without_axes() -> None:
    count = torch.tensor(5)
    step = instruction(aten.add_.Tensor, count, 1)
    assert isinstance(step.args[1], torch.Tensor)
    runnable_of((step,))()
    assert count.item() == 6
    assert instruction(aten.add_.Tensor, torch.tensor(5.0), 1).args[1] == 1
    assert instruction(aten.add_.Tensor, torch.tensor(5, dtype=torch.int32), 1).args[1] == 1


def test_arguments_with_as_many_elements_get_the_shape_of_the_result() -> None:
    x, weight, out = torch.rand(1, 1, 6), torch.rand(6), torch.empty(1, 1, 6)
    step = instruction(aten.mul.out, weight, x, out=out)
    assert step.args[0].shape == out.shape
    assert step.args[0].data_ptr() == weight.data_ptr()
    runnable_of((step,))()
    assert out.equal(weight * x)
    result = torch.empty(1, 1)
    for tensor, number in ((torch.rand(1, 1), 2.5), (torch.rand(1, 1), torch.tensor(0.1))):
        step = instruction(aten.add.out, tensor, number, out=result)
        assert step.args[1].shape == result.shape
        runnable_of((step,))()
        assert result.equal(tensor + number)


def test_arguments_that_promote_otherwise_or_have_gaps_keep_their_shape() -> None:
    short = torch.rand(1, 1).bfloat16()
    assert instruction(aten.mul.out, short, 0.1, out=torch.empty_like(short)).args[1].shape == ()
    assert instruction(aten.mul.out, short, torch.tensor(0.1), out=torch.empty_like(short)).args[1].shape == ()
    strided = torch.rand(12)[::2]
    assert instruction(aten.mul.out, strided, torch.rand(1, 6), out=torch.empty(1, 6)).args[0].shape == (6,)
    wide = torch.rand(2, 3)
    assert instruction(aten.mul.out, torch.rand(3), wide, out=torch.empty_like(wide)).args[0].shape == (3,)
