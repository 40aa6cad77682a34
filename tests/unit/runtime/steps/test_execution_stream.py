"""The CUDA execution stream, on a stand-in for torch.cuda: order, capture, scratch, counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tmmu.errors import DeviceMemory, DeviceMissing, InvalidConfig
from tmmu.passes.capture.record.generator import RANDOM_STATE, SET_RANDOM_STATE
from tmmu.runtime.kernels.code import Code, instruction, make_instruction
from tmmu.runtime.kernels.kernel_launches import add_launcher, launch_operator
from tmmu.runtime.steps.build import CompiledStep
from tmmu.runtime.steps.execution_stream import (
    GRAPHS_BY_PLACES,
    CpuExecutionStream,
    CudaExecutionStream,
    execution_stream_of,
)
from tmmu.runtime.steps.launch_plan import launch_plan_of

aten = torch.ops.aten


class Stream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, stream: "Stream") -> None:
        self.log.append(f"{self.name} waits for {stream.name}")


class Event:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def record(self, stream: Stream) -> None:
        self.log.append(f"event on {stream.name}")

    def synchronize(self) -> None:
        self.log.append("host waits")


class Graph:
    """Replays what was called while it was captured, as the real one does."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


class Cuda:
    """What the execution stream uses of torch.cuda."""

    def __init__(self, *, refuse: Any = None, reserved: int = 0) -> None:
        self.log: list[str] = []
        self.graphs: list[Graph] = []
        self.refuse, self.reserved = refuse, reserved
        self.stats = {"allocation.all.allocated": 0, "allocated_bytes.all.allocated": 0}
        self.stats |= {"allocated_bytes.all.current": 0, "allocated_bytes.all.peak": 0}

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802
        return Stream(self.log, "own")

    def Event(self) -> Event:  # noqa: N802
        return Event(self.log)

    def current_stream(self, device: torch.device) -> Stream:
        return Stream(self.log, "caller")

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.log.append(f"on {stream.name}")
        yield
        self.log.append(f"off {stream.name}")

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 7)

    def CUDAGraph(self) -> Graph:  # noqa: N802
        return Graph()

    @contextmanager
    def graph(self, graph: Graph, **options: Any) -> Iterator[None]:
        assert options["pool"] == (0, 7)
        assert options["stream"].name == "own"
        yield
        if self.refuse is not None and self.refuse():
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        self.graphs.append(graph)

    def synchronize(self, device: torch.device) -> None:
        self.log.append("synchronize")

    def memory_snapshot(self) -> list[dict[str, Any]]:
        outside_pool = {"total_size": 1000, "segment_pool_id": (0, 0)}
        return [outside_pool, {"total_size": self.reserved, "segment_pool_id": (0, 7)}]

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.stats["allocated_bytes.all.peak"] = self.stats["allocated_bytes.all.current"]

    def memory_stats(self, device: torch.device) -> dict[str, int]:
        return dict(self.stats)


GPU = torch.device("cuda", 0)


def step(*code: Any) -> CompiledStep:
    return CompiledStep(name="s", code=code, fallback=code, results=(), arguments=(), is_settled=True)


def steps(count: int, marks: list[torch.Tensor]) -> list[CompiledStep]:
    return [step(instruction(aten.add_.Scalar, mark, 1)) for mark in marks[:count]]


def test_run_is_ordered_with_the_work_of_the_caller() -> None:
    cuda = Cuda()
    stream = CudaExecutionStream(GPU, cuda=cuda)
    with stream.activate():
        cuda.log.append("work")
    stream.record_event()()
    assert cuda.log == [
        "own waits for caller", "on own", "work", "off own", "caller waits for own", "event on own", "host waits",
    ]  # fmt: skip


def test_caller_waits_for_a_run_that_fails() -> None:
    cuda = Cuda()
    with pytest.raises(ValueError, match="no"), CudaExecutionStream(GPU, cuda=cuda).activate():
        raise ValueError("no")
    assert cuda.log[-1] == "caller waits for own"


