"""What the planner makes runs: right in every interleaving, and in just the time that it promises."""

from random import Random
from typing import Any

import pytest

from tests.rings import lacking
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

PERIOD = 12
"""Passes after which a schedule repeats itself, whichever of its cycles of up to 4 passes is the slowest."""


def drawn(seed: int) -> tuple[RingProblem, Ring, Candidate] | None:
    """A problem of up to seven blocks, some visited twice, and a policy's ring for it in some budget, if any."""
    draw = Random(seed)
    count = draw.randint(1, 7)
    order = [*range(count), *(draw.randrange(count) for _ in range(draw.choice((0, 0, 2))))]
    draw.shuffle(order)
    number = {block: n for n, block in enumerate(dict.fromkeys(order))}
    visits, at = [], 0
    for block in order:
        last = at + draw.randint(0, 2)
        visits.append(Visit(block=number[block], first=at, last=last))
        at = last + 1 + draw.randint(0, 1)
    sizes = tuple(draw.randint(1, 9) for _ in range(count))
    problem = RingProblem(
        names=tuple(map(str, range(count))),
        bytes=sizes,
        members=((),) * count,
        pinned=(False,) * count,
        visits=tuple(visits),
        op_ns=tuple(draw.randint(0, 9) for _ in range(at)),
        copy_ns=tuple(1 + size for size in sizes),
        alignment=1,
    )
    policy, capacity = draw.choice(list(POLICY)), draw.randint(max(sizes), sum(sizes) + 2)
    choice = POLICY[policy](problem, capacity, draw.randint(0, 2))
    return choice and (problem, assemble(problem, choice, policy=policy, capacity=capacity), choice)


def drive_ops(loop: StreamingLoop, problem: RingProblem, passes: int) -> None:
    """Every op of every pass, reading all blocks that are there for it, the last one by a name of its own."""
    visits = loop.ring.visits
    for turn in range(passes):
        for at, cost in enumerate(problem.op_ns):
            for index, visit in enumerate(visits):
                if visit.first == at:
                    loop.enter(index)
            reads = [
                loop.read_task(index).reads for index, visit in enumerate(visits) if visit.first <= at <= visit.last
            ]
            name = f"pass {turn} op {at}"
            work = Task(name=name, reads=tuple(access for row in reads for access in row), compute_ns=cost)
            loop.device.submit(loop.device.caller_stream(), work)
            for index, visit in enumerate(visits):
                if visit.last == at:
                    loop.leave(index)


def driven(device: Device, found: tuple[Any, ...], passes: int, **options: object) -> StreamingLoop:
    problem, ring = found[:2]
    loop = StreamingLoop(device, ring, PlaceholderBlocks(ring), **options)  # type: ignore[arg-type]
    drive_ops(loop, problem, passes)
    return loop


RINGS = [found for seed in range(400) if (found := drawn(seed))]


def test_there_are_rings_of_every_policy_that_stream() -> None:
    assert {ring.policy for _, ring, _ in RINGS if ring.copies} == set(POLICY)
    assert any(block.resident for _, ring, _ in RINGS for block in ring.blocks)


def test_a_pass_takes_what_the_planner_says_to_the_nanosecond() -> None:
    for found in RINGS:
        problem, ring, choice = found
        device = VirtualDevice(LinkSpeed(NS_PER_SECOND, overhead_ns=1))
        loop = driven(device, found, 5 * PERIOD)
        ends = {work.name: work.end for work in device.timeline().tasks}
        last = len(problem.op_ns) - 1
        took = ends[f"pass {5 * PERIOD - 1} op {last}"] - ends[f"pass {4 * PERIOD - 1} op {last}"]
        assert took == PERIOD * choice.pass_time.ns, ring
        assert loop.counters.held_back == 0


def test_it_is_right_in_every_interleaving() -> None:
    for found in RINGS[:150]:
        device = ExplorerDevice()
        driven(device, found, 3)
        explored = device.explore()
        assert explored.complete
        assert not explored.counterexamples, explored.counterexamples[0]
        assert not explored.deadlocked
        assert not races(device.log)


@pytest.mark.parametrize("fence", [Fence.COPY_LANDED, Fence.READERS_DONE])
def test_and_wrong_without_its_fences(fence: Fence) -> None:
    for found in [found for found in RINGS if found[1].copies][:40]:
        device = ExplorerDevice()
        driven(device, found, 3, fence_filter=lacking(fence))
        assert races(device.log)
        assert device.explore(first_only=True).counterexamples


def test_without_prefetch_a_pass_takes_all_copies_and_all_computing_one_after_another() -> None:
    for found in [found for found in RINGS if found[1].copies][:40]:
        problem, ring, _ = found
        device = VirtualDevice(LinkSpeed(NS_PER_SECOND, overhead_ns=1))
        driven(device, found, 2, prefetch=False)
        ends = {work.name: work.end for work in device.timeline().tasks}
        last = len(problem.op_ns) - 1
        took = ends[f"pass 1 op {last}"] - ends[f"pass 0 op {last}"]
        copies = sum(problem.copy_ns[ring.visits[copy.visit].block] for copy in ring.copies)
        assert took == copies + problem.compute_ns


def test_eighty_layers_of_a_70b_model_keep_a_24_gb_link_busy() -> None:
    """140 GB in bf16 through 48 GB: what is resident is not moved, and what is moved fills the link."""
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
    driven(device, (problem, ring), 4)
    times = device.timeline()
    ends_at = {work.name: work.end for work in times.tasks}
    last = len(sizes) - 1
    took = ends_at[f"pass 3 op {last}"] - ends_at[f"pass 2 op {last}"]
    busy = sum(link.copy_ns(ring.blocks[ring.visits[copy.visit].block].bytes) for copy in ring.copies)
    assert busy * 100 >= took * 99
    pure = sum(map(link.copy_ns, sizes))
    assert pure * 10 >= took * 14
    assert not device.mismatches()
    assert not races(device.log)
