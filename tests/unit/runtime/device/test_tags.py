"""The content oracle: readers find the intended content, whole, and of the intended copy."""

from tests.unit.runtime.device.programs import HIGH, LOW, MIDDLE, Script
from tmmu.runtime.device.interface import ANY, POISON, Access, ByteRange, Stream, Task
from tmmu.runtime.device.tags import NEVER, TORN, TagChecker

STREAM = Stream(0, "s")


def write(place: ByteRange, content: int) -> Task:
    return Task(name=f"write {content}", writes=(Access(place, content),))


def read(place: ByteRange, content: int) -> Task:
    return Task(name=f"read {content}", reads=(Access(place, content),))


def mismatches_at(*tasks: Task, order: str) -> list[tuple[int, int, int]]:
    """(reader, expected, actual) of the mismatches when tasks begin and end in this order: ``b0 e0 b1 e1``."""
    tags = TagChecker()
    for number, task in enumerate(tasks):
        tags.on_submit(number, STREAM, task)
    for moment in order.split():
        (tags.on_begin if moment[0] == "b" else tags.on_end)(int(moment[1:]))
    return [(m.reader, m.expected, m.actual) for m in tags.mismatches]


def test_reader_of_the_intended_block_matches() -> None:
    assert mismatches_at(write(LOW, 5), read(LOW, 5), order="b0 e0 b1 e1") == []


def test_reader_before_its_write_mismatches() -> None:
    assert mismatches_at(write(LOW, 5), read(LOW, 5), order="b1 e1 b0 e0") == [(1, 0, NEVER)] * 2


def test_reader_during_a_write_finds_torn_bytes() -> None:
    assert mismatches_at(write(LOW, 5), read(LOW, 5), order="b0 b1 e0 e1") == [(1, 0, TORN)]


def test_write_during_a_read_is_seen_at_the_end_of_the_reader() -> None:
    tasks = write(LOW, 5), read(LOW, 5), write(HIGH, 5), write(LOW, 6)
    assert mismatches_at(*tasks, order="b0 e0 b1 b2 e2 b3 e1 e3") == [(1, 0, TORN)]
    assert mismatches_at(*tasks, order="b0 e0 b1 b3 e3 e1") == [(1, 0, 3)]


def test_other_block_mismatches() -> None:
    assert mismatches_at(write(LOW, 5), write(LOW, 6), read(LOW, 5), order="b0 e0 b1 e1 b2 e2") == [(2, 0, 1)] * 2


def test_older_copy_of_the_right_block_mismatches() -> None:
    assert mismatches_at(write(LOW, 5), write(LOW, 5), read(LOW, 5), order="b0 e0 b2 e2 b1 e1") == [(2, 1, 0)] * 2


def test_half_of_the_right_block_mismatches() -> None:
    tasks = write(LOW, 5), write(HIGH, 5), write(MIDDLE, 6), read(ByteRange(0, 0, 8), 5)
    assert mismatches_at(*tasks, order="b0 e0 b1 e1 b2 e2 b3 e3") == [(3, 0, 2), (3, 1, 2)] * 2


def test_block_in_pieces_is_whole_after_the_last_one() -> None:
    tasks = write(LOW, 5), write(HIGH, 5), read(ByteRange(0, 0, 8), 5)
    assert mismatches_at(*tasks, order="b0 e0 b1 e1 b2 e2") == []
    assert mismatches_at(*tasks, order="b0 e0 b2 e2 b1 e1") == [(2, 1, NEVER)] * 2


def test_poisoned_bytes_mismatch() -> None:
    assert mismatches_at(write(LOW, 5), write(LOW, POISON), read(LOW, 5), order="b0 e0 b1 e1 b2 e2") == [(2, 0, 1)] * 2


def test_block_that_was_never_copied_mismatches() -> None:
    assert mismatches_at(write(LOW, 6), read(LOW, 5), order="b0 e0 b1 e1") == [(1, NEVER, 0)] * 2


def test_content_any_is_not_checked() -> None:
    assert mismatches_at(write(LOW, 6), read(LOW, ANY), order="b1 b0 e0 e1") == []


def test_task_that_updates_in_place_matches() -> None:
    both = Task(name="both", reads=(Access(LOW, 5),), writes=(Access(LOW, 5),))
    assert mismatches_at(write(LOW, 5), both, read(LOW, 5), order="b0 e0 b1 e1 b2 e2") == []


def test_description_names_both_tasks() -> None:
    tags = TagChecker()
    for number, work in enumerate((write(LOW, 5), write(LOW, 6), read(LOW, 5))):
        tags.on_submit(number, STREAM, work)
        tags.on_begin(number)
        tags.on_end(number)
    expected = "'read 5' reads bytes 0 to 4, which should hold 'write 5' and hold 'write 6'"
    assert [mismatch.description for mismatch in tags.mismatches] == [expected] * 2


def test_explorer_finds_a_mismatch_where_nothing_orders_the_tasks() -> None:
    script = Script()
    script.write(script.a, LOW, 5)
    script.read(script.b, LOW, 5)
    (fault,) = script.device.explore().counterexamples
    assert fault.mismatch.expected == 0
    assert fault.path[-1] == "read begins"
