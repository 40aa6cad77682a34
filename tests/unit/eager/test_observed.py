"""Levels of a real run by hand: what calls make, what nothing makes, what was there before, and the most inside."""

from tmmu.eager.observed import BEFORE, AllocationEvent, ObservedMemory, observed_memory


def event(call: int, size: int, address: int, *, inside: bool = True) -> AllocationEvent:
    return AllocationEvent(call=call, inside=inside, bytes=size, address=address)


def test_levels_are_those_of_each_calls_end() -> None:
    events = [event(0, 100, 1), event(0, 30, 2), event(0, -30, 2), event(1, 50, 3), event(1, -100, 1, inside=False)]
    found = observed_memory(events, 3)
    assert (found.called, found.most, found.before) == ((100, 150, 50), (130, 150, 50), 0)


def test_what_is_there_before_counts_as_it_goes_after_the_first_call_began() -> None:
    before = [event(BEFORE, 100, 1), event(BEFORE, 40, 2), event(BEFORE, 7, 3)]
    events = [*before, event(BEFORE, -40, 2, inside=False), event(0, 10, 4), event(0, -100, 1, inside=False)]
    found = observed_memory(events, 2)
    assert (found.before, found.called) == (147, (10, -90))


def test_end_of_what_nobody_saw_being_made_is_none_of_the_runs() -> None:
    found = observed_memory([event(BEFORE, -64, 9), event(0, -64, 8), event(0, 8, 9)], 1)
    assert (found.before, found.called) == (0, (8,))


def test_what_no_call_makes_is_beside_until_it_is_lifted() -> None:
    events = [event(BEFORE, 8, 1, inside=False), event(0, 8, 2, inside=False), event(1, -8, 1, inside=False)]
    found = observed_memory(events, 3, {1: 2})
    assert found == ObservedMemory(before=0, called=(0, 8, 8), beside=(8, 8, 0), most=(8, 16, 8), between=16)
    assert observed_memory(events, 3).beside == (8, 16, 8)


def test_address_that_is_taken_again_belongs_to_its_new_maker() -> None:
    events = [event(0, 8, 1, inside=False), event(0, -8, 1, inside=False), event(1, 16, 1), event(2, -16, 1)]
    found = observed_memory(events, 3)
    assert (found.called, found.beside, found.between) == ((0, 16, 0), (0, 0, 0), 16)
