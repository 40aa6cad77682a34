"""A model that resizes, frees or swaps storages: eager's bits, no fault of the sanitizer, or a refusal by name."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import TOKEN, capture_program, plan_of, run_eager, same_bits, weights_of
from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind import bind

Tensor = torch.Tensor


def shrinks(x: Tensor, y: Tensor, w: Tensor) -> Any:
    y.resize_(2, 8)
    return y + 1


def shrinks_to_another_shape(x: Tensor, y: Tensor, w: Tensor) -> Any:
    y.resize_(2, 16)
    return y + 1


def grows(x: Tensor, y: Tensor, w: Tensor) -> Any:
    z = y + 1
    y.resize_(6, 8)
    y.zero_()
    return z, y


def grows_after_shrinking(x: Tensor, y: Tensor, w: Tensor) -> Any:
    y.resize_(2, 8)
    z = y + 1
    y.resize_(6, 8)
    y.zero_()
    return z, y


def grows_with_what_it_held_and_its_views(x: Tensor, y: Tensor, w: Tensor) -> Any:
    z, view = y + 1, y[1:]
    y.resize_(6, 8)
    y[4:].zero_()
    view.add_(3)
    return z, y, view


def grows_under_a_view_of_another_dtype(x: Tensor, y: Tensor, w: Tensor) -> Any:
    numbers = y.view(torch.int32)
    y.resize_(8, 8)
    y[4:].fill_(0)
    return numbers + 1, y


def frees_and_fills_again(x: Tensor, y: Tensor, w: Tensor) -> Any:
    z = y + 1
    y.untyped_storage().resize_(0)
    q = z * 2
    y.untyped_storage().resize_(128)
    y.fill_(2)
    return z, y, q


def points_elsewhere(x: Tensor, y: Tensor, w: Tensor) -> Any:
    z = x * 3
    y.set_(z)
    y.add_(1)
    return y, z * 1


def takes_other_data(x: Tensor, y: Tensor, w: Tensor) -> Any:
    y.data = x * 5
    return y + 1


def resizes_a_result_argument(x: Tensor, y: Tensor, w: Tensor) -> Any:
    out = torch.empty(0)
    torch.add(x, 1, out=out)
    return out * 2


def transposes_in_place(x: Tensor, y: Tensor, w: Tensor) -> Any:
    y.t_()
    y.unsqueeze_(0)
    z = y + 1
    y.squeeze_(0)
    y.add_(1)
    return y, z


def resizes_to_its_own_shape(x: Tensor, y: Tensor, w: Tensor) -> Any:
    return x.resize_(4, 8) + y


def cuts_an_input_for_a_while(x: Tensor, y: Tensor, w: Tensor) -> Any:
    x.resize_(2, 8)
    x.fill_(3)
    z = x + 1
    x.resize_(4, 8)
    return z, x * 2


def transposes_an_input_and_cuts_it(x: Tensor, y: Tensor, w: Tensor) -> Any:
    x.t_()
    x.unsqueeze_(0)
    z = x + 1
    x.squeeze_(0)
    x.t_()
    x.resize_(3, 8)
    v = x + y[:3]
    x.resize_(4, 8)
    return z, v, x + y


class Body(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body, self.w = body, nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Any:
        return self.body(x, x * 1, self.w)


@pytest.mark.parametrize(
    "body",
    [
        shrinks,
        shrinks_to_another_shape,
        grows,
        grows_after_shrinking,
        grows_with_what_it_held_and_its_views,
        grows_under_a_view_of_another_dtype,
        frees_and_fills_again,
        points_elsewhere,
        takes_other_data,
        resizes_a_result_argument,
        transposes_in_place,
        resizes_to_its_own_shape,
        cuts_an_input_for_a_while,
        transposes_an_input_and_cuts_it,
    ],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_storage_that_changes_has_the_bits_of_eager_in_every_run(body: Callable[..., Any]) -> None:
    make, real, inputs = partial(Body, body), Body(body), {"x": torch.randn(4, 8)}
    program, constants = capture_program(make, inputs)
    weights = constants | weights_of(real)
    executor = bind(program, plan_of(program), token=TOKEN, weights=weights)
    for _ in range(2):  # a view that a step resized would be another one in the next run
        for mine, eager in zip(executor(**inputs), run_eager(real, inputs), strict=True):
            assert same_bits(mine, eager)
    report = run_sanitized(program, executor, weights, inputs, token=TOKEN)
    assert report.ops == len(program.graph.ops.target)


def test_a_freed_storage_ends_its_buffer() -> None:
    """Between ``resize_(0)`` and growing again its bytes serve others: the plan is smaller than two such tensors."""

    def frees(x: Tensor, y: Tensor, w: Tensor) -> Any:
        z = y @ y.t()
        y.untyped_storage().resize_(0)
        z = z @ z
        z = z @ z
        y.untyped_storage().resize_(128)
        y.fill_(2)
        return z.sum() + y.sum()

    program, _ = capture_program(partial(Body, frees), {"x": torch.randn(4, 8)})
    filled = [op for op, target in enumerate(program.graph.ops.target) if target.startswith("aten.fill_")]
    product = program.graph.ops.target.index("aten.mm.default")
    buffer_of = program.graph.values.buffer
    assert buffer_of[program.graph.ops.writes[filled[0]][0]] != buffer_of[program.graph.ops.reads[product][0]]


def frees_an_input(x: Tensor, y: Tensor, w: Tensor) -> Any:
    x.untyped_storage().resize_(0)
    return y + 1


def frees_a_weight(x: Tensor, y: Tensor, w: Tensor) -> Any:
    w.untyped_storage().resize_(0)
    return y + 1


def swaps_a_weight(x: Tensor, y: Tensor, w: Tensor) -> Any:
    w.set_(x[0])  # type: ignore[call-overload]
    return y * w


def swaps_the_data_of_a_weight(x: Tensor, y: Tensor, w: Tensor) -> Any:
    w.data = x[0] * 2
    return y * w


def grows_an_input(x: Tensor, y: Tensor, w: Tensor) -> Any:
    x.resize_(9, 9)
    return x + 1


def transposes_an_input(x: Tensor, y: Tensor, w: Tensor) -> Any:
    x.t_()
    return x + 1


def leaves_an_input_cut(x: Tensor, y: Tensor, w: Tensor) -> Any:
    x.resize_(2, 8)
    z = x + 1
    x.resize_(3, 8)
    return z


def puts_back_the_shape_alone(x: Tensor, y: Tensor, w: Tensor) -> Any:
    x.t_()
    z = x + 1
    x.resize_(4, 8)
    x.as_strided_((4, 8), (1, 4))
    return z


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (frees_an_input, r"resize_ of a storage changes where input x"),
        (frees_a_weight, r"resize_ of a storage changes where parameter w"),
        (swaps_a_weight, r"aten.set_.source_Tensor changes where parameter w"),
        (swaps_the_data_of_a_weight, r"gives w other memory"),
        (grows_an_input, r"aten.resize_.default changes where input x"),
        (transposes_an_input, r"aten.t_.default changes where input x"),
        (leaves_an_input_cut, r"aten.resize_.default changes where input x .*let it lie as before"),
        (puts_back_the_shape_alone, r"aten.t_.default changes where input x"),
    ],
)
def test_what_moves_the_callers_own_tensor_is_refused_by_name(body: Callable[..., Any], message: str) -> None:
    with pytest.raises(UnsupportedOp, match=message) as refusal:
        capture_program(partial(Body, body), {"x": torch.randn(4, 8)})
    if body is not swaps_the_data_of_a_weight:  # which is no call, and has no line
        assert re.match(r"\S*test_storage_changes.py:\d+: ", refusal.value.what)


def test_a_tensor_whose_storage_was_freed_is_refused_when_it_is_used() -> None:
    def reads_freed(x: Tensor, y: Tensor, w: Tensor) -> Any:
        y.untyped_storage().resize_(0)
        return y + 1

    with pytest.raises(CaptureFailed, match=r"test_storage_changes.py:\d+: a tensor is used whose storage was freed"):
        capture_program(partial(Body, reads_freed), {"x": torch.randn(4, 8)})
