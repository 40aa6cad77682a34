"""A call becomes a step that is right even where the result lies on an argument, and moves nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tmmu.errors import InternalError
from tmmu.ir.calls import Call, Ref
from tmmu.runtime.code import Code, instruction, runner
from tmmu.runtime.lane import CpuLane
from tmmu.runtime.overloads import arguments_by_name, out_overload
from tmmu.runtime.slab import Slab, same_place
from tmmu.runtime.steps import Step, compile_step
from tmmu.runtime.trial import tried

aten = torch.ops.aten


def step(operator: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor], *results: int | None, **kw: Any) -> Step:
    call = Call(operator=operator, args=tuple(args), kwargs=tuple(kw.items()), results=results)
    return compile_step(call, tensors.__getitem__)


def grid(*rows: Sequence[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype)


def test_a_product_into_its_own_argument_is_copied() -> None:
    x = grid([1, 2], [3, 4])
    done = step(aten.mm.default, (Ref(0), Ref(0)), [x, x.detach()], 1)
    runner(done.code)()
    assert x.equal(grid([7, 10], [15, 22]))
    assert done.code is done.copying


def test_a_mask_that_is_taken_over_is_read_first() -> None:
    flags, mask = torch.tensor([True, False, False]), torch.tensor([False, True, False])
    runner(step(aten.masked_fill.Scalar, (Ref(0), Ref(1), True), [flags, mask, mask.detach()], 2).code)()
    assert mask.equal(torch.tensor([True, True, False]))


def test_elementwise_calls_run_where_their_argument_lies() -> None:
    x = grid([1.0, 4.0])
    done = step(aten.sqrt.default, (Ref(0),), [x, x.detach()], 1)
    assert done.code is not done.copying
    runner(done.code)()
    assert x.equal(grid([1.0, 2.0]))


def test_bytes_that_only_overlap_are_copied() -> None:
    base = torch.arange(5.0)
    done = step(aten.add.Tensor, (Ref(0), 7), [base[:4], base[1:]], 1)
    assert done.code is done.copying
    runner(done.code)()
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
    runner(step(aten.sum.dim_IntList, (Ref(0), [1]), [x, out], 1, dtype=torch.float64).code)()
    assert out.tolist() == [3, 7]
    found = out_overload(aten.add.Tensor)
    assert found is not None
    given = found.arguments(arguments_by_name(aten.add.Tensor, (x, x), {"alpha": 3}), [out])
    assert list(given) == ["self", "other", "alpha", "out"]


def test_a_result_that_stands_still_and_one_that_is_none_are_right() -> None:
    x, still = grid([1.0, 2.0]), torch.zeros(1, 1).expand(1, 2)
    runner(step(aten.mul.Tensor, (Ref(0), 3), [x[:, :1].expand(1, 2), still], 1).code)()
    assert still.tolist() == [[3, 3]]
    grads = [torch.zeros(1, 1, 2), torch.ones(1, 1, 2), torch.ones(1, 1, 1), torch.zeros(1, 1, 1)]
    args = (Ref(0), Ref(1), Ref(2), [0], [1], [0], [1], False, [0], 1, [False, True, False])
    runner(step(aten.convolution_backward.default, args, grads, None, 3, None).code)()
    assert grads[3].equal(torch.zeros(1, 1, 1))


def test_another_number_of_results_is_our_fault() -> None:
    x = grid([1.0, 2.0])
    with pytest.raises(InternalError, match="2 results"):
        runner(step(aten.aminmax.default, (Ref(0),), [x, torch.empty(())], 1).copying)()


def test_a_step_that_moves_its_result_copies_from_then_on_and_the_result_is_back() -> None:
    slab = Slab(64, 64, torch.device("cpu"))
    place = slab.view(16, (4,), (1,), torch.float32)
    before = place.detach()

    moving = (instruction(aten.set_.source_Tensor, place, torch.ones(4)),)
    copying = (instruction(aten.fill_.Scalar, place, 3),)
    kept, _ = tried([bare(moving, copying, place)], nothing_may_be_filled, CpuLane())
    assert same_place(place, before)
    runner(kept[0].code)()
    assert slab.view(16, (4,), (1,), torch.float32).tolist() == [3] * 4


def test_a_step_that_fails_when_tried_copies_from_then_on() -> None:
    failing = (instruction(aten.mm.default, torch.ones(2, 3), torch.ones(2, 3)),)
    copying = (instruction(aten.ones.default, [100]),)
    kept, unplanned = tried([bare(failing, copying), bare(failing, failing)], nothing_may_be_filled, CpuLane())
    assert [one.settled for one in kept] == [True, False]
    assert [one.code[0].operator for one in kept] == [aten.ones.default, aten.mm.default]
    assert [(one.operator, one.calls, one.bytes) for one in unplanned] == [("m", 1, 400)]


def test_copies_that_were_none_are_dropped() -> None:
    x, out = grid([1.0, 2.0]), grid([0.0, 0.0])
    one = instruction(aten.view.default, x, [2, 1], into=(x.view(2, 1),))
    other = instruction(aten.neg.default, x, into=(out,))
    kept, _ = tried([bare((one,)), bare((other,))], nothing_may_be_filled, CpuLane())
    assert [step.code[0].into for step in kept] == [(), (out,)]


def test_parts_that_change_a_bit_are_not_used() -> None:
    x, out = torch.zeros(4), torch.zeros(4)
    whole = (instruction(aten.mul.out, x, 2.0, out=out),)
    near = (instruction(aten.mul.out, x, 2.0000002, out=out),)
    wrong = bare(near, whole, out, arguments=(x,), on_trial=True)
    (kept,), _ = tried([wrong], lambda tensor: tensor is x, CpuLane())
    assert kept.code[0].args[1] == 2.0
    same = (instruction(aten.mul.out, x, 2.0, out=out),)
    (kept,), _ = tried([replace(wrong, code=same)], lambda tensor: tensor is x, CpuLane())
    assert kept.code[0] is same[0]


def nothing_may_be_filled(tensor: torch.Tensor) -> bool:
    return False


def bare(code: Code, copying: Code = (), *results: torch.Tensor, **fields: Any) -> Step:
    fields = {"arguments": (), "on_trial": False} | fields
    return Step(name="m", code=code, copying=copying, results=results, **fields)
