"""All interleavings and no others, each state once; what cannot go on is named."""

from itertools import combinations

import pytest

from tests.unit.runtime.device.programs import HERE, THERE, Script
from tmmu.errors import InvalidConfig
from tmmu.runtime.device.explorer import explore
from tmmu.runtime.device.interface import ByteRange
from tmmu.runtime.device.races import races


def test_streams_that_share_nothing_meet_in_every_combination() -> None:
    script = Script()
    for n in range(3):
        script.write(script.a, ByteRange(0, n, n + 1))
        script.write(script.b, ByteRange(1, n, n + 1))
    assert script.device.explore().states == 7 * 7


def test_an_order_leaves_only_the_states_that_it_allows() -> None:
    script = Script()
    script.write(script.a, HERE)
    script.order(script.a, script.b)
    script.read(script.b)
    found = script.device.explore()
    assert (found.states, found.complete, found.counterexamples, found.deadlocked) == (5, True, (), ())


def test_a_record_after_a_wait_stands_for_what_was_waited_for() -> None:
    script = Script()
    third = script.device.create_stream("third")
    script.write(script.a)
    script.order(script.a, third)
    script.order(third, script.b)
    script.read(script.b)
    assert not script.device.explore().counterexamples


def test_an_older_wait_takes_nothing_from_a_newer_one() -> None:
    script = Script()
    first = script.mark(script.a)
    script.write(script.a)
    second = script.mark(script.a)
    script.after(script.b, second)
    script.after(script.b, first)
    script.read(script.b)
    assert not script.device.explore().counterexamples


def test_settling_is_a_wait_for_everything() -> None:
    script = Script()
    script.write(script.a)
    script.device.synchronize()
    script.read(script.b)
    assert not script.device.explore().counterexamples


def test_memories_that_a_race_makes_are_states_of_their_own() -> None:
    script = Script()
    script.write(script.a, HERE, 1)
    script.write(script.b, HERE, 2)
    assert script.device.explore().states > 9


def test_a_wait_on_one_s_own_stream_changes_nothing() -> None:
    script = Script()
    script.write(script.a)
    script.order(script.a, script.a)
    script.read(script.a)
    assert script.device.explore().states == 5


def test_a_bound_ends_it_and_says_so() -> None:
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


def test_it_finds_what_the_first_oracle_finds_and_no_more() -> None:
    """Three writes of one place on three streams, with any two of the orders between them."""
    pairs = [(0, 1), (1, 2), (0, 2)]
    for count in range(4):
        for kept in combinations(pairs, count):
            script = Script()
            streams = [script.a, script.b, script.device.create_stream("c")]
            events = {}
            for n, stream in enumerate(streams):
                for first, second in kept:
                    if second == n:
                        script.after(stream, events[first])
                script.write(stream, HERE, n)
                script.read(stream, HERE, n)
                events[n] = script.mark(stream)
            raced = bool(races(script.device.log))
            assert raced == bool(script.device.explore().counterexamples) == ((0, 1) not in kept or (1, 2) not in kept)


def test_works_that_read_and_write_apart_do_not_disturb_each_other() -> None:
    script = Script()
    script.write(script.a, HERE, 1)
    script.write(script.b, THERE, 2)
    script.order(script.a, script.b)
    script.read(script.b, HERE, 1)
    assert not script.device.explore().counterexamples
