"""A lowering is trusted after several draws from seeds of its own: the same one in every process, on every value."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.unit.runtime.steps.test_build import ValuesInSlab, call
from tmmu.errors import UnsupportedOp
from tmmu.ir.program import Call, ValueRef
from tmmu.runtime.kernels.code import Code, instruction, runnable_of
from tmmu.runtime.steps.build import CompiledStep, ViewOf, compile_step
from tmmu.runtime.steps.trial_values import EXTREME, NONFINITE, NORMAL, WIDE, draws_of, fill_arguments

aten = torch.ops.aten
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e8m0fnu)

DIGEST = """
import sys, torch
from blake3 import blake3
import tmmu.runtime.execute.step_memory as memory

chosen, bind = [], memory.bind_program
def bind_noted(request):
    bound = bind(request)
    for step in bound.steps:
        chosen.append((step.name, *((str(i.operator), len(i.into)) for i in step.code)))
    return bound
memory.bind_program = bind_noted

def function(a, b, w, m):
    y = (a + 1) / (b * 2) * a.conj()
    z = torch.nn.functional.dropout(w.sigmoid() * w, 0.5).relu().cumsum(0).sum() + w.masked_fill(m, 2.0).mean(0)
    return y, z, (m.long() + 3) // 2, torch.softmax(w, 0)

