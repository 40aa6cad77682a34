"""The threads backend: order of streams and events, bytes of copies, failures, and the loop on top."""

from collections.abc import Iterator
from threading import Event as Flag
from threading import active_count, get_ident

import pytest
import torch

from tests.rings import issue_passes, ring_at, run_passes, slot_spans, without
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.interface import Access, ByteRange, Task
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.ring.fences import Fence
from tmmu.runtime.ring.loop import StreamingLoop


@pytest.fixture
def device() -> Iterator[ThreadsDevice]:
    threads = ThreadsDevice()
    yield threads
    threads.close()


def test_stream_runs_in_order_in_its_own_thread(device: ThreadsDevice) -> None:
    done: list[tuple[int, int]] = []
    stream = device.create_stream("s")
    for n in range(20):
        device.submit(stream, Task(name=str(n), run=lambda n=n: done.append((n, get_ident()))))
    device.synchronize()
    assert [n for n, _ in done] == list(range(20))
    assert {ident for _, ident in done} != {get_ident()}
    assert len({ident for _, ident in done}) == 1


def test_inline_caller_runs_at_once(device: ThreadsDevice) -> None:
    done: list[int] = []
    device.submit(device.caller_stream(), Task(name="now", run=lambda: done.append(get_ident())))
    assert done == [get_ident()]


def test_caller_with_a_thread_runs_later() -> None:
    device = ThreadsDevice(inline=False)
    done: list[int] = []
    device.submit(device.caller_stream(), Task(name="later", run=lambda: done.append(get_ident())))
    device.synchronize()
    assert done != [get_ident()]
    device.close()


def test_wait_blocks_the_stream_and_not_the_host(device: ThreadsDevice) -> None:
    gate, done = Flag(), list[str]()
    first, second = device.create_stream("one"), device.create_stream("other")
    event = device.create_event()
    device.submit(first, Task(name="slow", run=gate.wait))
    device.submit(first, Task(name="first", run=lambda: done.append("first")))
    device.record(event, first)
    device.wait(second, event)
    device.submit(second, Task(name="second", run=lambda: done.append("second")))
    assert done == []
    gate.set()
    device.synchronize()
    assert done == ["first", "second"]


def test_wait_captures_the_latest_record_at_its_issue(device: ThreadsDevice) -> None:
    gate, done = Flag(), list[str]()
    first, second = device.create_stream("one"), device.create_stream("other")
    event = device.create_event()
    device.record(event, first)
    device.wait(second, event)
    device.submit(first, Task(name="slow", run=gate.wait))
    device.record(event, first)
    device.submit(second, Task(name="free", run=lambda: (done.append("free"), gate.set())))
    device.synchronize()
    assert done == ["free"]


def test_copy_moves_bytes(device: ThreadsDevice) -> None:
    arena = device.allocate(300)
    data = torch.arange(200, dtype=torch.uint8)
    place = ByteRange(arena.number, 50, 250)
    device.submit(device.create_stream("s"), Task(name="copy", run=device.make_copy(data, place), link_bytes=200))
    device.synchronize()
    assert device.memory(arena).bytes(50, 200).equal(data)
    assert not device.memory(arena).bytes(0, 50).any()
    assert not device.memory(arena).bytes(250, 50).any()


def test_copy_with_jitter_moves_bytes_in_parts() -> None:
    device = ThreadsDevice(jitter=Jitter(seed=0, max_seconds=0.0001))
    arena = device.allocate(300)
    for size in (0, 1, 3, 200):
        data = torch.arange(size, dtype=torch.uint8) + 1
        device.submit(
            device.create_stream("s"), Task(name="c", run=device.make_copy(data, ByteRange(arena.number, 7, 7 + size)))
        )
        device.synchronize()
        assert device.memory(arena).bytes(7, size).equal(data)
    device.close()


def test_cleared_bytes_are_nan(device: ThreadsDevice) -> None:
    arena = device.allocate(64)
    device.make_clear(ByteRange(arena.number, 16, 32))()
    assert device.memory(arena).view(16, (4,), (1,), torch.float32).isnan().all()
    assert not device.memory(arena).view(0, (4,), (1,), torch.float32).any()


def test_failure_in_a_thread_reaches_the_host_once_and_skips_later_tasks(device: ThreadsDevice) -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError("the disk is gone")

    stream, event = device.create_stream("s"), device.create_event()
    device.submit(stream, Task(name="bad", run=fail))
    device.submit(stream, Task(name="after", run=lambda: done.append("after")))
    device.record(event, stream)
    with pytest.raises(OSError, match="the disk is gone"):
        device.wait(device.caller_stream(), event)
    device.synchronize()
    assert done == []
    device.submit(stream, Task(name="again", run=lambda: done.append("again")))
    device.synchronize()
    assert done == ["again"]


