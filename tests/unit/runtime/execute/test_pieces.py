"""A run in pieces has the bits of a whole one, whoever runs between; only live bytes move, and only for others."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.harness import TOKEN, capture_program, plan_of, weights_of
from tests.unit.runtime.steps.test_execution_stream import GPU, Cuda, steps
from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.execute.pieces import BufferWindow, PieceRunner, live_versions
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.sizing import SegmentSizes
from tmmu.runtime.memory.stack import StackSegment
from tmmu.runtime.steps.execution_stream import CudaExecutionStream
from tmmu.runtime.steps.launch_plan import launch_plan_of

WIDTH = 16


class Chain(nn.Module):
    """Products and elementwise ops, whose results take over arguments, and one value that is read at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x.sin()
        y = first
        for block in self.blocks:
            y = block(y).tanh() + y
        return y * first


class Blocks(Chain):
    """The same, and the input is read at both ends, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x


class Grows(nn.Module):
    """A module that changes its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1).cos()


def executor_of(maker: Any, x: torch.Tensor, segments: Segments | None = None, **options: Any) -> Executor:
    torch.manual_seed(0)
    module = maker().eval()
    program, _ = capture_program(maker, {"x": torch.zeros_like(x)})
    return bind(program, plan_of(program), token=TOKEN, weights=weights_of(module), segments=segments, **options)


@pytest.fixture(scope="module")
def pair() -> tuple[Executor, Executor]:
    """Two executors, of a small and a larger input, on one stack."""
    segments = Segments(SegmentSizes(text=1 << 14, data=1 << 10, stack=1 << 14))
    small, large = torch.zeros(2, WIDTH), torch.zeros(8, WIDTH)
    return (
        executor_of(Blocks, small, segments, session="small"),
        executor_of(Blocks, large, segments, session="large"),
    )


