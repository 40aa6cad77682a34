"""Planned rings run as predicted: right in every interleaving, and in exactly the predicted time."""

from functools import cache
from random import Random
from typing import Any

import pytest

from tests.rings import without
from tmmu.ir.ring import Ring, Visit
from tmmu.planner.ring.assemble import assemble
from tmmu.planner.ring.policies import POLICY, Candidate
from tmmu.planner.ring.prepare import RingRequest, plan_ring
from tmmu.planner.ring.problem import RingProblem
from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.interface import Device, Task
from tmmu.runtime.device.races import races
from tmmu.runtime.device.virtual import NS_PER_SECOND, LinkSpeed, VirtualDevice
from tmmu.runtime.ring.fences import Fence
from tmmu.runtime.ring.loop import PlaceholderBlocks, StreamingLoop

pytestmark = pytest.mark.slow

PERIOD = 12
"""Passes after which a schedule repeats itself, whichever of its cycles of up to 4 passes is the slowest."""


def random_ring(seed: int) -> tuple[RingProblem, Ring, Candidate] | None:
    """A problem of up to seven blocks, some visited twice, and a policy's ring for it in some budget, if any."""
    pick = Random(seed)
    count = pick.randint(1, 7)
    order = [*range(count), *(pick.randrange(count) for _ in range(pick.choice((0, 0, 2))))]
    pick.shuffle(order)
    number = {block: n for n, block in enumerate(dict.fromkeys(order))}
    visits, position = [], 0
    for block in order:
        last = position + pick.randint(0, 2)
        visits.append(Visit(block=number[block], first=position, last=last))
        position = last + 1 + pick.randint(0, 1)
    sizes = tuple(pick.randint(1, 9) for _ in range(count))
    problem = RingProblem(
        names=tuple(map(str, range(count))),
        bytes=sizes,
        members=((),) * count,
        pinned=(False,) * count,
        visits=tuple(visits),
        op_ns=tuple(pick.randint(0, 9) for _ in range(position)),
        copy_ns=tuple(1 + size for size in sizes),
        alignment=1,
    )
    policy, capacity = pick.choice(list(POLICY)), pick.randint(max(sizes), sum(sizes) + 2)
    choice = POLICY[policy](problem, capacity, pick.randint(0, 2))
    return choice and (problem, assemble(problem, choice, policy=policy, capacity=capacity), choice)


def run_ops(loop: StreamingLoop, problem: RingProblem, passes: int) -> None:
    """Submits every op of every pass as a task that reads all blocks whose visits cover it."""
    visits = loop.ring.visits
    for pass_index in range(passes):
        for position, cost in enumerate(problem.op_ns):
            for index, visit in enumerate(visits):
                if visit.first == position:
                    loop.enter(index)
            covering = [index for index, visit in enumerate(visits) if visit.first <= position <= visit.last]
            reads = tuple(access for index in covering for access in loop.read_task(index).reads)
            task = Task(name=f"pass {pass_index} op {position}", reads=reads, compute_ns=cost)
            loop.device.submit(loop.device.caller_stream(), task)
            for index, visit in enumerate(visits):
                if visit.last == position:
                    loop.leave(index)


def run_ring(device: Device, case: tuple[Any, ...], passes: int, **options: object) -> StreamingLoop:
    problem, ring = case[:2]
    loop = StreamingLoop(device, ring, PlaceholderBlocks(ring), **options)  # type: ignore[arg-type]
    run_ops(loop, problem, passes)
    return loop


@cache
def rings() -> tuple[tuple[RingProblem, Ring, Candidate], ...]:
    """Drawn when a test asks: collecting the tests makes none."""
    return tuple(case for seed in range(400) if (case := random_ring(seed)))


def test_random_rings_stream_under_every_policy() -> None:
    assert {ring.policy for _, ring, _ in rings() if ring.copies} == set(POLICY)
    assert any(block.resident for _, ring, _ in rings() for block in ring.blocks)


def test_pass_takes_the_predicted_time_to_the_nanosecond() -> None:
    for case in rings():
        problem, ring, choice = case
        device = VirtualDevice(LinkSpeed(NS_PER_SECOND, overhead_ns=1))
        loop = run_ring(device, case, 5 * PERIOD)
        ends = {task.name: task.end for task in device.timeline().tasks}
        last = len(problem.op_ns) - 1
        took = ends[f"pass {5 * PERIOD - 1} op {last}"] - ends[f"pass {4 * PERIOD - 1} op {last}"]
        assert took == PERIOD * choice.pass_time.ns, ring
        assert loop.counters.held_back == 0


def test_planned_rings_are_right_in_every_interleaving() -> None:
    for case in rings()[:150]:
        device = ExplorerDevice()
        run_ring(device, case, 3)
        explored = device.explore()
        assert explored.complete
        assert not explored.counterexamples, explored.counterexamples[0]
        assert not explored.deadlocked
        assert not races(device.log)


@pytest.mark.parametrize("fence", [Fence.COPY_LANDED, Fence.READERS_DONE])
def test_planned_rings_are_wrong_without_a_fence(fence: Fence) -> None:
    for case in [case for case in rings() if case[1].copies][:40]:
        device = ExplorerDevice()
        run_ring(device, case, 3, fence_filter=without(fence))
        assert races(device.log)
        assert device.explore(first_only=True).counterexamples


def test_pass_without_prefetch_takes_all_copies_and_all_compute() -> None:
    for case in [case for case in rings() if case[1].copies][:40]:
        problem, ring, _ = case
        device = VirtualDevice(LinkSpeed(NS_PER_SECOND, overhead_ns=1))
        run_ring(device, case, 2, prefetch=False)
        ends = {task.name: task.end for task in device.timeline().tasks}
        last = len(problem.op_ns) - 1
        took = ends[f"pass 1 op {last}"] - ends[f"pass 0 op {last}"]
        copies = sum(problem.copy_ns[ring.visits[copy.visit].block] for copy in ring.copies)
        assert took == copies + problem.compute_ns


def test_70b_model_keeps_a_24_gb_link_busy() -> None:
    """140 GB in bfloat16 through 48 GB: resident blocks are not moved, and the others fill the link."""
    layer, ends, layers = 1_711_308_800, 2_101_346_304, 80
    link = LinkSpeed(24 * 10**9, overhead_ns=10_000)
    sizes = (ends, *(layer for _ in range(layers)), ends)
    problem = RingProblem(
        names=tuple(map(str, range(len(sizes)))),
        bytes=sizes,
        members=((),) * len(sizes),
        pinned=(False,) * len(sizes),
        visits=tuple(Visit(block=n, first=n, last=n) for n in range(len(sizes))),
        op_ns=(1_000, *(1_200_000 for _ in range(layers)), 1_500_000),
        copy_ns=tuple(link.copy_ns(size) for size in sizes),
        alignment=256,
    )
    ring = plan_ring(problem, RingRequest(capacity=48 * 10**9, depth=2))
    device = VirtualDevice(link)
    run_ring(device, (problem, ring), 4)
    times = device.timeline()
    ends_at = {task.name: task.end for task in times.tasks}
    last = len(sizes) - 1
    took = ends_at[f"pass 3 op {last}"] - ends_at[f"pass 2 op {last}"]
    busy = sum(link.copy_ns(ring.blocks[ring.visits[copy.visit].block].bytes) for copy in ring.copies)
    assert busy * 100 >= took * 99
    pure = sum(map(link.copy_ns, sizes))
    assert pure * 10 >= took * 14
    assert not device.mismatches()
    assert not races(device.log)
