"""Calls that lowerings do where the result belongs: the operator's bits, and nothing allocated for them."""

from typing import Any

import pytest
import torch

from tests.runtime.harness import same_bits
from tmmu.runtime.kernels.code import runnable_of
from tmmu.runtime.kernels.lowerings import LOWERINGS, SINGLE_PASS
from tmmu.runtime.kernels.overloads import arguments_by_name
from tmmu.runtime.steps.unplanned import count_allocations

aten = torch.ops.aten


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


IDS = torch.tensor([[1, 3, 3], [0, 5, 1]])
ONE_ROW = torch.tensor([[1, 3, 0, 3]]).expand(5, 4)
CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "embedding": (aten.embedding.default, (rand(6, 4), IDS)),
    "embedding of one row for all": (aten.embedding.default, (rand(6, 4), ONE_ROW)),
    "embedding of part of a row": (aten.embedding.default, (rand(6, 4), IDS[:, :2])),
    "embedding gradient": (aten.embedding_dense_backward.default, (rand(2, 3, 4), IDS, 6, -1, False)),
    "embedding gradient, padded": (aten.embedding_dense_backward.default, (rand(2, 3, 4), IDS, 6, 3, False)),
    "embedding gradient, first padded": (aten.embedding_dense_backward.default, (rand(2, 3, 4), IDS, 6, 0, False)),
    "slice gradient": (aten.slice_backward.default, (rand(2, 3), [2, 9], 1, 2, 5, 1)),
    "slice gradient by steps": (aten.slice_backward.default, (rand(2, 3), [2, 9], 1, 1, 9, 3)),
    "slice gradient from the end": (aten.slice_backward.default, (rand(2, 3), [2, 9], -1, -3, 2**63 - 1, 1)),
    "select gradient": (aten.select_backward.default, (rand(2, 3), [2, 4, 3], 1, -1)),
    "halves joined": (aten.cat.default, ([rand(2, 4, 8)[..., 4:].neg(), rand(2, 4, 8)[..., :4]], -1)),
    "rows joined": (aten.cat.default, ([rand(4, 2).t(), rand(3, 4), rand(0, 4)],)),
    "mean of rows": (aten.mean.dim, (rand(3, 5, 64), [-1], True)),
    "mean of two axes": (aten.mean.dim, (rand(3, 5, 7), [0, 2])),
    "mean of all": (aten.mean.dim, (rand(3, 5), None)),
    "mean of doubles": (aten.mean.dim, (rand(3, 50).double(), [1])),
}
REFUSED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "embedding of scattered indices": (aten.embedding.default, (rand(6, 4), IDS.t())),
    "embedding of many rows": (aten.embedding.default, (rand(6, 4), ONE_ROW[:1].expand(99, 4))),
    "embedding gradient by frequency": (aten.embedding_dense_backward.default, (rand(2, 3, 4), IDS, 6, -1, True)),
    "embedding gradient of short floats": (
        aten.embedding_dense_backward.default, (rand(2, 3, 4).bfloat16(), IDS, 6, -1, False),
    ),
    "joined as they lie": (aten.cat.default, ([rand(2, 4), rand(2, 4)],)),
    "joined of another dtype": (aten.cat.default, ([rand(4, 2).t(), rand(3, 4).double()],)),
    "many joined": (aten.cat.default, ([rand(4, 2).t()] * 9,)),
    "mean of short floats": (aten.mean.dim, (rand(2, 64).bfloat16(), [1])),
    "embedding gradient of scattered indices": (
        aten.embedding_dense_backward.default, (rand(3, 2, 4), IDS.t(), 6, -1, False),
    ),
}  # fmt: skip


def lower(call: tuple[Any, tuple[Any, ...]], place: torch.Tensor) -> Any:
    operator, args = call
    return LOWERINGS[str(operator)](arguments_by_name(operator, args, {}), place)


@pytest.mark.parametrize("name", CASES)
def test_lowerings_write_the_bits_of_the_operator_into_the_result(name: str) -> None:
    operator, args = CASES[name]
    whole = operator(*args)
    place = torch.full_like(whole, float("nan"))
    code = lower(CASES[name], place)
    assert code is not None
    run = runnable_of(code)
    with count_allocations() as counter:
        run()
        run()
    assert same_bits(whole, place)
    assert max(counter.peak.values(), default=0) < 64


@pytest.mark.parametrize("name", REFUSED)
def test_lowerings_that_would_round_otherwise_or_take_too_many_calls_do_not_apply(name: str) -> None:
    operator, args = REFUSED[name]
    assert lower(REFUSED[name], torch.empty_like(operator(*args))) is None


ON_ARGUMENT: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "aten._to_copy.default": (aten._to_copy.default, (rand(3, 5),)),
    "aten.clone.default": (aten.clone.default, (rand(3, 5),)),
    "aten.relu.default": (aten.relu.default, (rand(3, 5),)),
    "aten.add.Scalar": (aten.add.Scalar, (rand(3, 5), 0.3, 2)),
    "aten.sub.Scalar": (aten.sub.Scalar, (rand(3, 5), 0.3, 2)),
    "aten.mul.Scalar": (aten.mul.Scalar, (rand(3, 5), 0.3)),
    "aten.div.Scalar": (aten.div.Scalar, (rand(3, 5), 0.3)),
}


@pytest.mark.parametrize("name", sorted(SINGLE_PASS))
def test_single_pass_lowerings_may_write_on_their_argument(name: str) -> None:
    operator, args = ON_ARGUMENT[name]
    whole = operator(*args)
    place = args[0].clone()
    code = lower((operator, (place, *args[1:])), place)
    assert code is not None
    runnable_of(code)()
    assert same_bits(whole, place)


@pytest.mark.parametrize("name", sorted(LOWERINGS.keys() & ON_ARGUMENT.keys()))
def test_lowerings_that_may_write_on_their_argument_are_listed(name: str) -> None:
    """Otherwise their results are allocated and copied wherever the plan lets them take over an argument."""
    assert name in SINGLE_PASS
