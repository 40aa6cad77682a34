"""Two programs over one stream of weights: their passes alternate, and each has the bits of its resident executor."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import TOKEN, Tensors, capture_program, plan_of, randomize, same_bits, weights_of
from tests.runtime.test_ring_executor import LAYERS, WIDTH, Layer, Stack, jittery, with_ring
from tmmu.errors import InvalidConfig, PlanMismatch, PlanUnsound, UnsupportedOp
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.ir.ring import Visit
from tmmu.planner.ring.follow import NamedRing, follow_ring
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.ring.executor import RingOptions, StreamedExecutor, bind_beside, bind_ring
from tmmu.runtime.ring.streamed_weights import StreamedWeights

pytestmark = pytest.mark.usefixtures("one_thread")


def inputs_of(rows: int, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    pick = torch.randint(0, 4, (rows,), generator=generator)
    return {"x": torch.randn(rows, WIDTH, generator=generator), "pick": pick}


@pytest.fixture(scope="module")
def programs() -> tuple[Program, Program]:
    """Of three rows, and of seven."""
    return capture_program(Stack, inputs_of(3))[0], capture_program(Stack, inputs_of(7))[0]


def leader_of(program: Program) -> tuple[Plan, NamedRing]:
    plan = with_ring(program, share=3)
    assert plan.ring is not None
    return plan, NamedRing(ring=plan.ring, names=program.graph.notes.buffers)


def request_of(program: Program, plan: Plan, module: Any) -> BindRequest:
    return BindRequest(program=program, plan=plan, token=TOKEN, weights=weights_of(module))


def bound_pair(programs: tuple[Program, Program], device: Any, module: Any) -> list[StreamedExecutor]:
    first, second = programs
    plan, leader = leader_of(first)
    executor = bind_ring(request_of(first, plan, module), device, RingOptions(poison=True))
    followed = follow_ring(second.graph, plan_of(second), leader)
    return [executor, bind_beside(request_of(second, followed, module), executor.weights)]


def test_passes_of_two_programs_alternate(programs: tuple[Program, Program]) -> None:
    module, draw = randomize(Stack()).eval(), Random(0)
    tags, recording = TagChecker(), CommandRecorder()
    device = jittery(tags, recording)
    pair = bound_pair(programs, device, module)
    resident = [bind(program, plan_of(program), token=TOKEN, weights=weights_of(module)) for program in programs]
    for seed in range(60):
        number = draw.randrange(2)
        inputs = inputs_of((3, 7)[number], seed)
        assert all(map(same_bits, pair[number].run(inputs), resident[number].run(inputs))), seed
    counts = pair[0].loop.counters
    assert counts.passes == 60
    assert counts.held_back == 0
    pair[1].close()
    pair[0].run(inputs_of(3))  # the weights are the first one's, and go with it
    pair[0].close()
    device.close()
    assert not tags.mismatches
    assert not races(recording.log)


def test_pass_that_breaks_off_is_forgotten_by_the_other_program(programs: tuple[Program, Program]) -> None:
    module, device = randomize(Stack()).eval(), jittery()
    first, second = bound_pair(programs, device, module)
    before = second.run(inputs_of(7))
    passes = first.loop.counters.passes
    with pytest.raises(InvalidConfig):
        first.run({**inputs_of(3), "pick": torch.full((3,), 9)})  # there are four rows to pick from
    assert all(map(same_bits, second.run(inputs_of(7)), before))
    assert first.loop.counters.passes == passes + 1
    first.close()
    device.close()


def test_binding_beside_a_stream_leaves_what_it_holds_alone(programs: tuple[Program, Program]) -> None:
    module, device = randomize(Stack()).eval(), jittery()
    plan, leader = leader_of(programs[0])
    executor = bind_ring(request_of(programs[0], plan, module), device)
    before = executor.run(inputs_of(3))
    resident = [block for block in executor.loop.ring.blocks if block.resident]
    assert resident
    held = [executor.weights.slab.bytes(block.address, block.bytes).clone() for block in resident]
    bind_beside(
        request_of(programs[1], follow_ring(programs[1].graph, plan_of(programs[1]), leader), module), executor.weights
    )
    for block, kept in zip(resident, held, strict=True):
        assert torch.equal(executor.weights.slab.bytes(block.address, block.bytes), kept)
    assert all(map(same_bits, executor.run(inputs_of(3)), before))
    executor.close()
    device.close()


class Backwards(Stack):
    """The same weights, read from the last layer to the first."""

    def forward(self, x: torch.Tensor, pick: torch.Tensor) -> torch.Tensor:
        x = x + self.table(pick)
        for layer in reversed(self.layers):
            x = layer(x)
        return x


class Longer(Stack):
    """A layer more."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.append(Layer())


