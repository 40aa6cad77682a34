"""Host copies are right in every interleaving; without any one kind of fence some interleaving is wrong."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest
import torch

from tests.runtime.harness import TOKEN, same_bits
from tests.strategies import seeded
from tests.unit.judge.rewrite.host_copies import random_copies, rewrite_of
from tests.unit.judge.rewrite.programs import convolutions, step
from tests.unit.judge.rewrite.test_runs import run, weights
from tests.unit.planner.fit.offload.test_offload import offloaded
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.ir.ids import ValueId
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import FROM_HOST, TO_HOST
from tmmu.judge.rewrite.check import require_meaning
from tmmu.passes.lowering.read_calls import read_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.runtime.compare.run import bind_resident
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.interface import Access, ByteRange, Observer, Task
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.offload.copies import HostCopy, host_copies
from tmmu.runtime.offload.executor import OffloadedExecutor, bind_offloaded, stack_spans
from tmmu.runtime.offload.fences import HostFence, HostFenceFilter, all_fences
from tmmu.runtime.offload.loop import HostCopyLoop

STACK, HOST = 0, 1
LENGTH = 6


def without(*fences: HostFence) -> HostFenceFilter:
    return lambda fence, _: fence not in fences


def op(number: int, *, reads: tuple[int, ...] = (), writes: tuple[int, ...] = ()) -> Task:
    """On buffers of four bytes: 0 and 1 begin at byte 0, 2 at byte 4."""

    def access(buffer: int) -> Access:
        begin = {0: 0, 1: 0, 2: 4}[buffer]
        return Access(ByteRange(STACK, begin, begin + 4), buffer)

    return Task(name=f"op {number}", reads=tuple(map(access, reads)), writes=tuple(map(access, writes)))


def one_trip() -> tuple[tuple[HostCopy, ...], dict[int, Task]]:
    """0 is made, goes at op 1, while 1 has its bytes; comes back as 2, where another 2 has just been read."""
    on_host, first, last = ByteRange(HOST, 0, 4), ByteRange(STACK, 0, 4), ByteRange(STACK, 4, 8)
    copies = (
        HostCopy(op=1, begin=1, end=1, source=first, target=on_host, contents=(0, 10), to_host=True),
        HostCopy(op=4, begin=4, end=5, source=on_host, target=last, contents=(10, 2), to_host=False),
    )
    return copies, {0: op(0, writes=(0, 2)), 2: op(2, writes=(1,)), 3: op(3, reads=(1, 2)), 5: op(5, reads=(2,))}


def planned(graph: Graph) -> Plan:
    return prepare_memory(graph, mode="backward", preset="train_full", token=TOKEN, arenas=default_arenas())


def planned_trips(seed: int) -> tuple[tuple[HostCopy, ...], dict[int, Task], int]:
    """Copies of a captured step at random, where its plan puts them."""
    base = step("masks")
    return placed_copies(rebuild_graph(base, random_copies(base, seeded(seed))))


def placed_copies(graph: Graph) -> tuple[tuple[HostCopy, ...], dict[int, Task], int]:
    """The copies of a graph where its plan puts them, its other ops, and how many ops there are."""
    plan = planned(graph)
    place = dict(zip(plan.buffers.id, plan.buffers.offset, strict=True))

    def range_of(buffer: int, low: int, high: int) -> ByteRange:
        on_host = graph.buffers.role[buffer] == "host"
        offset = 10_000 * buffer if on_host else place[buffer]
        return ByteRange(HOST if on_host else STACK, offset + low, offset + high)

    def accesses(values: tuple[ValueId, ...]) -> tuple[Access, ...]:
        return tuple(Access(range_of(*span), span[0]) for span in stack_spans(graph, values))

    copies = host_copies(graph, plan.order, range_of)  # type: ignore[arg-type]
    copied = {copy.op for copy in copies}
    ops = {
        at: Task(name=f"op {at}", reads=accesses(graph.ops.reads[at]), writes=accesses(graph.ops.writes[at]))
        for at in plan.order
        if at not in copied
    }
    return copies, ops, len(plan.order)


def issue(
    copies: tuple[HostCopy, ...],
    ops: dict[int, Task],
    length: int,
    *,
    runs: int = 2,
    fences: HostFenceFilter = all_fences,
) -> ExplorerDevice:
    device = ExplorerDevice()
    loop = HostCopyLoop(device, copies, length, ops=ops, fence_filter=fences)
    for _ in range(runs):
        for position in loop.positions:
            loop.before(position)
    return device


def require_sound(device: ExplorerDevice) -> None:
    assert not races(device.log), races(device.log)[0]
    exploration = device.explore()
    assert exploration.complete
    assert not exploration.counterexamples, exploration.counterexamples[0]
    assert not exploration.deadlocked


@pytest.mark.parametrize("fence", HostFence)
def test_both_oracles_notice_each_fence_removed(fence: HostFence) -> None:
    copies, ops = one_trip()
    require_sound(issue(copies, ops, LENGTH))
    device = issue(copies, ops, LENGTH, fences=without(fence))
    assert races(device.log)
    assert device.explore(first_only=True).counterexamples


@pytest.mark.parametrize("seed", range(8))
def test_copies_of_planned_steps_are_right_in_all_interleavings(seed: int) -> None:
    copies, ops, length = planned_trips(seed)
    require_sound(issue(copies, ops, length))
    for fence in HostFence if copies else ():
        device = issue(copies, ops, length, fences=without(fence))
        assert races(device.log), fence
        assert device.explore(first_only=True).counterexamples, fence


def test_copy_that_nobody_reads_is_waited_for_while_it_has_bytes() -> None:
    """Both judges pass a value that comes back twice: what nobody reads has its bytes at its own op alone."""
    base = step("masks")
    rewrite = random_copies(base, seeded(1))
    rows = [*zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True)]
    early = [[row, (row[0], FROM_HOST, row[2])] if row[1] == TO_HOST else [row] for row in rows]
    rewrite = rewrite_of(base, [*chain(*early)])
    graph = rebuild_graph(base, rewrite)
    require_meaning(base, graph, rewrite)
    copies, ops, length = placed_copies(graph)
    assert sum(not copy.to_host for copy in copies) == 2 * sum(copy.to_host for copy in copies) > 0
    require_sound(issue(copies, ops, length))


def test_run_that_broke_off_is_waited_for() -> None:
    copies, ops = one_trip()
    device = ExplorerDevice()
    loop = HostCopyLoop(device, copies, LENGTH, ops=ops)
    for position in (*range(5), *range(7)):
        loop.before(position)
    require_sound(device)


@pytest.fixture(scope="module")
def program() -> tuple[Program, Plan]:
    """A step of convolutions with values on the host, and its plan, as those of a graph as it is."""
    base = convolutions("sgd")
    fitted = offloaded(int(planned(base).metrics["peak_bytes.stack"]) * 6 // 10).fitted
    return read_program(fitted.graph), replace(fitted.plan, fit=None)


def executor_on(
    program: tuple[Program, Plan],
    observers: tuple[Observer, ...] = (),
    *,
    fences: HostFenceFilter = all_fences,
    seed: int = 0,
) -> OffloadedExecutor:
    device = ThreadsDevice(observers, jitter=Jitter(seed=seed, max_seconds=2e-4) if observers else None)
    request = BindRequest(
        program=program[0], plan=program[1], token=TOKEN, weights=weights(program[0].graph), device=device.device
    )
    return bind_offloaded(request, device, fence_filter=fences)


def results(executor: OffloadedExecutor, graph: Graph, runs: int = 2) -> Iterator[torch.Tensor]:
    value = graph.inputs[0]
    x = torch.randn(graph.values.shape[value], generator=torch.Generator().manual_seed(5))
    torch.manual_seed(11)
    for _ in range(runs):
        yield from executor.run({graph.notes.buffers[graph.values.buffer[value]]: x})
    yield from (executor.state(name).clone() for name in executor.states)


@pytest.mark.parametrize("seed", range(3))
def test_copies_beside_the_ops_leave_the_bits_of_the_step(program: tuple[Program, Plan], seed: int) -> None:
    log, tags = CommandRecorder(), TagChecker()
    executor = executor_on(program, (log, tags), seed=seed)
    found = list(results(executor, program[0].graph))
    assert all(map(same_bits, run(convolutions("sgd")), found))
    executor.close()
    assert not tags.mismatches, tags.mismatches[0]
    assert not races(log.log), races(log.log)[0]
    counters = executor.loop.counters
    assert counters.copies == 2 * len(executor.loop.copies)
    assert counters.bytes_out == counters.bytes_back > 0
    executor.close()


@pytest.mark.parametrize("fence", HostFence)
def test_run_without_a_fence_is_noticed(program: tuple[Program, Plan], fence: HostFence) -> None:
    log, tags = CommandRecorder(), TagChecker()
    executor = executor_on(program, (log, tags), fences=without(fence))
    list(results(executor, program[0].graph))
    executor.close()
    assert races(log.log)


def test_copies_are_ops_while_somebody_looks_between_them(program: tuple[Program, Plan]) -> None:
    executor = executor_on(program)
    positions: list[int] = []
    executor.attach({position: lambda at=position: positions.append(at) for position in range(3)}, replay=False)  # type: ignore[misc]
    before = executor.loop.counters.copies
    list(results(executor, program[0].graph, runs=1))
    assert positions == [0, 1, 2]
    assert executor.loop.counters.copies == before
    executor.attach({})
    list(results(executor, program[0].graph, runs=1))
    assert executor.loop.counters.copies == len(executor.loop.copies)
    executor.close()


def test_who_runs_a_plan_has_its_copies_beside_the_ops(program: tuple[Program, Plan]) -> None:
    graph, plan = program[0].graph, program[1]
    request = BindRequest(program=program[0], plan=plan, token=TOKEN, weights=weights(graph), device="cpu")
    executor = bind_resident(request)
    assert isinstance(executor, OffloadedExecutor)
    executor.close()
    plain = convolutions("sgd")
    request = BindRequest(
        program=read_program(plain), plan=planned(plain), token=TOKEN, weights=weights(plain), device="cpu"
    )
    with pytest.raises(InvalidConfig, match="no value of the plan goes to the host"):
        bind_offloaded(request, ThreadsDevice())
    bind(read_program(plain), planned(plain), token=TOKEN, weights=weights(plain), device="cpu").close()
