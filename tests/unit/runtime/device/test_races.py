"""The order oracle: streams, events and synchronization order tasks; other conflicts are races."""

from tests.unit.runtime.device.programs import HIGH, LOW, MIDDLE, Script
from tmmu.runtime.device.interface import Access, ByteRange, Task
from tmmu.runtime.device.races import Race, races


def race_pairs(script: Script) -> list[tuple[int, int]]:
    return [(race.first, race.second) for race in races(script.device.log)]


def test_tasks_of_one_stream_are_ordered() -> None:
    script = Script()
    for _ in range(2):
        script.write(script.a)
        script.read(script.a)
    assert race_pairs(script) == []


def test_all_pairs_but_two_reads_conflict() -> None:
    for first, second, wrong in (
        ("write", "write", 1),
        ("write", "read", 1),
        ("read", "write", 1),
        ("read", "read", 0),
    ):
        script = Script()
        getattr(script, first)(script.a)
        getattr(script, second)(script.b)
        assert len(race_pairs(script)) == wrong


def test_race_names_the_common_bytes() -> None:
    script = Script()
    script.write(script.a, LOW)
    script.read(script.b, HIGH)
    assert race_pairs(script) == []
    script.read(script.b, MIDDLE, name="reader")
    description = "'write' writes what is read by 'reader': bytes 2 to 4, unordered"
    assert races(script.device.log) == (Race(first=0, second=2, range=ByteRange(0, 2, 4), description=description),)


def test_arenas_do_not_conflict() -> None:
    script = Script()
    script.write(script.a, LOW)
    script.write(script.b, ByteRange(1, 0, 4))
    assert race_pairs(script) == []


def test_wait_orders_later_tasks_after_those_before_the_record() -> None:
    script = Script()
    script.write(script.a)
    event = script.record(script.a)
    script.write(script.a, HIGH)
    script.wait(script.b, event)
    script.read(script.b, LOW)
    script.read(script.b, HIGH)
    assert race_pairs(script) == [(1, 3)]


def test_wait_captures_the_latest_record_at_its_issue() -> None:
    script = Script()
    event = script.record(script.a)
    script.wait(script.b, event)
    script.write(script.a)
    script.record(script.a, event)
    script.read(script.b)
    assert race_pairs(script) == [(0, 1)]


def test_wait_for_an_unrecorded_event_orders_nothing() -> None:
    script = Script()
    script.write(script.a)
    script.wait(script.b, script.device.create_event())
    script.read(script.b)
    assert race_pairs(script) == [(0, 1)]


def test_order_is_transitive_through_a_third_stream() -> None:
    script = Script()
    third = script.device.create_stream("third")
    script.write(script.a)
    script.order(script.a, third)
    script.order(third, script.b)
    script.read(script.b)
    assert race_pairs(script) == []


def test_synchronize_orders_everything() -> None:
    script = Script()
    script.write(script.a)
    script.device.synchronize()
    script.read(script.b)
    script.write(script.a)
    assert race_pairs(script) == [(1, 2)]


def test_write_must_wait_for_all_readers() -> None:
    for waited, left in (("a", 1), ("b", 0)):
        script = Script()
        third = script.device.create_stream("third")
        script.read(script.a)
        script.read(script.b)
        script.order(getattr(script, waited), third)
        script.write(third)
        assert race_pairs(script) == [(left, 2)]


def test_readers_overwritten_in_part_are_kept_for_the_other_bytes() -> None:
    script = Script()
    third = script.device.create_stream("third")
    script.read(script.a, LOW)
    script.order(script.a, third)
    script.write(third, ByteRange(0, 0, 2))
    script.write(script.b, ByteRange(0, 2, 4))
    assert race_pairs(script) == [(0, 2)]


def test_task_that_updates_in_place_does_not_race_with_itself() -> None:
    script = Script()
    script.device.submit(script.a, Task(name="both", reads=(Access(LOW),), writes=(Access(LOW),)))
    assert race_pairs(script) == []


def test_host_that_waited_orders_all_streams_after_the_record_and_no_more() -> None:
    script = Script()
    script.write(script.a)
    event = script.record(script.a)
    script.write(script.a, HIGH)
    script.device.wait_on_host(event)
    script.read(script.b, LOW)
    script.read(script.b, HIGH)
    assert race_pairs(script) == [(1, 3)]