def test_capturable_run_is_one_graph() -> None:
    cuda = Cuda()
    marks = [torch.zeros(1) for _ in range(8)]
    (launch,) = launch_plan_of(steps(8, marks), CudaExecutionStream(GPU, cuda=cuda), replay=True)
    assert (launch.first, launch.last) == (0, 8)
    launch.run()
    assert [graph.replays for graph in cuda.graphs] == [1]
    assert all(mark.item() == 1 for mark in marks)  # while it was captured, and not by the stand-in's replay


def test_calls_that_cannot_be_captured_run_between_graphs() -> None:
    marks = [torch.zeros(1) for _ in range(16)]
    captured: list[float] = []

    def refuse() -> bool:
        """The call of step 5 waits for the device, and nothing that holds it can be captured."""
        touched = marks[5].item() != sum(captured)
        captured[:] = [marks[5].item()]
        return touched

    cuda = Cuda(refuse=refuse)
    stream = CudaExecutionStream(GPU, cuda=cuda)
    launches = launch_plan_of(steps(16, marks), stream, replay=True)
    assert (launches[0].first, launches[0].last) == (0, 4)
    assert (launches[-1].first, launches[-1].last) == (8, 16)
    assert [index for launch in launches for index in range(launch.first, launch.last)] == list(range(16))
    assert len(cuda.graphs) == 2
    assert stream.capture_errors[0] == "operation not permitted when stream is capturing"


def test_state_has_a_graph_for_each_tuple_of_places() -> None:
    own, weight = torch.zeros(2), torch.ones(2)
    cuda = Cuda()
    stream = CudaExecutionStream(GPU, cuda=cuda)
    code = [step(instruction(aten.add_.Tensor, own, weight)) for _ in range(4)]
    (launch,) = launch_plan_of(code, stream, replay=True, arguments=[own])
    assert cuda.graphs == []  # nothing lies where the code was compiled for
    arenas = [torch.zeros(2) for _ in range(GRAPHS_BY_PLACES + 1)]
    for arena in (arenas[0], arenas[1], arenas[0], arenas[0]):
        launch.run(arena)
    assert [graph.replays for graph in cuda.graphs] == [3, 1]
    assert [arena.tolist() for arena in (own, *arenas[:2])] == [[0, 0], [4, 4], [4, 4]]
    for arena in arenas[2:]:
        launch.run(arena)
    assert len(cuda.graphs) == len(arenas)
    launch.run(arenas[0])  # used after the second, whose graph went when the last one came
    assert len(cuda.graphs) == len(arenas)
    launch.run(arenas[1])
    assert len(cuda.graphs) == len(arenas) + 1


def test_state_that_no_graph_can_hold_is_used_call_by_call() -> None:
    own, arena = torch.zeros(2), torch.zeros(2)
    stream = CudaExecutionStream(GPU, cuda=Cuda(refuse=lambda: True))
    code = [step(instruction(aten.add_.Scalar, own, 1)) for _ in range(3)]
    (launch,) = launch_plan_of(code, stream, replay=True, arguments=[own])
    launch.run(arena)  # once in the capture that fails, which a GPU does not run, and once by itself
    assert (own.tolist(), arena.tolist()) == ([0, 0], [6, 6])


def test_launches_of_fused_kernels_are_captured_for_each_place_of_their_state() -> None:
    seen: list[tuple[int, ...]] = []
    number = add_launcher(lambda tensors: seen.append(tuple(tensor.data_ptr() for tensor in tensors)))
    own, weight, arenas = torch.zeros(2), torch.ones(2), [torch.zeros(2) for _ in range(2)]
    cuda = Cuda()
    stream = CudaExecutionStream(GPU, cuda=cuda)
    code = [step(make_instruction(launch_operator(), (number, [weight, own]), {})) for _ in range(3)]
    (launch,) = launch_plan_of(code, stream, replay=True, arguments=[own])
    for arena in (*arenas, arenas[0]):
        launch.run(arena)
    assert seen == [(weight.data_ptr(), arena.data_ptr()) for arena in arenas for _ in range(3)]  # while captured
    assert [graph.replays for graph in cuda.graphs] == [2, 1]


