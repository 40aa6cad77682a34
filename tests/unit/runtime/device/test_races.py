"""What queues, events and settling order is ordered; everything else that conflicts is a race."""

from tests.unit.runtime.device.programs import HERE, OVER_BOTH, THERE, Script
from tmmu.runtime.device.interface import Access, ByteRange, Task
from tmmu.runtime.device.races import Race, races


def found(script: Script) -> list[tuple[int, int]]:
    return [(race.first, race.second) for race in races(script.device.log)]


def test_one_stream_is_in_order() -> None:
    script = Script()
    for _ in range(2):
        script.write(script.a)
        script.read(script.a)
    assert found(script) == []


def test_two_streams_are_not() -> None:
    script = Script()
    script.write(script.a)
    script.read(script.b)
    assert found(script) == [(0, 1)]


def test_every_pair_of_kinds_but_two_reads_conflicts() -> None:
    for first, second, wrong in (
        ("write", "write", 1),
        ("write", "read", 1),
        ("read", "write", 1),
        ("read", "read", 0),
    ):
        script = Script()
        getattr(script, first)(script.a)
        getattr(script, second)(script.b)
        assert len(found(script)) == wrong


def test_only_bytes_that_meet_conflict_and_the_race_names_them() -> None:
    script = Script()
    script.write(script.a, HERE)
    script.read(script.b, THERE)
    assert found(script) == []
    script.read(script.b, OVER_BOTH, name="reader")
    what = "'write' writes what is read by 'reader': bytes 2 to 4, unordered"
    assert races(script.device.log) == (Race(first=0, second=2, range=ByteRange(0, 2, 4), description=what),)


def test_other_arenas_have_other_bytes() -> None:
    script = Script()
    script.write(script.a, HERE)
    script.write(script.b, ByteRange(1, 0, 4))
    assert found(script) == []


def test_a_wait_orders_what_comes_after_it_with_what_came_before_the_record() -> None:
    script = Script()
    script.write(script.a)
    event = script.mark(script.a)
    script.write(script.a, THERE)
    script.after(script.b, event)
    script.read(script.b, HERE)
    script.read(script.b, THERE)
    assert found(script) == [(1, 3)]


def test_a_wait_takes_the_latest_record_at_its_issue() -> None:
    script = Script()
    event = script.mark(script.a)
    script.after(script.b, event)
    script.write(script.a)
    script.mark(script.a, event)
    script.read(script.b)
    assert found(script) == [(0, 1)]


def test_a_wait_for_what_was_never_recorded_is_none() -> None:
    script = Script()
    script.write(script.a)
    script.after(script.b, script.device.create_event())
    script.read(script.b)
    assert found(script) == [(0, 1)]


def test_order_goes_through_a_third_stream() -> None:
    script = Script()
    third = script.device.create_stream("third")
    script.write(script.a)
    script.order(script.a, third)
    script.order(third, script.b)
    script.read(script.b)
    assert found(script) == []


def test_settling_orders_everything() -> None:
    script = Script()
    script.write(script.a)
    script.device.synchronize()
    script.read(script.b)
    script.write(script.a)
    assert found(script) == [(1, 2)]


def test_a_write_waits_for_all_readers_not_for_one() -> None:
    for waited, left in (("a", 1), ("b", 0)):
        script = Script()
        third = script.device.create_stream("third")
        script.read(script.a)
        script.read(script.b)
        script.order(getattr(script, waited), third)
        script.write(third)
        assert found(script) == [(left, 2)]


def test_readers_that_a_later_write_covers_in_part_are_kept_for_the_rest() -> None:
    script = Script()
    third = script.device.create_stream("third")
    script.read(script.a, HERE)
    script.order(script.a, third)
    script.write(third, ByteRange(0, 0, 2))
    script.write(script.b, ByteRange(0, 2, 4))
    assert found(script) == [(0, 2)]


def test_a_work_that_reads_what_it_writes_does_not_race_with_itself() -> None:
    script = Script()
    script.device.submit(script.a, Task(name="both", reads=(Access(HERE),), writes=(Access(HERE),)))
    assert found(script) == []
