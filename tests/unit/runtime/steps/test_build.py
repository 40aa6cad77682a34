"""Steps are right even where a result overlaps an argument, and are validated before they are used."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from tmmu.errors import InternalError
from tmmu.ir.program import Call, ValueRef
from tmmu.runtime.kernels.code import Code, instruction, runnable_of
from tmmu.runtime.kernels.overloads import arguments_by_name, out_overload
from tmmu.runtime.memory.slab import Slab, is_same_view
from tmmu.runtime.steps.build import CompiledStep, ViewOf, compile_step
from tmmu.runtime.steps.execution_stream import CpuExecutionStream
from tmmu.runtime.steps.validate import ValidationContext, validate_steps

aten = torch.ops.aten


def step(
    op: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor], *results: int | None, **kw: Any
) -> CompiledStep:
    call = Call(operator=op, args=tuple(args), kwargs=tuple(kw.items()), results=results)
    return compile_step(call, tensors.__getitem__)


def grid(*rows: Sequence[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype)


def test_product_into_its_own_argument_is_copied() -> None:
    x = grid([1, 2], [3, 4])
    done = step(aten.mm.default, (ValueRef(0), ValueRef(0)), [x, x.detach()], 1)
    runnable_of(done.code)()
    assert x.equal(grid([7, 10], [15, 22]))
    assert done.code is done.fallback


def test_mask_that_the_result_takes_over_is_read_first() -> None:
    flags, mask = torch.tensor([True, False, False]), torch.tensor([False, True, False])
    runnable_of(step(aten.masked_fill.Scalar, (ValueRef(0), ValueRef(1), True), [flags, mask, mask.detach()], 2).code)()
    assert mask.equal(torch.tensor([True, True, False]))


def test_elementwise_calls_run_in_the_place_of_their_argument() -> None:
    x = grid([1.0, 4.0])
    done = step(aten.sqrt.default, (ValueRef(0),), [x, x.detach()], 1)
    assert done.code is not done.fallback
    runnable_of(done.code)()
    assert x.equal(grid([1.0, 2.0]))


def test_results_that_partly_overlap_an_argument_are_copied() -> None:
    base = torch.arange(5.0)
    done = step(aten.add.Tensor, (ValueRef(0), 7), [base[:4], base[1:]], 1)
    assert done.code is done.fallback
    runnable_of(done.code)()
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
def test_out_overload_takes_the_same_arguments(operator: Any, written: str | None) -> None:
    overload = out_overload(operator)
    assert (overload and str(overload.operator)) == written


def test_out_overload_gets_defaults_and_keywords() -> None:
    x, out = grid([1, 2], [3, 4]), torch.empty(2, dtype=torch.float64)
    runnable_of(step(aten.sum.dim_IntList, (ValueRef(0), [1]), [x, out], 1, dtype=torch.float64).code)()
    assert out.tolist() == [3, 7]
    overload = out_overload(aten.add.Tensor)
    assert overload is not None
    arguments = overload.arguments(arguments_by_name(aten.add.Tensor, (x, x), {"alpha": 3}), [out])
    assert list(arguments) == ["self", "other", "alpha", "out"]


def test_expanded_and_absent_results_are_right() -> None:
    x, still = grid([1.0, 2.0]), torch.zeros(1, 1).expand(1, 2)
    runnable_of(step(aten.mul.Tensor, (ValueRef(0), 3), [x[:, :1].expand(1, 2), still], 1).code)()
    assert still.tolist() == [[3, 3]]
    grads = [torch.zeros(1, 1, 2), torch.ones(1, 1, 2), torch.ones(1, 1, 1), torch.zeros(1, 1, 1)]
    args = (ValueRef(0), ValueRef(1), ValueRef(2), [0], [1], [0], [1], False, [0], 1, [False, True, False])
    runnable_of(step(aten.convolution_backward.default, args, grads, None, 3, None).code)()
    assert grads[3].equal(torch.zeros(1, 1, 1))


def test_wrong_number_of_results_is_an_internal_error() -> None:
    x = grid([1.0, 2.0])
    with pytest.raises(InternalError, match="2 results"):
        runnable_of(step(aten.aminmax.default, (ValueRef(0),), [x, torch.empty(())], 1).fallback)()


def test_step_that_moves_its_result_falls_back_and_the_result_is_restored() -> None:
    slab = Slab(64, 64, torch.device("cpu"))
    place = slab.view(16, (4,), (1,), torch.float32)
    before = place.detach()

    moving = (instruction(aten.set_.source_Tensor, place, torch.ones(4)),)
    copying = (instruction(aten.fill_.Scalar, place, 3),)
    steps, _ = validate_steps([bare(moving, copying, place)], no_values())
    assert is_same_view(place, before)
    runnable_of(steps[0].code)()
    assert slab.view(16, (4,), (1,), torch.float32).tolist() == [3] * 4


def test_step_that_fails_validation_falls_back() -> None:
    failing = (instruction(aten.mm.default, torch.ones(2, 3), torch.ones(2, 3)),)
    copying = (instruction(aten.ones.default, [100]),)
    steps, unplanned = validate_steps([bare(failing, copying), bare(failing, failing)], no_values())
    assert [row.is_settled for row in steps] == [True, False]
    assert [row.code[0].operator for row in steps] == [aten.ones.default, aten.mm.default]
    assert [(row.operator, row.calls, row.bytes) for row in unplanned] == [("m", 1, 400)]


def test_copies_of_results_in_place_are_dropped() -> None:
    x, out = grid([1.0, 2.0]), grid([0.0, 0.0])
    aliasing = instruction(aten.view.default, x, [2, 1], into=(x.view(2, 1),))
    allocating = instruction(aten.neg.default, x, into=(out,))
    steps, _ = validate_steps([bare((aliasing,)), bare((allocating,))], no_values())
    assert [step.code[0].into for step in steps] == [(), (out,)]


class ValuesInSlab:
    """Values side by side in a slab, as a plan puts them, and the context in which their calls are validated."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.slab = Slab(1 << 14, 256, torch.device("cpu"))
        self.tensors = [self.slab.view(512 * index, t.shape, t.stride(), t.dtype) for index, t in enumerate(tensors)]
        for place, tensor in zip(self.tensors, tensors, strict=True):
            place.copy_(tensor)
        self.compile_count = 0

    def compile_call(self, call: Call, view: ViewOf) -> CompiledStep:
        self.compile_count += 1
        return compile_step(call, view)

    def context(self, **changes: Any) -> ValidationContext:
        options = {"compile_call": self.compile_call, "stream": CpuExecutionStream(), "may_fill": lambda _: True}
        return ValidationContext(view=self.tensors.__getitem__, **options | changes)

    def validate(self, *calls: Call, **changes: Any) -> list[CompiledStep]:
        steps = [compile_step(call, self.tensors.__getitem__) for call in calls]
        return validate_steps(steps, self.context(**changes))[0]