torch.manual_seed(int(sys.argv[1]))
a, b = torch.randn(5, dtype=torch.complex64), torch.randn(5, dtype=torch.complex64)
torch.compile(function, backend="tmmu")(a, b, torch.randn(5), torch.rand(5) < 0.5)
assert len(chosen) > 10
print(blake3(repr(chosen).encode()).hexdigest())
"""


def processes(seeds: range) -> set[str]:
    """What each process prints."""
    digests = set()
    for seed in seeds:
        environment = os.environ | {"PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": str(1 + seed % 2)}
        command = [sys.executable, "-c", DIGEST, str(seed)]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    return digests


@pytest.mark.slow
def test_two_processes_choose_the_same_steps() -> None:
    assert len(processes(range(2))) == 1


@pytest.mark.long
def test_twenty_processes_choose_the_same_steps() -> None:
    assert len(processes(range(20))) == 1


def test_verdicts_do_not_depend_on_the_callers_generator_nor_change_it() -> None:
    x, y = torch.randn(5), torch.zeros(5)
    chosen = set()
    for seed in range(50):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        values = ValuesInSlab(x, y, torch.zeros(5, dtype=torch.complex64))
        values.tensors.append(values.tensors[2].detach())
        steps = values.validate(
            call(aten.native_dropout.default, ValueRef(0), 0.5, True, results=(1, None)),
            call(aten.sigmoid.default, ValueRef(0), results=(1,)),
            call(aten.exp.default, ValueRef(2), results=(3,)),
        )
        chosen.add(tuple(step.code is step.fallback for step in steps))
        assert torch.get_rng_state().equal(before)
    assert len(chosen) == 1


@pytest.mark.parametrize("operator", [aten.div.Tensor, aten.mul.Tensor])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_products_and_quotients_are_never_written_over_an_argument(
    operator: object, dtype: torch.dtype
) -> None:
    x = torch.randn(5, dtype=dtype)
    values = ValuesInSlab(x, x, x)
    values.tensors.append(values.tensors[0].detach())
    (over,) = values.validate(call(operator, ValueRef(0), ValueRef(1), results=(3,)))
    (beside,) = values.validate(call(operator, ValueRef(0), ValueRef(1), results=(2,)))
    assert over.code[0].into
    assert not beside.code[0].into


def replaced_code(make: Callable[[ViewOf], Code]) -> Callable[[Call, ViewOf], CompiledStep]:
    return lambda good, view: replace(compile_step(good, view), code=make(view))


WRONG: dict[str, tuple[torch.dtype, Callable[[ViewOf], Code]]] = {
    "negative zero": (torch.float32, lambda v: (instruction(aten.add.out, v(0), 0.0, out=v(1)),)),
    "not a number": (
        torch.float32,
        lambda v: (instruction(aten.nan_to_num.out, v(0), 0.0, float("inf"), -float("inf"), out=v(1)),),
    ),
    "infinity": (
        torch.float32,
        lambda v: (instruction(aten.nan_to_num.out, v(0), float("nan"), 3e38, -float("inf"), out=v(1)),),
    ),
    "a large number": (torch.float64, lambda v: (instruction(aten.clamp_max.out, v(0), 1e300, out=v(1)),)),
    "a subnormal number": (torch.float32, lambda v: (instruction(aten.hardshrink.out, v(0), 1e-38, out=v(1)),)),
}


@pytest.mark.parametrize("name", WRONG)
def test_code_that_is_wrong_for_few_values_falls_back(name: str) -> None:
    dtype, make = WRONG[name]
    values = ValuesInSlab(torch.zeros(63, dtype=dtype), torch.zeros(63, dtype=dtype))
    copy = call(aten.clone.default, ValueRef(0), results=(1,))
    assert values.validate(copy)[0].code[0].operator is aten.copy_.default
    (validated,) = values.validate(copy, compile_call=replaced_code(make))
    assert validated.code[0].operator is aten.clone.default


def test_integer_code_that_is_wrong_below_zero_falls_back() -> None:
    values = ValuesInSlab(*(torch.zeros(5, dtype=torch.int32) for _ in range(2)))
    negation = call(aten.neg.default, ValueRef(0), results=(1,))
    wrong = replaced_code(lambda v: (instruction(aten.copysign.out, v(0), -1, out=v(1)),))
    assert not values.validate(negation)[0].code[0].into
    assert values.validate(negation, compile_call=wrong)[0].code[0].into


@pytest.mark.parametrize("kind", [NORMAL, WIDE, EXTREME, NONFINITE])
@pytest.mark.parametrize("dtype", FLOATS)
def test_draws_are_the_same_each_time_and_differ_by_argument_and_draw(dtype: torch.dtype, kind: str) -> None:
    def drawn(draw: int) -> tuple[torch.Tensor, ...]:
        tensors = [torch.zeros(9001, dtype=dtype), torch.zeros(9001, dtype=dtype)]
        fill_arguments(tensors, kind, draw, integers=False)
        return tuple(tensor.view(torch.uint8) for tensor in tensors)

    first, again, second = drawn(0), drawn(0), drawn(1)
    assert all(map(torch.equal, first, again))
    assert not first[0].equal(first[1])
    assert not first[0].equal(second[0])


def test_special_draws_hold_what_vector_code_gets_wrong() -> None:
    x = torch.zeros(64)
    fill_arguments([x], NONFINITE, 0, integers=False)
    tiny = torch.finfo(torch.float32).tiny
    assert x.isnan().any()
    assert x.isinf().any()
    assert (x == 0).any()
    assert ((x.abs() < tiny) & (x != 0)).any()


def test_integers_are_drawn_only_where_they_index_nothing() -> None:
    x, flags = torch.zeros(64, dtype=torch.int64), torch.zeros(64, dtype=torch.bool)
    fill_arguments([x, flags], NORMAL, 1, integers=False)
    assert not x.any()
    fill_arguments([x, flags], NORMAL, 1, integers=True)
    assert (x < 0).any()
    assert (x > 0).any()
    assert x.all()
    assert 0 < int(flags.sum()) < 64


def test_integers_that_a_trial_drew_are_zeros_again_before_they_are_indices() -> None:
    """Otherwise the step that reads them fails in place, and a decode step is launched in pieces."""
    values = ValuesInSlab(torch.tensor([0]), torch.tensor([0]), torch.zeros(4, 2), torch.ones(1, 2))
    position = call(aten.add.Tensor, ValueRef(0), ValueRef(0), results=(1,))
    write = call(aten.index_copy_.default, ValueRef(2), 0, ValueRef(1), ValueRef(3), results=(2,))
    added, written = values.validate(position, write)
    assert added.is_settled
    assert written.is_settled


def test_small_tensors_are_drawn_more_often() -> None:
    assert len(draws_of(aten.add.Tensor, 5, special=True)) == 8
    assert len(draws_of(aten.add.Tensor, 1 << 20, special=True)) == 2
    assert set(draws_of(aten.sort.default, 5, special=False)) == {NORMAL, WIDE}


def test_small_weight_is_replaced_by_draws_and_keeps_its_values() -> None:
    """A lowering that is right for the weight alone is not trusted: in another process the weight is another."""
    values = ValuesInSlab(torch.randn(5), torch.ones(5), torch.zeros(5))
    product = call(aten.mul.Tensor, ValueRef(0), ValueRef(1), results=(2,))
    weight = values.tensors[1]
    ignoring = replaced_code(lambda view: (instruction(aten.mul.out, view(0), torch.ones(5), out=view(2)),))
    (validated,) = values.validate(product, compile_call=ignoring, may_fill=lambda tensor: tensor is not weight)
    assert weight.equal(torch.ones(5))
    assert validated.code is validated.fallback or validated.code[0].into


@pytest.fixture
def disagreeing() -> Iterator[Any]:
    """An operator whose real kernel gives a size, strides or dtype as asked, whatever its fake one says."""
    with torch.library._scoped_library("tmmu_tests", "FRAGMENT") as library:
        library.define("made(Tensor x, str how) -> Tensor")
        library.impl("made", lambda x, how: MADE[how](x), "CPU")
        library.impl("made", lambda x, how: torch.empty_like(x, memory_format=torch.contiguous_format), "Meta")
        yield torch.ops.tmmu_tests.made.default


MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "size": lambda x: x[:1] * 2,
    "dtype": lambda x: (x * 2).double(),
    "strides": lambda x: (x * 2).t().contiguous().t(),
    "none": lambda x: x * 2,
}


@pytest.mark.parametrize("how", ["size", "dtype"])
def test_result_without_a_place_is_refused_by_name(disagreeing: Any, how: str) -> None:
    values = ValuesInSlab(torch.ones(2, 3), torch.zeros(2, 3))
    with pytest.raises(UnsupportedOp, match=r"tmmu_tests.made.default: torch's kernel makes"):
        values.validate(call(disagreeing, ValueRef(0), how, results=(1,)))


def test_result_in_other_strides_is_copied_and_logged_or_refused(
    disagreeing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    values = ValuesInSlab(torch.ones(2, 3), torch.zeros(2, 3))
    made = call(disagreeing, ValueRef(0), "strides", results=(1,))
    (step,) = values.validate(made)
    assert [record.getMessage().count("strides (1, 2)") for record in caplog.records] == [1]
    values.tensors[0].fill_(3)
    runnable_of(step.code)()
    assert values.tensors[1].eq(6).all()
    with pytest.raises(UnsupportedOp, match="strides"):
        values.validate(made, exact_strides=True)


def test_result_as_its_fake_kernel_says_is_neither_logged_nor_refused(
    disagreeing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    values = ValuesInSlab(torch.ones(2, 3), torch.zeros(2, 3))
    values.validate(call(disagreeing, ValueRef(0), "none", results=(1,)), exact_strides=True)
    assert not caplog.records


def test_step_in_place_meets_no_number_that_a_trial_drew() -> None:
    """A kernel that checks no index would read what lies anywhere."""
    met: list[int] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        met.extend(x.tolist())
        return x * 2

    with torch.library._scoped_library("tmmu_tests", "FRAGMENT") as library:
        library.define("noted(Tensor x) -> Tensor")
        library.impl("noted", noted, "CPU")
        places = torch.zeros(6, dtype=torch.int64)
        values = ValuesInSlab(places[::2], places[:3], places[:3])
        values.validate(
            call(aten.clone.default, ValueRef(0), results=(1,), memory_format=torch.contiguous_format),
            call(torch.ops.tmmu_tests.noted.default, ValueRef(1), results=(2,)),
        )
    assert met
    assert set(met) == {0}


def test_size_that_values_decide_is_not_compared_on_the_values_of_binding() -> None:
    """The plan is for a mask of two; what is there while it is bound selects nothing."""
    values = ValuesInSlab(torch.arange(4.0), torch.zeros(4, dtype=torch.bool), torch.zeros(2))
    (step,) = values.validate(call(aten.index.Tensor, ValueRef(0), [ValueRef(1)], results=(2,)), exact_strides=True)
    values.tensors[0].copy_(torch.arange(4.0))
    values.tensors[1][1:3] = True
    runnable_of(step.code)()
    assert values.tensors[2].tolist() == [1.0, 2.0]
