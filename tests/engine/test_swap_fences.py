"""Swapping is right in every interleaving of its tasks; without any one fence some is wrong."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.swaps import ROOM, Swaps, swaps_on, without
from tmmu.engine.policies.table import POLICIES
from tmmu.engine.swap.fences import SwapFence, SwapFenceFilter, all_fences
from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.races import races


def require_sound(device: ExplorerDevice) -> None:
    """No interleaving is wrong or deadlocked, and the order of tasks does not depend on luck."""
    exploration = device.explore()
    assert exploration.complete
    assert not exploration.counterexamples, exploration.counterexamples[0]
    assert not exploration.deadlocked
    assert not races(device.log), races(device.log)[0]


def two_take_turns(swaps: Swaps) -> None:
    """Room for one: the other's bytes go out, and come back in another's place."""
    for name in "ab":
        swaps.open(name)
    for name in "abab":
        swaps.swapping.need(swaps.owners[name])
        swaps.land_all()
        assert swaps.step(name)
        swaps.swapping.rest(swaps.owners[name])
    assert swaps.host.counts.sessions_in > 0


def copied_while_idle_and_needed_again(swaps: Swaps) -> None:
    """A step writes what a copy out has just read."""
    swaps.open("a")
    swaps.run("a")
    swaps.swapping.wait(swaps.owners["a"], kind="", expected=None)
    swaps.swapping.need(swaps.owners["a"])
    assert swaps.link.in_flight
    assert not swaps.step("a")
    swaps.land_all()
    assert swaps.step("a")


def closed_after_a_step(swaps: Swaps) -> None:
    """The next one has the room of one that is closed."""
    swaps.open("a")
    swaps.run("a")
    swaps.swapping.close(swaps.owners["a"])
    swaps.land_all()
    swaps.open("b")
    swaps.run("b")


def closed_for_good(swaps: Swaps) -> None:
    """What a copy on the host held is wiped while the memory is released."""
    swaps.open("a")
    swaps.run("a")
    swaps.swapping.wait(swaps.owners["a"], kind="", expected=None)
    swaps.land_all()
    swaps.swapping.close(swaps.owners["a"])
    swaps.land_all()
    swaps.link.close()


GATE: dict[SwapFence, Callable[[Swaps], None]] = {
    SwapFence.STEP_BEFORE_OUT: two_take_turns,
    SwapFence.OUT_LANDED: copied_while_idle_and_needed_again,
    SwapFence.IN_LANDED: two_take_turns,
    SwapFence.STEP_BEFORE_CLEAR: closed_after_a_step,
    SwapFence.CLEARED: closed_after_a_step,
    SwapFence.DRAIN: closed_for_good,
}


def issue(act: Callable[[Swaps], None], fences: SwapFenceFilter = all_fences) -> ExplorerDevice:
    device = ExplorerDevice()
    act(swaps_on(device, fences=fences))
    return device


@pytest.mark.parametrize("fence", SwapFence)
def test_both_oracles_notice_each_kind_of_fence_removed(fence: SwapFence) -> None:
    require_sound(issue(GATE[fence]))
    device = issue(GATE[fence], without(fence))
    assert races(device.log)
    assert fence is SwapFence.DRAIN or device.explore(first_only=True).counterexamples  # nothing is read afterwards


def test_copy_back_waits_for_the_copy_out() -> None:
    """What is read on the host: either of the two protects it: a room is cleared behind the copies out."""
    device = issue(two_take_turns, without(SwapFence.OUT_LANDED, SwapFence.CLEARED))
    assert any("copy in" in race.description and "copy out" in race.description for race in races(device.log))


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["run", "run", "keep", "step", "rest", "wait", "close", "land", "land", "later"]),
        st.sampled_from("abc"),
        st.integers(0, 3),
    ),
    min_size=10,
    max_size=40,
)


class Clients:
    """Clients that do whatever they may, in any order."""

    def __init__(self, swaps: Swaps) -> None:
        self.swaps = swaps
        self.needed: set[str] = set()

    def act(self, act: str, name: str, number: int) -> None:
        swaps = self.swaps
        if act == "later":
            swaps.time.now += number
        elif act == "land":
            self.land(number)
        elif name not in swaps.owners:
            swaps.open(name)
        elif name in self.needed:
            self.act_on_needed(act, name)
        elif act == "run":
            swaps.swapping.need(swaps.owners[name])
            for _ in range(4 * number):
                self.land(number)
            swaps.step(name)
            swaps.swapping.rest(swaps.owners[name])
        elif act == "keep":
            swaps.swapping.need(swaps.owners[name])
            self.needed.add(name)
        elif act == "wait":
            swaps.swapping.wait(swaps.owners[name], kind=str(number), expected=number or None)
        elif act == "close":
            swaps.swapping.close(swaps.owners.pop(name))

    def act_on_needed(self, act: str, name: str) -> None:
        if act == "step":
            self.swaps.step(name)
        elif act == "rest":
            self.needed.discard(name)
            self.swaps.swapping.rest(self.swaps.owners[name])

    def land(self, number: int) -> None:
        """A task that is the first of its stream: streams are in order."""
        first = {task.fence in (SwapFence.OUT_LANDED, SwapFence.CLEARED): index
                 for index, task in reversed(list(enumerate(self.swaps.link.in_flight)))}  # fmt: skip
        if first:
            self.swaps.land(sorted(first.values())[number % len(first)])

    def check(self) -> None:
        swaps = self.swaps
        ranges = sorted((swaps.data._arenas[name].base, name) for name in swaps.data.sessions)
        assert all(high[0] - low[0] >= ROOM for low, high in pairwise(ranges))
        assert swaps.host.used <= swaps.host.budget
        assert swaps.host.used >= swaps.swapping.copied_bytes


@pytest.mark.parametrize("policy", [policy.name for policy in POLICIES])
@given(acts=ACTS, rooms=st.integers(1, 2), host=st.sampled_from([0, 12, 100]))
@settings(max_examples=25)
def test_whatever_clients_do_every_interleaving_is_right(
    policy: str, acts: list[tuple[str, str, int]], rooms: int, host: int
) -> None:
    device = ExplorerDevice()
    clients = Clients(swaps_on(device, rooms=rooms, host=host, policy=policy))
    for act in acts:
        clients.act(*act)
        clients.check()
    clients.swaps.swapping._alarm.close()
    assert not races(device.log), races(device.log)[0]
    exploration = device.explore(max_states=3000)
    assert not exploration.counterexamples, exploration.counterexamples[0]
    assert not exploration.deadlocked
