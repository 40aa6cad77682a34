"""The sanitizer is silent on sound plans, and names the op that breaks a plan that is not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import TOKEN, capture_program, plan_of, randomize, weights_of
from tests.runtime.zoo import ChangesInput, Elementwise, RandomOperators, Shapes
from tmmu.errors import InvalidConfig, PlanUnsound
from tmmu.ir.plan import Plan
from tmmu.runtime.compare.sanitize import SanitizerReport, run_sanitized
from tmmu.runtime.execute import bind as binding
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.kernels.code import instruction

aten = torch.ops.aten


class Chain(nn.Module):
    """Products, which need their arguments to stay, and elementwise ends, which may take them over."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return (self.second(hidden) + hidden).relu().exp() @ hidden.t()


class Broken:
    """A module bound in a plan that is changed before it is bound, and not judged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module] = Chain) -> None:
        self.inputs = {"x": torch.randn(64, 64)}
        self.real = randomize(make())
        self.program, self.constants = capture_program(make, self.inputs)
        self.plan = plan_of(self.program)
        monkeypatch.setattr(binding, "judge", lambda *a, **k: None)

    def executor(self, plan: Plan) -> Executor:
        plan = replace(plan)  # no digest of the plan before it was changed
        return binding.bind(self.program, plan, token=TOKEN, weights=self.weights)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return self.constants | weights_of(self.real)

    def run(self, executor: Executor) -> SanitizerReport:
        return run_sanitized(self.program, executor, self.weights, self.inputs, token=TOKEN)

    def with_rows(self, **columns: Any) -> Executor:
        return self.executor(replace(self.plan, buffers=replace(self.plan.buffers, **columns)))

    def row(self, target: str) -> int:
        """The row of what this operator writes, at its last call."""
        op = max(op for op in self.plan.order if self.program.graph.ops.target[op] == target)
        buffer = self.program.graph.values.buffer[self.program.graph.ops.writes[op][0]]
        return self.plan.buffers.id.index(buffer)


def with_entry(column: tuple[int, ...], row: int, to: int) -> tuple[int, ...]:
    return (*column[:row], to, *column[row + 1 :])


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    return Broken(monkeypatch)


CLEAN: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, torch.Tensor]]]] = {
    "chain": (Chain, lambda: {"x": torch.randn(4, 64)}),
    "elementwise": (Elementwise, lambda: {"x": torch.rand(4, 6), "mask": torch.rand(4, 6) > 0.5}),
    "shapes": (Shapes, lambda: {"x": torch.rand(4, 6), "ids": torch.tensor([[0, 1], [2, 0], [3, 3]])}),
    "writing": (ChangesInput, lambda: {"x": torch.rand(4, 6)}),
    "drawing": (RandomOperators, lambda: {"x": torch.rand(4, 6)}),
}


@pytest.mark.parametrize("name", CLEAN)
def test_sound_plans_are_clean_and_have_their_own_outputs(name: str) -> None:
    make, inputs_of = CLEAN[name]
    torch.manual_seed(1)
    inputs, real = inputs_of(), make()
    program, constants = capture_program(make, inputs)
    weights = constants | weights_of(real)
    executor = binding.bind(program, plan_of(program), token=TOKEN, weights=weights)
    torch.manual_seed(2)
    expected = executor.run({key: tensor.clone() for key, tensor in inputs.items()})
    torch.manual_seed(2)
    copies = {key: tensor.clone() for key, tensor in inputs.items()}
    report = run_sanitized(program, executor, weights, copies, token=TOKEN)
    assert report.ops == len(executor.order)
    assert report.compared >= report.ops // 2
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(report.outputs, expected, strict=True))
    assert len(executor.run(inputs)) == len(expected)  # its hooks are gone


def test_offsets_moved_by_one_unit_are_found_where_bytes_overlap(broken: Broken) -> None:
    rows, arenas = broken.plan.buffers, broken.plan.arenas
    moved = [
        row
        for row in range(len(rows))
        if arenas.segment[rows.arena[row]] == "stack" and rows.takes_over[row] == rows.id[row]
    ]
    detected = 0
    for row in moved:
        for unit in (arenas.alignment[rows.arena[row]], -arenas.alignment[rows.arena[row]]):
            to = rows.offset[row] + unit
            if to >= 0 and overlaps_live_row(broken.plan, row, to):
                executor = broken.with_rows(offset=with_entry(rows.offset, row, to))
                with pytest.raises(PlanUnsound, match=r": op \d+ aten\."):
                    broken.run(executor)
                detected += 1
    assert detected >= 3


def overlaps_live_row(plan: Plan, row: int, offset: int) -> bool:
    """Whether the row at this offset shares a byte with another that lives while it does, or with its heir."""
    rows = plan.buffers
    end = max(rows.offset[neighbour] + rows.bytes[neighbour] for neighbour in range(len(rows)))
    return offset + rows.bytes[row] <= end and any(
        rows.arena[neighbour] == rows.arena[row]
        and neighbour != row
        and rows.birth[neighbour] < rows.death[row]
        and rows.birth[row] < rows.death[neighbour]
        and rows.offset[neighbour] < offset + rows.bytes[row]
        and offset < rows.offset[neighbour] + rows.bytes[neighbour]
        for neighbour in range(len(rows))
    )


def test_lifetimes_shortened_by_one_op_are_found(broken: Broken) -> None:
    rows, arenas = broken.plan.buffers, broken.plan.arenas
    detected = 0
    for row in range(len(rows)):
        heirs = [heir for heir in range(len(rows)) if rows.takes_over[heir] == rows.id[row] and heir != row]
        short = rows.death[row] - 1
        if (
            arenas.segment[rows.arena[row]] == "stack"
            and not heirs
            and short > rows.birth[row]
            and short < len(broken.plan.order)
        ):
            with pytest.raises(PlanUnsound, match=f"its end destroys buffer {rows.id[row]}.*reads it next"):
                broken.run(broken.with_rows(death=with_entry(rows.death, row, short)))
            detected += 1
    assert detected >= 2


def test_dropped_write_is_found_at_its_op(broken: Broken) -> None:
    for position, op in enumerate(broken.plan.order):
        executor = broken.executor(broken.plan)
        steps = list(executor.bound.steps)
        steps[position] = replace(steps[position], code=())
        wrong = Executor(replace(executor.bound, steps=tuple(steps)))
        with pytest.raises(PlanUnsound, match=rf": op {op} aten\."):
            broken.run(wrong)


def test_wrong_takeover_is_found(broken: Broken) -> None:
    rows = broken.plan.buffers
    hidden, total = broken.row("aten.addmm.default"), broken.row("aten.mm.default")
    first = rows.id.index(
        min(
            rows.id[row]
            for row in range(len(rows))
            if rows.birth[row] == 0 and rows.death[row] > 2 and broken.plan.arenas.segment[rows.arena[row]] == "stack"
        )
    )
    for heir, over in ((hidden, first), (total, first)):
        executor = broken.with_rows(
            takes_over=with_entry(rows.takes_over, heir, rows.id[over]),
            offset=with_entry(rows.offset, heir, rows.offset[over]),
        )
        if rows.death[over] > rows.birth[heir] + 1:
            with pytest.raises(PlanUnsound, match=rf"buffer {rows.id[over]}"):
                broken.run(executor)
            return
    pytest.fail("no buffer outlives the one that takes it over")


def test_write_between_buffers_is_found(broken: Broken) -> None:
    executor = broken.executor(broken.plan)
    slab, end = executor.segments.slabs["stack"], executor.bound.reservation.stack_bytes
    stray = instruction(aten.fill_.Scalar, slab.bytes(end - 1, 1), 77)
    steps = list(executor.bound.steps)
    steps[0] = replace(steps[0], code=(*steps[0].code, stray))
    with pytest.raises(PlanUnsound, match=r"op 0 .* writes outside of all buffers|op 0 .* changes"):
        broken.run(Executor(replace(executor.bound, steps=tuple(steps))))


class Hollow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        empty = torch.empty(64, 64)
        empty[:32] = x[:32]
        return empty * 2


def test_model_that_reads_unwritten_memory_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    hollow = Broken(monkeypatch, Hollow)
    with pytest.raises(InvalidConfig, match=r"aten\.mul.*the model makes empty and does not fill"):
        hollow.run(hollow.executor(hollow.plan))


def test_order_that_reads_before_it_writes_is_found(broken: Broken) -> None:
    order = list(broken.plan.order)
    order[0], order[1] = order[1], order[0]
    with pytest.raises(PlanUnsound, match=r"which no op has written|other than"):
        broken.run(broken.executor(replace(broken.plan, order=tuple(order))))
