"""A call becomes a step that is right even where the result lies on an argument, and moves nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tmmu.errors import InternalError
from tmmu.ir.calls import Call, Ref
from tmmu.runtime.bind import _tried
from tmmu.runtime.overloads import arguments_by_name, out_overload
from tmmu.runtime.slab import Slab, same_place
from tmmu.runtime.steps import Step, compile_step

aten = torch.ops.aten


def step(operator: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor], *results: int | None, **kw: Any) -> Step:
    call = Call(operator=operator, args=tuple(args), kwargs=tuple(kw.items()), results=results)
    return compile_step(call, tensors.__getitem__)


def grid(*rows: Sequence[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype)


def test_a_product_into_its_own_argument_is_copied() -> None:
    x = grid([1, 2], [3, 4])
    done = step(aten.mm.default, (Ref(0), Ref(0)), [x, x.detach()], 1)
    done.run()
    assert x.equal(grid([7, 10], [15, 22]))
    assert done.run is done.copying


def test_a_mask_that_is_taken_over_is_read_first() -> None:
    flags, mask = torch.tensor([True, False, False]), torch.tensor([False, True, False])
    step(aten.masked_fill.Scalar, (Ref(0), Ref(1), True), [flags, mask, mask.detach()], 2).run()
    assert mask.equal(torch.tensor([True, True, False]))


def test_elementwise_calls_run_where_their_argument_lies() -> None:
    x = grid([1.0, 4.0])
    done = step(aten.sqrt.default, (Ref(0),), [x, x.detach()], 1)
    assert done.run is not done.copying
    done.run()
    assert x.equal(grid([1.0, 2.0]))


def test_bytes_that_only_overlap_are_copied() -> None:
    base = torch.arange(5.0)
    done = step(aten.add.Tensor, (Ref(0), 7), [base[:4], base[1:]], 1)
    assert done.run is done.copying
    done.run()
    assert base.tolist() == [0, 7, 8, 9, 10]


@pytest.mark.parametrize(
    ("operator", "written"),
    [
        (aten.mm.default, "aten.mm.out"),
        (aten.mean.dim, "aten.mean.out"),
        (aten.arange.start, "aten.arange.start_out"),
        (aten.topk.default, "aten.topk.values"),
        (aten.tanh_backward.default, "aten.tanh_backward.grad_input"),
        (aten.sum.dim_IntList, "aten.sum.IntList_out"),
        (aten.native_layer_norm.default, None),  # torch generates one, which allocates and copies
        (aten.mul.Scalar, None),
        (aten.argsort.default, None),  # the only one wants another argument
        (aten.relu_.default, None),
        (aten._foreach_add.Scalar, None),
    ],
)
def test_the_overload_that_writes_takes_the_same_arguments(operator: Any, written: str | None) -> None:
    found = out_overload(operator)
    assert (found and str(found.operator)) == written


def test_defaults_and_keywords_reach_the_overload() -> None:
    x, out = grid([1, 2], [3, 4]), torch.empty(2, dtype=torch.float64)
    step(aten.sum.dim_IntList, (Ref(0), [1]), [x, out], 1, dtype=torch.float64).run()
    assert out.tolist() == [3, 7]
    found = out_overload(aten.add.Tensor)
    assert found is not None
    positional, named = found.arguments(arguments_by_name(aten.add.Tensor, (x, x), {"alpha": 3}), [out])
    assert (positional[0] is x, named["alpha"], named["out"] is out) == (True, 3, True)


def test_a_result_that_stands_still_and_one_that_is_none_are_right() -> None:
    x, still = grid([1.0, 2.0]), torch.zeros(1, 1).expand(1, 2)
    step(aten.mul.Tensor, (Ref(0), 3), [x[:, :1].expand(1, 2), still], 1).run()
    assert still.tolist() == [[3, 3]]
    grads = [torch.zeros(1, 1, 2), torch.ones(1, 1, 2), torch.ones(1, 1, 1), torch.zeros(1, 1, 1)]
    args = (Ref(0), Ref(1), Ref(2), [0], [1], [0], [1], False, [0], 1, [False, True, False])
    step(aten.convolution_backward.default, args, grads, None, 3, None).run()
    assert grads[3].equal(torch.zeros(1, 1, 1))


def test_another_number_of_results_is_our_fault() -> None:
    x = grid([1.0, 2.0])
    with pytest.raises(InternalError, match="2 results"):
        step(aten.aminmax.default, (Ref(0),), [x, torch.empty(())], 1).copying()


def test_a_step_that_moves_its_result_copies_from_then_on_and_the_result_is_back() -> None:
    slab = Slab(64, 64, torch.device("cpu"))
    place = slab.view(16, (4,), (1,), torch.float32)
    before = place.detach()

    def moving() -> None:
        place.set_(torch.ones(4))

    kept, _ = _tried([Step(name="m", run=moving, copying=lambda: place.fill_(3), results=(place,))])
    assert same_place(place, before)
    kept[0].run()
    assert slab.view(16, (4,), (1,), torch.float32).tolist() == [3] * 4


def test_a_step_that_fails_when_tried_copies_from_then_on() -> None:
    def failing() -> None:
        raise RuntimeError("no")

    good = Step(name="g", run=failing, copying=lambda: torch.empty(100), results=())
    kept, unplanned = _tried([good, replace(good, name="h", copying=failing)])
    assert [one.run for one in kept] == [good.copying, failing]
    assert [(one.operator, one.calls, one.bytes) for one in unplanned] == [("g", 1, 400)]
