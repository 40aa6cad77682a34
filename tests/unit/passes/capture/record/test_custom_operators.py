"""Operators whose schema hides that they write: known ones are ops, unknown ones are tried or refused by name."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import TOKEN, capture_program, plan_of
from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.passes.operators.schema import signature
from tmmu.runtime.execute.bind import bind
from tmmu.torch_private import schema_of

Tensor = torch.Tensor


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    library = torch.library.Library("tmmu_test", "DEF")  # type: ignore[no-untyped-call]
    empty_like: Callable[..., Any] = lambda x, *_: torch.empty_like(x)  # noqa: E731
    first: Callable[..., Any] = lambda x, *_: x  # noqa: E731
    nothing: Callable[..., Any] = lambda *_: None  # noqa: E731

    def define(schema: str, real: Callable[..., Any] | None, fake: Callable[..., Any]) -> None:
        name = schema.partition("(")[0]
        library.define(schema)  # type: ignore[no-untyped-call]
        library.impl(name, fake, "Meta")  # type: ignore[no-untyped-call]
        if real is not None:
            library.impl(name, real, "CPU")  # type: ignore[no-untyped-call]

    define("honest(Tensor x) -> Tensor", lambda x: x * 2, empty_like)
    define("fills(Tensor(a!) x) -> ()", lambda x: x.fill_(3) and None, nothing)
    define("hides_a_write(Tensor x) -> Tensor", lambda x: x.add_(1) * 1, empty_like)
    define("hides_a_write_in_a_list(Tensor[] xs) -> Tensor", lambda xs: xs[1].zero_() + 1, lambda xs: xs[0] + 1)
    define("returns_what_it_wrote(Tensor x, Tensor y) -> Tensor", lambda x, y: x.copy_(y), first)
    define("returns_its_argument(Tensor x) -> Tensor", first, empty_like)
    define("is_a_view(Tensor x) -> Tensor", first, first)
    define("elsewhere_view(Tensor x) -> Tensor", None, first)
    define("elsewhere_check(Tensor x) -> ()", None, nothing)
    define("elsewhere(Tensor x) -> Tensor", None, empty_like)
    yield torch.ops.tmmu_test
    library._destroy()


class Body(nn.Module):
    def __init__(self, body: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.body(x * 1), x + 1


def targets(body: Callable[[Tensor], Any]) -> tuple[str, ...]:
    program, _ = capture_program(partial(Body, body), {"x": torch.ones(4, 6)})
    return program.graph.ops.target


def test_an_operator_that_does_what_it_says_is_an_op(ops: Any) -> None:
    assert "tmmu_test.honest.default" in targets(ops.honest)
    assert "tmmu_test.fills.default" in targets(lambda x: (ops.fills(x), x)[1])
    assert "tmmu_test.elsewhere.default" in targets(ops.elsewhere)  # it cannot be tried, and its schema is clear
    assert "tmmu_test.is_a_view.default" not in targets(ops.is_a_view)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hides_a_write", "writes an argument"),
        ("returns_what_it_wrote", "writes an argument"),
        ("returns_its_argument", "returns an argument"),
        ("elsewhere_view", "makes nothing and writes nothing"),
        ("elsewhere_check", "makes nothing and writes nothing"),
    ],
)
def test_an_operator_that_hides_what_it_does_is_refused_by_name_and_line(ops: Any, name: str, message: str) -> None:
    op = getattr(ops, name)
    body = (lambda x: op(x, x + 1)) if name == "returns_what_it_wrote" else lambda x: (op(x), x)[1]
    with pytest.raises(UnsupportedOp, match=rf"test_custom_operators.py:\d+: tmmu_test.{name}.default {message}"):
        targets(body)


def test_a_write_in_a_list_of_tensors_is_seen(ops: Any) -> None:
    with pytest.raises(UnsupportedOp, match="writes an argument"):
        targets(lambda x: ops.hides_a_write_in_a_list([x, x + 1]))


def test_a_trial_leaves_the_random_state_alone(ops: Any) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    targets(ops.honest)
    assert torch.get_rng_state().equal(before)


def test_a_gather_into_a_tensor_is_an_op_that_writes_it() -> None:
    """Its schema marks nothing as written, and its result is the argument: it was dropped as a view."""
    fsdp = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    del fsdp

    def gathers(x: Tensor) -> Any:
        gathered = torch.zeros(48)
        return torch.ops.fsdp.all_gather_copy_in([x], gathered, [24], 24, 1)[1] + 1

    program, _ = capture_program(partial(Body, gathers), {"x": torch.randn(4, 6)})
    (op,) = [op for op, target in enumerate(program.graph.ops.target) if "all_gather_copy_in" in target]
    buffer_of, ops_ = program.graph.values.buffer, program.graph.ops
    zeros = next(op for op, target in enumerate(ops_.target) if "zeros" in target or "zero_" in target)
    assert buffer_of[ops_.writes[zeros][0]] in {buffer_of[value] for value in ops_.writes[op]}


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed part")
def test_every_collective_that_takes_an_output_is_known_to_write_it() -> None:
    """A new operator of ``c10d`` in a later torch must not be dropped silently."""
    no_write = {"check_for_nan", "send", "barrier", "monitored_barrier_"}
    names = {schema.name.partition("::")[2] for schema in _schemas() if schema.name.startswith("c10d::")}
    unknown = [name for name in names - no_write if not signature(getattr(torch.ops.c10d, name).default).mutates]
    assert not unknown
    assert all(schema_of(getattr(torch.ops.c10d, name).default).arguments for name in names)


def _schemas() -> list[Any]:
    return list(torch._C._jit_get_all_schemas())


def test_a_collective_into_a_tensor_is_planned_and_runs_in_its_group_alone() -> None:
    """What it writes is an op's."""
    fake_group = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed = torch.distributed
    distributed.init_process_group("fake", store=fake_group.FakeStore(), rank=0, world_size=2)
    try:

        def gathers(x: Tensor) -> Any:
            gathered = torch.zeros(8, 6)
            distributed.all_gather_into_tensor(gathered, x)
            return gathered + 1

        program, constants = capture_program(partial(Body, gathers), {"x": torch.ones(4, 6)})
        ops, buffer_of = program.graph.ops, program.graph.values.buffer
        op = ops.target.index("c10d._allgather_base_.default")
        reader = ops.target.index("aten.add.Tensor", op)
        assert buffer_of[ops.reads[reader][0]] in {buffer_of[value] for value in ops.writes[op]}
        bind(program, plan_of(program), token=TOKEN, weights=constants)
    finally:
        distributed.destroy_process_group()
    with pytest.raises(InvalidConfig, match="the program is rank 0 of 2, and this process has no process group"):
        bind(program, plan_of(program), token=TOKEN, weights=constants)