def test_launches_that_would_compile_in_a_capture_are_called_one_by_one() -> None:
    is_capturing, started = [False], list[int]()

    def launch(tensors: Any) -> None:
        if is_capturing[0]:
            raise RuntimeError("not compiled")
        started.append(len(tensors))

    class Capturing(Cuda):
        @contextmanager
        def graph(self, graph: Graph, **options: Any) -> Iterator[None]:
            is_capturing[0] = True
            try:
                with super().graph(graph, **options):
                    yield
            finally:
                is_capturing[0] = False

    cuda = Capturing()
    stream = CudaExecutionStream(GPU, cuda=cuda)
    number = add_launcher(launch)
    code = [step(make_instruction(launch_operator(), (number, [torch.zeros(1)]), {})) for _ in range(4)]
    launches = launch_plan_of(code, stream, replay=True)
    assert (cuda.graphs, started) == ([], [])
    for each in launches:
        each.run()
    assert started == [1] * 4
    assert "not compiled" in stream.capture_errors[0]


@pytest.mark.parametrize("call", [(RANDOM_STATE, "cuda"), (SET_RANDOM_STATE, torch.zeros(16, dtype=torch.uint8))])
def test_random_state_is_read_and_set_between_graphs(call: tuple[Any, ...]) -> None:
    marks = [torch.zeros(1) for _ in range(8)]
    cuda = Cuda()
    stream = CudaExecutionStream(GPU, cuda=cuda)
    others = steps(8, marks)
    launches = launch_plan_of([*others[:4], step(instruction(*call)), *others[4:]], stream, replay=True)
    assert [(launch.first, launch.last) for launch in launches] == [(0, 4), (4, 5), (5, 9)]
    assert len(cuda.graphs) == 2
    assert stream.capture_errors == []


def test_graphs_that_allocate_more_than_scratch_are_refused_with_the_numbers() -> None:
    code: Code = (instruction(aten.zero_.default, torch.zeros(1)),)
    assert CudaExecutionStream(GPU, 4096, cuda=Cuda(reserved=4096)).capture(code) is not None
    with pytest.raises(DeviceMemory, match="allocate 4097 bytes beside the plan, and the scratch is 4096"):
        CudaExecutionStream(GPU, 4096, cuda=Cuda(reserved=4097)).capture(code)


def test_cuda_allocations_are_counted_by_step() -> None:
    cuda = Cuda()
    with CudaExecutionStream(GPU, cuda=cuda).count_allocations() as counter:
        for index, sizes in enumerate([(), (100, 50)]):
            with counter.step_scope(index):
                cuda.stats["allocation.all.allocated"] += len(sizes)
                cuda.stats["allocated_bytes.all.allocated"] += sum(sizes)
                cuda.stats["allocated_bytes.all.peak"] += sum(sizes)
    (total,) = counter.by_operator(["none", "some"])
    assert (total.operator, total.calls, total.bytes, total.peak) == ("some", 1, 150, 150)


def test_missing_devices_are_refused() -> None:
    assert isinstance(execution_stream_of(torch.device("cpu")), CpuExecutionStream)
    with pytest.raises(InvalidConfig, match="plans are not run on meta"):
        execution_stream_of(torch.device("meta"))
    if not torch.cuda.is_available():
        with pytest.raises(DeviceMissing, match=r"there is no cuda:0: torch .* sees 0 GPUs"):
            execution_stream_of(GPU)
    with pytest.raises(DeviceMissing, match=r"there is no cuda:3: torch .* sees 1 GPUs"):
        CudaExecutionStream(torch.device("cuda", 3), cuda=Cuda())