def test_failure_of_the_caller_is_raised_at_once(device: ThreadsDevice) -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        device.submit(device.caller_stream(), Task(name="bad", run=fail))
    device.synchronize()


def test_destroyed_stream_has_no_thread_and_others_go_on(device: ThreadsDevice) -> None:
    done: list[str] = []
    before = active_count()
    first, second = device.create_stream("one"), device.create_stream("other")
    device.submit(first, Task(name="last", run=lambda: done.append("last")))
    device.destroy_stream(first)
    assert done == ["last"]
    assert active_count() == before + 1
    device.submit(second, Task(name="more", run=lambda: done.append("more")))
    device.synchronize()
    assert done == ["last", "more"]


def test_close_ends_every_thread(device: ThreadsDevice) -> None:
    device.create_stream("s")
    device.close()
    device.close()
    assert device._queues == []


class FilledBlocks:
    """Blocks whose bytes are the index of the block."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def pieces(self, block: int) -> list[tuple[int, torch.Tensor | None, int]]:
        return [(0, torch.full((self.sizes[block],), block, dtype=torch.uint8), self.sizes[block])]


def oracles_find(fence: Fence | None, *, jitter: Jitter) -> tuple[bool, bool]:
    """Whether each oracle (content, order) finds a fault in ten passes on threads without this fence."""
    ring = ring_at([(slot * 512, slot * 512 + 512) for slot in (0, 1, 0, 1, 0)])
    tags, recording = TagChecker(), CommandRecorder()
    device = ThreadsDevice((tags, recording), jitter=jitter, inline=False)
    fences = without(fence) if fence else without()
    loop = StreamingLoop(device, ring, FilledBlocks([512] * 5), poison=True, fence_filter=fences)  # type: ignore[arg-type]
    run_passes(loop, 10)
    loop.close()
    device.close()
    return bool(tags.mismatches), bool(races(recording.log))


@pytest.mark.parametrize("jitter", [None, Jitter(seed=1, max_seconds=0.0005)])
def test_bytes_move_between_arenas_and_are_zeroed_and_the_caller_is_told_when(jitter: Jitter | None) -> None:
    device = ThreadsDevice(jitter=jitter)
    host = device.adopt(Slab.over(torch.arange(16, dtype=torch.uint8)))
    arena, stream, event = device.allocate(16), device.create_stream("s"), device.create_event()
    told = Flag()
    move = device.make_move(ByteRange(host.number, 4, 12), ByteRange(arena.number, 2, 10))
    device.submit(stream, Task(name="move", run=move))
    device.submit(stream, Task(name="zero", run=device.make_zero(ByteRange(arena.number, 2, 4))))
    device.record(event, stream)
    device.call_back(stream, told.set)
    device.wait_on_host(event)
    assert device.memory(arena).bytes(0, 12).tolist() == [0, 0, 0, 0, *range(6, 12), 0, 0]
    assert told.wait(30)
    device.close()


def test_caller_is_told_of_a_task_that_failed_and_the_failure_is_raised_once(device: ThreadsDevice) -> None:
    stream, event, told = device.create_stream("s"), device.create_event(), Flag()
    device.wait_on_host(event)  # never recorded
    device.submit(stream, Task(name="fails", run=lambda: 1 // 0))
    device.record(event, stream)
    device.call_back(stream, told.set)
    assert told.wait(30)
    with pytest.raises(ZeroDivisionError):
        device.wait_on_host(event)
    device.wait_on_host(event)


def test_loop_on_threads_is_right_with_all_fences() -> None:
    assert oracles_find(None, jitter=Jitter(seed=5, max_seconds=0.001)) == (False, False)


@pytest.mark.parametrize("fence", [Fence.COPY_LANDED, Fence.READERS_DONE])
def test_loop_on_threads_is_wrong_without_a_fence(fence: Fence) -> None:
    assert oracles_find(fence, jitter=Jitter(seed=5, max_seconds=0.004)) == (True, True)


def test_threads_are_given_the_commands_of_a_dry_run() -> None:
    ring = ring_at(slot_spans((0, 1, 0)))
    recording = CommandRecorder()
    device = ThreadsDevice((recording,), inline=False)
    loop = StreamingLoop(device, ring, FilledBlocks([1] * 3))  # type: ignore[arg-type]
    run_passes(loop, 3)
    device.close()
    assert recording.log == issue_passes(ring).log


def test_byte_ranges_overlap_within_one_arena_only() -> None:
    assert Access(ByteRange(0, 1, 2)).range.overlaps(ByteRange(0, 0, 2))
    assert not ByteRange(0, 1, 2).overlaps(ByteRange(0, 2, 3))
    assert not ByteRange(0, 1, 2).overlaps(ByteRange(1, 1, 2))