def call(operator: Any, *args: Any, results: tuple[int | None, ...], **kwargs: Any) -> Call:
    return Call(operator=operator, args=args, kwargs=tuple(kwargs.items()), results=results)


def test_calls_of_one_signature_are_validated_once() -> None:
    x = torch.randn(2, 3)
    values = ValuesInSlab(x, x, x, x.t().contiguous(), x.t().contiguous())
    calls = [call(aten.add.Tensor, ValueRef(a), 1.5, results=(b,)) for a, b in ((0, 1), (1, 2), (0, 2))]
    steps = values.validate(
        *calls, call(aten.add.Tensor, ValueRef(0), 2.5, results=(1,)), call(aten.neg.default, ValueRef(3), results=(4,))
    )
    assert values.compile_count == 3
    assert all(step.code is not step.fallback and step.is_settled for step in steps)


def test_calls_with_other_unread_results_are_validated_again() -> None:
    x = torch.randn(4, 8)
    values = ValuesInSlab(x, x, torch.zeros(4, 1), torch.zeros(4, 1), x, torch.zeros(4, 1), torch.zeros(4, 1))
    norm = partial(call, aten.native_layer_norm.default, ValueRef(0), [8], None, None, 1e-5)
    norms = [norm(results=(1, 2, 3)), norm(results=(4, 5, 6))]
    make = partial(compile_step, scratch=64, unread={2, 3})
    steps = [make(norm_call, values.tensors.__getitem__) for norm_call in norms]
    assert all(len(step.code) > 1 for step in steps)
    tries: list[Call] = []

    def compile_counted(norm_call: Call, view: ViewOf) -> CompiledStep:
        tries.append(norm_call)
        return make(norm_call, view)

    validate_steps(steps, values.context(compile_call=compile_counted))
    assert tries == norms


def test_step_that_changes_a_bit_falls_back() -> None:
    values = ValuesInSlab(torch.randn(4), torch.zeros(4))
    double = call(aten.mul.Tensor, ValueRef(0), 2.0, results=(1,))
    inexact = call(aten.mul.Tensor, ValueRef(0), 2.0000002, results=(1,))

    def wrong(_: Call, view: ViewOf) -> CompiledStep:
        return replace(compile_step(double, view), code=compile_step(inexact, view).code)

    (validated,) = values.validate(double, compile_call=wrong)
    assert [instr.operator for instr in validated.code] == [aten.mul.Tensor]


def test_step_that_writes_beyond_its_result_falls_back() -> None:
    values = ValuesInSlab(torch.randn(4), torch.zeros(4))

    def wide(fill: Call, view: ViewOf) -> CompiledStep:
        step = compile_step(fill, view)
        place = view(1)
        stray = place.as_strided((1,), (1,), int(place.storage_offset()) + 5)
        return replace(step, code=(step.code[0], instruction(aten.fill_.Scalar, stray, 1.0)))  # nothing is masked

    good = call(aten.masked_fill.Scalar, ValueRef(0), torch.zeros(4, dtype=torch.bool), 3.0, results=(1,))
    assert len(values.validate(good)[0].code) == 2
    (validated,) = values.validate(good, compile_call=wide)
    assert [instr.operator for instr in validated.code] == [aten.masked_fill.Scalar]


