"""Swapping on threads: clients of their own threads find the bytes that their last step left, and no oracle objects."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from threading import Condition, Event, Lock, Thread
from time import monotonic
from typing import Any

import pytest
import torch

from tests.engine.swaps import Swaps, swaps_on
from tests.unit.runtime.device.test_cuda import FakeCuda
from tmmu.engine.policies.table import POLICIES
from tmmu.errors import InternalError, SegmentFull, SessionUnknown
from tmmu.runtime.device import cuda
from tmmu.runtime.device.command_log import CommandRecorder
from tmmu.runtime.device.cuda import CudaDevice
from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.device.races import races
from tmmu.runtime.device.tags import TagChecker
from tmmu.runtime.device.threads import Jitter, ThreadsDevice
from tmmu.runtime.memory.slab import Slab

LONG = 30.0
"""Seconds after which a test that waits has failed."""


class Threads:
    """Clients in threads, whose steps run one at a time."""

    def __init__(
        self, *observers: Any, jitter: Jitter | None = None, device: MemoryDevice | None = None, **options: Any
    ) -> None:
        self.woken, self.steps = Condition(), Lock()
        self.swaps = swaps_on(device or ThreadsDevice(observers, jitter=jitter), wake=self.wake, **options)
        self.failures: list[BaseException] = []

    def wake(self) -> None:
        with self.woken:
            self.woken.notify_all()

    def run(self, name: str) -> bool:
        """A step of a session, once it may run; false where it is refused."""
        owner, swapping = self.swaps.owners[name], self.swaps.swapping
        swapping.need(owner)
        with self.woken:
            assert self.woken.wait_for(lambda: swapping.may_run(owner), LONG), f"{name} never runs"
        with self.steps:
            has_run = self.swaps.step(name)
        swapping.rest(owner)
        return has_run

    @contextmanager
    def clients(self, *targets: Any) -> Iterator[None]:
        """Threads that run these; afterwards they have ended, and nobody has failed."""

        def work(target: Any) -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001 - raised by the thread of the test
                self.failures.append(error)

        threads = [Thread(target=work, args=(target,), daemon=True) for target in targets]
        for thread in threads:
            thread.start()
        yield
        for thread in threads:
            thread.join(2 * LONG)
        assert not any(thread.is_alive() for thread in threads)
        assert not self.failures, self.failures[0]

    def live(self, name: str, seed: int) -> None:
        """A client's life: rounds of steps and waits of differing kinds, then its end."""
        random, swapping = Random(seed), self.swaps.swapping
        for _ in range(4):
            for _ in range(random.randrange(1, 4)):
                assert self.run(name)
            if random.random() < 0.8:
                swapping.wait(self.swaps.owners[name], kind="tool", expected=random.choice([None, 0.001, 5.0]))
            if random.random() < 0.3:
                swapping.expect(self.swaps.owners[name], 0.0)
            self.swaps.time.now += random.random()
        swapping.close(self.swaps.owners[name])


@pytest.mark.parametrize("policy", [policy.name for policy in POLICIES])
def test_every_client_finds_its_own_bytes(policy: str) -> None:
    tags, recorder = TagChecker(), CommandRecorder()
    threads = Threads(tags, recorder, jitter=Jitter(seed=3, max_seconds=0.0005), rooms=2, policy=policy)
    swaps = threads.swaps
    for name in "abcde":
        swaps.open(name)
    with threads.clients(*(lambda n=n, s=s: threads.live(n, s) for s, n in enumerate("abcde"))):
        pass
    swaps.swapping.shut_down()
    counts = swaps.host.counts
    assert (counts.sessions_in > 0) == (policy != "hold")
    assert counts.bytes_in <= counts.bytes_out * counts.sessions_in
    assert swaps.host.used == swaps.data.usage.used == 0
    assert not tags.mismatches, tags.mismatches[0]
    assert not races(recorder.log), races(recorder.log)[0]