def rows(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("replay", [True, False])
def test_a_cut_behind_any_op_leaves_the_bits_of_a_whole_run(replay: bool) -> None:
    x, other = rows(8, 1), rows(8, 2)
    executor = executor_of(Blocks, x, replay=replay)
    (expected,), (between,) = executor(x=x), executor(x=other)
    pieces = PieceRunner(executor)
    for position in range(len(executor.order) + 1):
        run = pieces.start({"x": x}, position)
        assert executor(x=other)[0].equal(between)
        assert run.bytes_saved == run.live_bytes
        assert run.finish()[0].equal(expected)
        assert run.bytes_restored == run.bytes_saved
        assert not run.is_paused


def test_a_cut_captures_the_piece_around_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(8, 1)
    executor = executor_of(Blocks, x)
    pieces, captured = PieceRunner(executor), []
    capture, end = executor.launches_of, len(executor.order)
    monkeypatch.setattr(executor, "launches_of", lambda *span: captured.append(span) or capture(*span))
    for position in (6, 3, 6, 3, 8):
        pieces.start({"x": x}, position).finish()
    assert captured == [(0, 6), (6, end), (0, 3), (3, 6), (6, 8), (8, end)]
    assert pieces.piece_count == 4


def test_nothing_moves_where_nobody_needs_the_room(pair: tuple[Executor, Executor]) -> None:
    small, large = pair
    x = rows(8, 3)
    (expected,) = large(x=x)
    pieces, room = PieceRunner(large), small.bound.reservation.stack_bytes
    lows = [[low for low, _ in pieces.stack_ranges(p).values()] for p in range(len(large.order))]
    position = next(p for p, found in enumerate(lows) if found and min(found) < room <= max(found))
    run = pieces.start({"x": x}, position)
    assert run.live_bytes > 0
    assert run.finish()[0].equal(expected)
    assert run.bytes_saved == 0
    run = pieces.start({"x": x}, position)
    small(x=rows(2, 4))
    moved = run.bytes_saved  # of the buffers that lie where the smaller one runs, and of no other
    assert 0 < moved < run.live_bytes
    small(x=rows(2, 5))
    assert run.bytes_saved == moved
    assert run.finish()[0].equal(expected)
    assert run.bytes_restored == moved


def test_whoever_gets_one_byte_of_a_buffer_moves_that_buffer_alone(pair: tuple[Executor, Executor]) -> None:
    _, large = pair
    x, pieces = rows(8, 12), PieceRunner(large)
    (expected,) = large(x=x)
    ranges = pieces.stack_ranges(4)
    assert len(ranges) > 1
    for low, high in ranges.values():
        for first, last in ((low, low + 1), (high - 1, high)):
            run = pieces.start({"x": x}, 4)
            run.make_room(high, high)
            assert run.bytes_saved == 0
            run.make_room(first, last)
            assert run.bytes_saved == high - low
            large.bound.segments.slabs["stack"].bytes(low, high - low).fill_(0xA5)
            assert run.finish()[0].equal(expected)


def test_several_runs_wait_at_once_and_go_on_in_any_order(pair: tuple[Executor, Executor]) -> None:
    small, large = pair
    inputs = [rows(8, 6), rows(2, 7), rows(8, 8)]
    executors = [large, small, large]
    expected = [executor(x=x)[0] for executor, x in zip(executors, inputs, strict=True)]
    pieces = {id(executor): PieceRunner(executor) for executor in pair}
    runs = [pieces[id(e)].start({"x": x}, 3) for e, x in zip(executors, inputs, strict=True)]
    inputs[0].zero_()  # the caller may use his tensors again
    for run in runs[::-1]:
        run.advance(6)
    for index in (1, 0, 2):
        assert runs[index].finish()[0].equal(expected[index])


def test_binding_another_plan_moves_what_waits() -> None:
    segments = Segments(SegmentSizes(text=1 << 14, data=1 << 10, stack=1 << 14))
    x = rows(8, 9)
    executor = executor_of(Blocks, x, segments, session="first")
    (expected,) = executor(x=x)
    run = PieceRunner(executor).start({"x": x}, 5)
    executor_of(Blocks, x, segments, session="second")
    assert run.bytes_saved == run.live_bytes
    assert run.finish()[0].equal(expected)


def windows_of(executor: Executor, position: int) -> Sequence[BufferWindow]:
    graph = executor.bound.graph
    versions = live_versions(graph, executor.bound.plan, position)
    return [
        BufferWindow(
            buffer=buffer,
            offset=graph.values.offset[value],
            shape=graph.values.shape[value],
            stride=graph.values.stride[value],
            dtype=graph.values.dtype[value],
        )
        for buffer, written in versions.items()
        for value in graph.ops.writes[executor.bound.plan.order[written]]
        if graph.values.buffer[value] == buffer
    ]


@pytest.mark.parametrize("is_moved", [False, True])
def test_values_are_read_and_replaced_wherever_they_are(is_moved: bool) -> None:
    x, other = rows(8, 10), rows(8, 11)
    executor = executor_of(Chain, x)
    pieces = PieceRunner(executor)
    (expected,) = executor(x=other)
    position = 5
    source, run = pieces.start({"x": other}, position), pieces.start({"x": x}, position)
    if is_moved:
        executor(x=torch.zeros(8, WIDTH))
    assert bool(run.bytes_saved) is is_moved
    for window in windows_of(executor, position):
        copy = source.read(window)
        run.write(window, copy)
        assert run.read(window).equal(copy)
        copy.zero_()  # a copy: nothing of the run
    assert run.finish()[0].equal(expected)
    source.discard()


def test_refusals_of_a_run(pair: tuple[Executor, Executor]) -> None:
    _, large = pair
    run = PieceRunner(large).start({"x": rows(8, 1)}, 4)
    window = windows_of(large, 4)[0]
    with pytest.raises(InvalidConfig, match=r"float32\[8, 16\], and the tensor float64\[8, 16\]"):
        run.write(window, torch.zeros(8, WIDTH, dtype=torch.float64))
    with pytest.raises(InvalidConfig, match=r"and the tensor float32\[16\]"):
        run.write(window, torch.zeros(WIDTH))
    for position in (3, len(large.order) + 1):
        with pytest.raises(InvalidConfig, match="does not go on to"):
            run.advance(position)
    absent = BufferWindow(buffer=len(large.bound.graph.buffers), offset=0, shape=(1,), stride=(1,), dtype="float32")
    with pytest.raises(InvalidConfig, match="is not live behind 4 ops"):
        run.read(absent)
    run.discard()
    run.discard()
    for call in (lambda: run.read(window), run.finish, lambda: run.advance(5)):
        with pytest.raises(InvalidConfig, match="not paused any more"):
            call()
    large(x=rows(8, 1))
    assert run.bytes_saved == 0


def test_program_that_changes_its_inputs_is_refused() -> None:
    with pytest.raises(UnsupportedOp, match="changes its inputs"):
        PieceRunner(executor_of(Grows, torch.zeros(2, WIDTH)))


def test_op_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch, pair: tuple[Executor, Executor]) -> None:
    _, large = pair
    pieces = PieceRunner(large)
    run = pieces.start({"x": rows(8, 1)}, 4)

    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tmmu.runtime.execute.pieces.run_launches", fail)
        with pytest.raises(KeyboardInterrupt):
            run.finish()
    assert not run.is_paused
    assert large.segments.stack.usage.used == 0
    assert large(x=rows(8, 2))[0].isfinite().all()


class Stubborn:
    """Parked bytes that cannot be moved."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def make_room(self, low: int, high: int) -> None:
        self.ranges.append((low, high))
        raise MemoryError


def test_nobody_gets_bytes_that_cannot_be_moved(pair: tuple[Executor, Executor]) -> None:
    stack = StackSegment(1024)
    parked = Stubborn()
    stack.park(parked)
    with pytest.raises(MemoryError):
        stack.push(300)
    assert (stack.usage.used, parked.ranges) == (0, [(0, 512)])
    stack.unpark(parked)
    stack.unpark(parked)
    assert stack.push(300) == 0

    _, large = pair
    (expected,) = large(x=rows(8, 1))
    run = PieceRunner(large).start({"x": rows(8, 1)}, 4)
    large.segments.stack.park(parked)
    with pytest.raises(MemoryError):
        run.finish()
    large.segments.stack.unpark(parked)
    assert run.is_paused  # and may be tried again
    assert run.finish()[0].equal(expected)


def test_no_graph_of_a_gpu_reaches_across_a_cut() -> None:
    cuda, marks = Cuda(), [torch.zeros(1) for _ in range(8)]
    stream = CudaExecutionStream(GPU, cuda=cuda)
    pieces = [launch_plan_of(steps(8, marks), stream, replay=True, span=span) for span in ((0, 5), (5, 8))]
    assert [[(launch.first, launch.last) for launch in piece] for piece in pieces] == [[(0, 5)], [(5, 8)]]
    assert [mark.item() for mark in marks] == [1] * 8  # each captured once, in its piece
    assert len(cuda.graphs) == 2