@pytest.mark.parametrize(
    "loss", ["binary_cross_entropy", "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"]
)
@pytest.mark.parametrize("spelled", [{"reduction": 1}, {"reduction": 2}, {}])
def test_reduced_losses_leave_neighbouring_buffers_alone(loss: str, spelled: dict[str, int]) -> None:
    x, target = torch.rand(64), torch.rand(64)
    values = ValuesInSlab(x, target, torch.zeros(()), torch.full((64,), 7.0))
    reduced = call(getattr(aten, loss).default, ValueRef(0), ValueRef(1), **spelled, results=(2,))
    (validated,) = values.validate(reduced)
    assert [instr.operator for instr in validated.code] == [getattr(aten, loss).default]
    values.tensors[0].copy_(x)
    values.tensors[1].copy_(target)
    values.tensors[3].fill_(7.0)
    runnable_of(validated.code)()
    assert values.tensors[2].equal(getattr(aten, loss).default(x, target, **spelled))
    assert values.tensors[3].eq(7.0).all()
    assert values.slab.storage.nbytes() == (1 << 14) + 256


def test_gradient_of_a_reduced_loss_is_written_directly() -> None:
    logits, target = torch.randn(3, 5), torch.tensor([1, 4, 0])
    values = ValuesInSlab(torch.ones(()), logits, target, torch.full((), 3.0), torch.zeros(3, 5))
    backward = call(aten.nll_loss_backward.default, *map(ValueRef, range(3)), None, 1, -100, ValueRef(3), results=(4,))
    (validated,) = values.validate(backward)
    assert [instr.operator for instr in validated.code] == [aten.nll_loss_backward.grad_input]


def test_kernel_that_rejects_a_shared_storage_falls_back() -> None:
    x = torch.randn(4, 4)
    expected = torch.linalg.qr(x)
    values = ValuesInSlab(x, *expected)
    (validated,) = values.validate(call(aten.linalg_qr.default, ValueRef(0), results=(1, 2)))
    values.tensors[0].copy_(x)
    runnable_of(validated.code)()
    assert all(map(torch.equal, values.tensors[1:], expected))


def test_kernel_with_other_bits_in_place_falls_back() -> None:
    x, y = torch.randn(64, dtype=torch.complex64), torch.randn(64, dtype=torch.complex64)
    values = ValuesInSlab(x, y)
    values.tensors.append(values.tensors[0].detach())
    (validated,) = values.validate(call(aten.div.Tensor, ValueRef(0), ValueRef(1), results=(2,)))
    values.tensors[0].copy_(x)
    values.tensors[1].copy_(y)
    runnable_of(validated.code)()
    assert values.tensors[2].equal(x / y)


def test_storage_offset_counts_from_the_start_of_the_buffer() -> None:
    x, out = torch.arange(16.0), torch.zeros(3)
    values = ValuesInSlab(out, x, out)
    strided = call(aten.as_strided_copy.default, ValueRef(1), [3], [2], 5, results=(2,))
    start = int(values.tensors[1].storage_offset())
    for strided_call, expected in ((strided, [5, 7, 9]), (replace(strided, args=(ValueRef(1), [3], [2])), [0, 2, 4])):
        runnable_of(compile_step(strided_call, values.tensors.__getitem__, buffer_start=lambda _: start).code)()
        assert values.tensors[2].tolist() == expected


def no_values() -> ValidationContext:
    """For steps that need no validation."""
    return ValuesInSlab().context()


def bare(code: Code, copying: Code = (), *results: torch.Tensor, **fields: Any) -> CompiledStep:
    fields = {"arguments": ()} | fields
    return CompiledStep(name="m", code=code, fallback=copying, results=results, **fields)


@pytest.mark.parametrize(("value", "holds"), [(1.0, True), (0.0, False)])
def test_call_that_returns_nothing_is_run(value: float, holds: bool) -> None:
    """A check of a condition has no result, and fails where the model's own would."""
    call = Call(operator=torch.ops.aten._assert_async.default, args=(ValueRef(0),), kwargs=(), results=())
    run = runnable_of(compile_step(call, lambda _: torch.tensor(value)).code)
    if holds:
        run()
    else:
        with pytest.raises(RuntimeError, match="nonzero"):
            run()


def test_call_for_its_effect_does_not_run_while_steps_are_validated() -> None:
    """On the zeros that are there then a check would fail, and an effect would come once more than the model's."""
    seen: list[float] = []
    with torch.library._scoped_library("tmmu_tests", "FRAGMENT") as library:
        library.define("note(Tensor x) -> ()")
        library.impl("note", lambda x: seen.append(float(x)), "CompositeExplicitAutograd")
        values = ValuesInSlab(torch.tensor(2.0))
        (step,) = values.validate(call(torch.ops.tmmu_tests.note.default, ValueRef(0), results=()))
        assert seen == []
        runnable_of(step.code)()
    assert seen == [2.0]
