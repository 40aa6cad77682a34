"""The explorer visits all interleavings and no others, each state once, and names deadlocked tasks."""

from itertools import combinations

import pytest

from tests.unit.runtime.device.programs import HIGH, LOW, Script
from tmmu.errors import InvalidConfig
from tmmu.runtime.device.explorer import Exploration, explore
from tmmu.runtime.device.interface import ByteRange
from tmmu.runtime.device.races import races


def test_independent_streams_meet_in_every_combination() -> None:
    script = Script()
    for n in range(3):
        script.write(script.a, ByteRange(0, n, n + 1))
        script.write(script.b, ByteRange(1, n, n + 1))
    assert script.device.explore().states == 7 * 7


def test_wait_leaves_only_the_states_that_it_allows() -> None:
    script = Script()
    script.write(script.a, LOW)
    script.order(script.a, script.b)
    script.read(script.b)
    exploration = script.device.explore()
    assert exploration == Exploration(states=5, complete=True, counterexamples=(), deadlocked=())


def test_record_after_a_wait_stands_for_what_was_waited_for() -> None:
    script = Script()
    third = script.device.create_stream("third")
    script.write(script.a)
    script.order(script.a, third)
    script.order(third, script.b)
    script.read(script.b)
    assert not script.device.explore().counterexamples


def test_older_wait_does_not_weaken_a_newer_one() -> None:
    script = Script()
    first = script.record(script.a)
    script.write(script.a)
    second = script.record(script.a)
    script.wait(script.b, second)
    script.wait(script.b, first)
    script.read(script.b)
    assert not script.device.explore().counterexamples


def test_synchronize_is_a_wait_for_everything() -> None:
    script = Script()
    script.write(script.a)
    script.device.synchronize()
    script.read(script.b)
    assert not script.device.explore().counterexamples


def test_host_that_waited_for_a_record_waited_for_no_more() -> None:
    script = Script()
    script.write(script.a)
    event = script.record(script.a)
    script.write(script.a, HIGH)
    script.device.wait_on_host(event)
    script.read(script.b)
    assert not script.device.explore().counterexamples
    script.read(script.b, HIGH)
    assert len(script.device.explore().counterexamples) == 1


def test_memories_left_by_a_race_are_separate_states() -> None:
    script = Script()
    script.write(script.a, LOW, 1)
    script.write(script.b, LOW, 2)
    assert script.device.explore().states > 9


def test_wait_on_its_own_stream_changes_nothing() -> None:
    script = Script()
    script.write(script.a)
    script.order(script.a, script.a)
    script.read(script.a)
    assert script.device.explore().states == 5


def test_exploration_beyond_max_states_is_incomplete() -> None:
    script = Script()
    for n in range(3):
        script.write(script.a, ByteRange(0, n, n + 1))
        script.write(script.b, ByteRange(1, n, n + 1))
    whole = script.device.explore().states
    assert explore(script.device.log, max_states=whole).complete
    cut = explore(script.device.log, max_states=whole - 1)
    assert (cut.states, cut.complete) == (whole - 1, False)
    with pytest.raises(InvalidConfig, match="0 states"):
        explore(script.device.log, max_states=0)


def test_explorer_agrees_with_the_order_oracle() -> None:
    """Three writes of one range on three streams, with every subset of the orders between them."""
    pairs = [(0, 1), (1, 2), (0, 2)]
    for count in range(4):
        for chosen in combinations(pairs, count):
            script = Script()
            streams = [script.a, script.b, script.device.create_stream("c")]
            events = {}
            for n, stream in enumerate(streams):
                for first, second in chosen:
                    if second == n:
                        script.wait(stream, events[first])
                script.write(stream, LOW, n)
                script.read(stream, LOW, n)
                events[n] = script.record(stream)
            unordered = (0, 1) not in chosen or (1, 2) not in chosen
            assert bool(races(script.device.log)) == bool(script.device.explore().counterexamples) == unordered


def test_tasks_on_disjoint_ranges_do_not_disturb_each_other() -> None:
    script = Script()
    script.write(script.a, LOW, 1)
    script.write(script.b, HIGH, 2)
    script.order(script.a, script.b)
    script.read(script.b, LOW, 1)
    assert not script.device.explore().counterexamples