@pytest.mark.parametrize("other", [Backwards, Longer])
def test_steps_that_read_otherwise_do_not_share_a_ring(programs: tuple[Program, Program], other: type[Stack]) -> None:
    _, leader = leader_of(programs[0])
    program = capture_program(other, inputs_of(3))[0]
    with pytest.raises(UnsupportedOp, match="cannot share one stream of weights"):
        follow_ring(program.graph, plan_of(program), leader)


def test_a_ring_of_its_own_is_not_bound_beside_another(programs: tuple[Program, Program]) -> None:
    module, device = randomize(Stack()).eval(), jittery()
    plan, _ = leader_of(programs[0])
    executor = bind_ring(request_of(programs[0], plan, module), device)
    assert plan.ring is not None
    other = with_ring(programs[1], share=2)
    with pytest.raises(PlanMismatch, match="not that of the weights"):
        bind_beside(request_of(programs[1], other, module), executor.weights)
    with pytest.raises(InvalidConfig, match="no ring"):
        bind_beside(request_of(programs[1], plan_of(programs[1]), module), executor.weights)
    broken = replace(plan, ring=replace(plan.ring, copies=plan.ring.copies[1:]))
    with pytest.raises(PlanUnsound):
        bind_beside(request_of(programs[0], broken, module), executor.weights)
    assert len(plan.ring.blocks) > LAYERS // 2
    executor.close()
    device.close()


class Looked(nn.Module):
    """Each layer looks rows up by numbers that are a weight of its own, so that bytes of another layer are no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        for index, layer in enumerate(self.layers):
            layer.register_buffer("rows", torch.randperm(64, generator=torch.Generator().manual_seed(index)))
            layer.table = nn.Parameter(torch.zeros(64, WIDTH))

    def forward(self, x: torch.Tensor, pick: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) + layer.table.index_select(0, layer.rows.index_select(0, pick))
        return x


def test_calls_are_tried_beside_a_stream_on_zeros() -> None:
    programs = tuple(capture_program(Looked, inputs_of(rows))[0] for rows in (3, 7))
    module, device = Looked().eval(), jittery()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    first, second = bound_pair(programs, device, module)
    first.run(inputs_of(3))  # and with poison, what was read is 255s
    third = bind_beside(request_of(programs[1], second.bound.plan, module), first.weights)
    assert third.launch_count == second.launch_count
    resident = bind(programs[1], plan_of(programs[1]), token=TOKEN, weights=weights_of(module))
    assert all(map(same_bits, third.run(inputs_of(7)), resident.run(inputs_of(7))))
    first.close()
    device.close()


def visits_of(*spans: tuple[int, int]) -> tuple[Visit, ...]:
    return tuple(Visit(block=0, first=first, last=last) for first, last in spans)


@pytest.mark.parametrize(
    ("spans", "is_same"),
    [
        (((0, 5), (7, 9)), True),  # other ops, the same order
        (((0, 3), (3, 6)), False),  # the second begins before the first has ended
        (((0, 6), (3, 6)), False),  # and both end at once
    ],
)
def test_passes_alternate_where_visits_begin_and_end_in_the_same_order(
    programs: tuple[Program, Program], spans: tuple[tuple[int, int], ...], is_same: bool
) -> None:
    plan, _ = leader_of(programs[0])
    assert plan.ring is not None
    graph, ring = programs[0].graph, replace(plan.ring, visits=visits_of((0, 2), (3, 4)))
    loop: Any = SimpleNamespace(ring=ring)
    weights = StreamedWeights(device=jittery(), graph=graph, loop=loop, image=loop)
    other = replace(ring, visits=visits_of(*spans))
    if is_same:
        weights.require_same_passes(graph, other)
    else:
        with pytest.raises(PlanMismatch, match="in another order"):
            weights.require_same_passes(graph, other)
    weights.device.close()  # type: ignore[attr-defined]