class Gate:
    """Holds whatever a device copies until it is opened."""

    def __init__(self, threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open, self.reached = Event(), Event()
        device = threads.swaps.device
        make_move = device.make_move

        def held(source: Any, target: Any) -> Any:
            move = make_move(source, target)

            def run() -> None:
                self.reached.set()
                assert self.is_open.wait(LONG)
                move()

            return run

        monkeypatch.setattr(device, "make_move", held)


def two_of_which_one_leaves(threads: Threads) -> Swaps:
    """Rooms for two: ``a`` and ``b`` have them, ``c`` waits for one, and ``a`` leaves."""
    swaps = threads.swaps
    for name in "ab":
        swaps.open(name)
        assert threads.run(name)
    swaps.open("c")
    return swaps


def test_session_that_comes_back_again_and_again_has_its_bytes() -> None:
    threads = Threads(rooms=1)
    swaps = threads.swaps
    for name in "ab":
        swaps.open(name)
    for name in "abababab":
        assert threads.run(name)
    assert swaps.host.counts.sessions_in >= 6  # each step after the first two
    swaps.swapping.shut_down()


def test_who_waits_has_the_room_as_soon_as_another_session_rests() -> None:
    """No time passes, so no alarm rings."""
    threads = Threads(rooms=1)
    swaps = threads.swaps
    for name in "ab":
        swaps.open(name)
    first = needed(swaps, "a")
    with threads.woken:
        assert threads.woken.wait_for(lambda: swaps.swapping.may_run(first), LONG)
    assert swaps.step("a")
    second = needed(swaps, "b")
    swaps.swapping.rest(first)
    with threads.woken:
        assert threads.woken.wait_for(lambda: swaps.swapping.may_run(second), LONG)
    assert swaps.step("b")
    swaps.swapping.shut_down()


def test_calls_of_cuda_are_made_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stand-in for ``torch.cuda``, whose copies are made at once: who waits for whom."""
    monkeypatch.setattr(cuda, "Slab", lambda size, alignment, device: Slab(size, alignment, torch.device("cpu")))
    fake = FakeCuda()
    threads = Threads(device=CudaDevice(cuda=fake), rooms=1)
    swaps = threads.swaps
    for name in "ab":
        swaps.open(name)
    for name in "ababab":
        assert threads.run(name)
    swaps.swapping.wait_until_still()
    counts = swaps.host.counts
    swaps.swapping.shut_down()
    assert counts.sessions_in >= 4
    log, out = fake.log, "side 1"
    begins = [index for index, line in enumerate(log) if line == f"on {out}"]
    assert sum(log[index - 1].startswith(f"{out} waits") for index in begins) >= 4  # behind a step
    recorded = {line.split()[-1] for line in log if line.startswith("side") and "records" in line}
    waited = {line.split()[-1] for line in log if line.startswith("host waits")}
    assert recorded == waited


def test_session_leaves_at_its_time_though_nobody_does_anything() -> None:
    threads = Threads(clock=monotonic, time_to_live=0.15)  # beyond the grace after which it is copied
    swaps = threads.swaps
    owner = swaps.open("a")
    assert threads.run("a")
    with threads.woken:
        assert threads.woken.wait_for(lambda: swaps.host.counts.sessions_out == 1, LONG)
    assert not swaps.swapping.is_on_device(owner)
    assert threads.run("a")
    swaps.swapping.shut_down()


def test_copies_that_are_issued_or_under_way_while_a_step_runs_are_overlapped() -> None:
    swaps = swaps_on(ExplorerDevice(), rooms=2)
    for name in "ab":
        swaps.open(name)
        swaps.run(name)
    counts, swapping = swaps.host.counts, swaps.swapping
    swapping.need(swaps.owners["b"])
    with swapping.step([swaps.owners["b"]]):
        swapping.wait(swaps.owners["a"], kind="", expected=None)
        assert counts.overlapped == 5
        swaps.land_all()
    assert counts.overlapped == counts.bytes_out == 5
    swaps.run("a")
    swapping.wait(swaps.owners["a"], kind="", expected=None)
    assert counts.overlapped == 5
    swaps.step("b")
    assert counts.overlapped == 10  # two bytes of a position, three that recur


def test_others_run_while_a_session_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(rooms=2)
    gate = Gate(threads, monkeypatch)
    swaps = two_of_which_one_leaves(threads)
    with threads.clients(lambda: threads.run("c")):
        assert gate.reached.wait(LONG)
        for _ in range(3):
            assert threads.run("b")  # would never return if it waited for the copy
        assert not swaps.swapping.may_run(swaps.owners["c"])
        gate.is_open.set()
    assert swaps.owners["c"].steps == 1
    assert 0 < swaps.host.counts.overlapped <= swaps.host.counts.bytes_out
    swaps.swapping.shut_down()


def test_session_that_is_closed_while_it_leaves_frees_its_room_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(rooms=2)
    gate = Gate(threads, monkeypatch)
    swaps = two_of_which_one_leaves(threads)
    with threads.clients(lambda: threads.run("c")):
        assert gate.reached.wait(LONG)
        swaps.swapping.close(swaps.owners["a"])
        assert swaps.data.usage.used == swaps.data.capacity
        gate.is_open.set()
    swaps.swapping.wait_until_still()
    assert swaps.swapping.is_on_device(swaps.owners["b"])  # the room that was to be free was enough
    swaps.swapping.shut_down()


def test_who_waits_for_a_session_that_is_closed_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(rooms=2)
    gate = Gate(threads, monkeypatch)
    swaps = two_of_which_one_leaves(threads)
    owner = needed(swaps, "c")
    results: list[Any] = []

    def settle() -> None:
        with suppress(SessionUnknown):  # where it comes too late to wait
            assert swaps.swapping.settle(owner) is None
        results.append("told")

    with threads.clients(settle):
        assert gate.reached.wait(LONG)
        swaps.swapping.close(owner)
    assert results == ["told"]
    for call in (swaps.swapping.settle, swaps.swapping.evict, swaps.swapping.require_room):
        with pytest.raises(SessionUnknown, match="closed meanwhile"):
            call(owner)
    gate.is_open.set()
    swaps.swapping.shut_down()


def test_copy_that_fails_refuses_whoever_needs_it_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(rooms=2)
    monkeypatch.setattr(threads.swaps.device, "make_move", lambda *_: lambda: 1 // 0)
    swaps = two_of_which_one_leaves(threads)
    assert not threads.run("c")
    with pytest.raises(InternalError, match=r"copy of a session.s state has failed: .*zero"):
        raise swaps.swapping.settle(needed(swaps, "c"))  # type: ignore[misc]
    assert threads.run("b")
    for name in "abc":
        swaps.swapping.close(swaps.owners[name])
    swaps.swapping.shut_down()


def needed(swaps: Swaps, name: str) -> Any:
    swaps.swapping.need(swaps.owners[name])
    return swaps.owners[name]


def test_full_host_tier_refuses_who_waited_longest_once_nobody_can_make_room() -> None:
    threads = Threads(rooms=1, host=4)
    swaps = threads.swaps
    swaps.open("a")
    assert threads.run("a")
    swaps.open("b")
    assert not threads.run("b")
    swaps.swapping.need(swaps.owners["b"])
    refusal = swaps.swapping.settle(swaps.owners["b"])
    assert isinstance(refusal, SegmentFull)
    assert (refusal.fields["segment"], refusal.fields["capacity"]) == ("host", 4)
    swaps.swapping.rest(swaps.owners["b"])
    swaps.swapping.close(swaps.owners["a"])
    assert threads.run("b")
    swaps.swapping.close(swaps.owners["b"])
    swaps.swapping.shut_down()
