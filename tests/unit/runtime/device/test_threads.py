"""Threads keep the order that they are told, and no other; what fails in one is raised where the host waits."""

from collections.abc import Iterator
from threading import Event as Flag
from threading import active_count, get_ident

import pytest
import torch

from tests.rings import drive, in_slots, issued, lacking, ring_at
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.interface import Access, ByteRange, Task
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.ring.fences import Fence
from tmmu.runtime.ring.loop import StreamingLoop


@pytest.fixture
def device() -> Iterator[ThreadsDevice]:
    made = ThreadsDevice()
    yield made
    made.close()


def test_a_stream_works_in_order_in_a_thread_of_its_own(device: ThreadsDevice) -> None:
    done: list[tuple[int, int]] = []
    stream = device.create_stream("s")
    for n in range(20):
        device.submit(stream, Task(name=str(n), run=lambda n=n: done.append((n, get_ident()))))
    device.synchronize()
    assert [n for n, _ in done] == list(range(20))
    assert {ident for _, ident in done} != {get_ident()}
    assert len({ident for _, ident in done}) == 1


def test_the_caller_works_at_once(device: ThreadsDevice) -> None:
    done: list[int] = []
    device.submit(device.caller_stream(), Task(name="now", run=lambda: done.append(get_ident())))
    assert done == [get_ident()]


def test_a_caller_with_a_thread_does_not() -> None:
    device = ThreadsDevice(inline=False)
    done: list[int] = []
    device.submit(device.caller_stream(), Task(name="later", run=lambda: done.append(get_ident())))
    device.synchronize()
    assert done != [get_ident()]
    device.close()


def test_a_wait_holds_the_stream_and_not_the_host(device: ThreadsDevice) -> None:
    gate, done = Flag(), list[str]()
    one, other = device.create_stream("one"), device.create_stream("other")
    event = device.create_event()
    device.submit(one, Task(name="slow", run=gate.wait))
    device.submit(one, Task(name="first", run=lambda: done.append("first")))
    device.record(event, one)
    device.wait(other, event)
    device.submit(other, Task(name="second", run=lambda: done.append("second")))
    assert done == []
    gate.set()
    device.synchronize()
    assert done == ["first", "second"]


def test_a_wait_takes_the_record_that_is_latest_when_it_is_issued(device: ThreadsDevice) -> None:
    gate, done = Flag(), list[str]()
    one, other = device.create_stream("one"), device.create_stream("other")
    event = device.create_event()
    device.record(event, one)
    device.wait(other, event)
    device.submit(one, Task(name="slow", run=gate.wait))
    device.record(event, one)
    device.submit(other, Task(name="free", run=lambda: (done.append("free"), gate.set())))
    device.synchronize()
    assert done == ["free"]


def test_bytes_arrive(device: ThreadsDevice) -> None:
    arena = device.allocate(300)
    given = torch.arange(200, dtype=torch.uint8)
    place = ByteRange(arena.number, 50, 250)
    device.submit(device.create_stream("s"), Task(name="copy", run=device.make_copy(given, place), link_bytes=200))
    device.synchronize()
    assert device.memory(arena).bytes(50, 200).equal(given)
    assert not device.memory(arena).bytes(0, 50).any()
    assert not device.memory(arena).bytes(250, 50).any()


def test_bytes_arrive_in_parts_too() -> None:
    device = ThreadsDevice(jitter=Jitter(seed=0, max_seconds=0.0001))
    arena = device.allocate(300)
    for size in (0, 1, 3, 200):
        given = torch.arange(size, dtype=torch.uint8) + 1
        device.submit(
            device.create_stream("s"), Task(name="c", run=device.make_copy(given, ByteRange(arena.number, 7, 7 + size)))
        )
        device.synchronize()
        assert device.memory(arena).bytes(7, size).equal(given)
    device.close()


def test_cleared_bytes_are_no_number(device: ThreadsDevice) -> None:
    arena = device.allocate(64)
    device.make_clear(ByteRange(arena.number, 16, 32))()
    assert device.memory(arena).view(16, (4,), (1,), torch.float32).isnan().all()
    assert not device.memory(arena).view(0, (4,), (1,), torch.float32).any()


def test_a_failure_in_a_thread_reaches_the_host_once_and_stops_what_follows(device: ThreadsDevice) -> None:
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


def test_a_failure_of_the_caller_is_its_own(device: ThreadsDevice) -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        device.submit(device.caller_stream(), Task(name="bad", run=fail))
    device.synchronize()


def test_a_stream_that_is_retired_has_no_thread_and_the_others_go_on(device: ThreadsDevice) -> None:
    done: list[str] = []
    before = active_count()
    one, other = device.create_stream("one"), device.create_stream("other")
    device.submit(one, Task(name="last", run=lambda: done.append("last")))
    device.destroy_stream(one)
    assert done == ["last"]
    assert active_count() == before + 1
    device.submit(other, Task(name="more", run=lambda: done.append("more")))
    device.synchronize()
    assert done == ["last", "more"]


def test_closing_ends_every_thread(device: ThreadsDevice) -> None:
    device.create_stream("s")
    device.close()
    device.close()
    assert device._queues == []


class Held:
    """An image whose bytes say whose they are."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def pieces(self, block: int) -> list[tuple[int, torch.Tensor | None, int]]:
        return [(0, torch.full((self.sizes[block],), block, dtype=torch.uint8), self.sizes[block])]


def threaded(fence: Fence | None, *, jitter: Jitter) -> tuple[bool, bool]:
    """What each oracle says of ten passes on threads, the caller's own among them, without this fence."""
    ring = ring_at([(slot * 512, slot * 512 + 512) for slot in (0, 1, 0, 1, 0)])
    tags, recording = TagChecker(), CommandRecorder()
    device = ThreadsDevice((tags, recording), jitter=jitter, inline=False)
    stands = lacking(fence) if fence else lacking()
    loop = StreamingLoop(device, ring, Held([512] * 5), poison=True, fence_filter=stands)  # type: ignore[arg-type]
    drive(loop, 10)
    loop.close()
    device.close()
    return bool(tags.mismatches), bool(races(recording.log))


def test_nothing_goes_wrong_with_all_fences() -> None:
    assert threaded(None, jitter=Jitter(seed=5, max_seconds=0.001)) == (False, False)


@pytest.mark.parametrize("fence", [Fence.COPY_LANDED, Fence.READERS_DONE])
def test_something_does_without_one(fence: Fence) -> None:
    assert threaded(fence, jitter=Jitter(seed=5, max_seconds=0.004)) == (True, True)


def test_it_is_given_just_what_paper_is_given() -> None:
    ring = ring_at(in_slots((0, 1, 0)))
    recording = CommandRecorder()
    device = ThreadsDevice((recording,), inline=False)
    loop = StreamingLoop(device, ring, Held([1] * 3))  # type: ignore[arg-type]
    drive(loop, 3)
    device.close()
    assert recording.log == issued(ring).log


def test_access_is_declared_in_ranges() -> None:
    assert Access(ByteRange(0, 1, 2)).range.overlaps(ByteRange(0, 0, 2))
    assert not ByteRange(0, 1, 2).overlaps(ByteRange(0, 2, 3))
    assert not ByteRange(0, 1, 2).overlaps(ByteRange(1, 1, 2))
