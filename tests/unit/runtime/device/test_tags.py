"""A reader finds the content that the host meant, whole, and of the copy that it meant."""

from tests.unit.runtime.device.programs import HERE, OVER_BOTH, THERE, Script
from tmmu.runtime.device.interface import ANY, POISON, Access, ByteRange, Stream, Task
from tmmu.runtime.device.tags import NEVER, TORN, TagChecker

STREAM = Stream(0, "s")


def write(place: ByteRange, content: int) -> Task:
    return Task(name=f"write {content}", writes=(Access(place, content),))


def read(place: ByteRange, content: int) -> Task:
    return Task(name=f"read {content}", reads=(Access(place, content),))


def played(*works: Task, at: str) -> list[tuple[int, int, int]]:
    """(reader, expected, found) of the mismatches when works begin and end as told: ``b0 e0 b1 e1``."""
    tags = TagChecker()
    for number, work in enumerate(works):
        tags.on_submit(number, STREAM, work)
    for moment in at.split():
        (tags.on_begin if moment[0] == "b" else tags.on_end)(int(moment[1:]))
    return [(one.reader, one.expected, one.actual) for one in tags.mismatches]


def test_the_block_that_was_meant() -> None:
    assert played(write(HERE, 5), read(HERE, 5), at="b0 e0 b1 e1") == []


def test_a_reader_that_comes_too_early() -> None:
    assert played(write(HERE, 5), read(HERE, 5), at="b1 e1 b0 e0") == [(1, 0, NEVER)] * 2


def test_a_reader_in_the_middle_of_a_write() -> None:
    assert played(write(HERE, 5), read(HERE, 5), at="b0 b1 e0 e1") == [(1, 0, TORN)]


def test_a_write_in_the_middle_of_a_reader() -> None:
    works = write(HERE, 5), read(HERE, 5), write(THERE, 5), write(HERE, 6)
    assert played(*works, at="b0 e0 b1 b2 e2 b3 e1 e3") == [(1, 0, TORN)]
    assert played(*works, at="b0 e0 b1 b3 e3 e1") == [(1, 0, 3)]


def test_another_block() -> None:
    assert played(write(HERE, 5), write(HERE, 6), read(HERE, 5), at="b0 e0 b1 e1 b2 e2") == [(2, 0, 1)] * 2


def test_an_older_copy_of_the_right_block() -> None:
    assert played(write(HERE, 5), write(HERE, 5), read(HERE, 5), at="b0 e0 b2 e2 b1 e1") == [(2, 1, 0)] * 2


def test_half_of_the_right_block() -> None:
    works = write(HERE, 5), write(THERE, 5), write(OVER_BOTH, 6), read(ByteRange(0, 0, 8), 5)
    assert played(*works, at="b0 e0 b1 e1 b2 e2 b3 e3") == [(3, 0, 2), (3, 1, 2)] * 2


def test_a_block_in_pieces() -> None:
    works = write(HERE, 5), write(THERE, 5), read(ByteRange(0, 0, 8), 5)
    assert played(*works, at="b0 e0 b1 e1 b2 e2") == []
    assert played(*works, at="b0 e0 b2 e2 b1 e1") == [(2, 1, NEVER)] * 2


def test_what_was_made_unreadable() -> None:
    assert played(write(HERE, 5), write(HERE, POISON), read(HERE, 5), at="b0 e0 b1 e1 b2 e2") == [(2, 0, 1)] * 2


def test_a_block_that_was_never_copied() -> None:
    assert played(write(HERE, 6), read(HERE, 5), at="b0 e0 b1 e1") == [(1, NEVER, 0)] * 2


def test_content_that_nobody_checks() -> None:
    assert played(write(HERE, 6), read(HERE, ANY), at="b1 b0 e0 e1") == []


def test_a_work_that_changes_what_it_reads() -> None:
    both = Task(name="both", reads=(Access(HERE, 5),), writes=(Access(HERE, 5),))
    assert played(write(HERE, 5), both, read(HERE, 5), at="b0 e0 b1 e1 b2 e2") == []


def test_the_words_name_both_sides() -> None:
    tags = TagChecker()
    for number, work in enumerate((write(HERE, 5), write(HERE, 6), read(HERE, 5))):
        tags.on_submit(number, STREAM, work)
        tags.on_begin(number)
        tags.on_end(number)
    said = "'read 5' reads bytes 0 to 4, which should hold 'write 5' and hold 'write 6'"
    assert [one.description for one in tags.mismatches] == [said] * 2


def test_the_explorer_finds_each_of_them_where_nothing_prevents_it() -> None:
    script = Script()
    script.write(script.a, HERE, 5)
    script.read(script.b, HERE, 5)
    (fault,) = script.device.explore().counterexamples
    assert fault.mismatch.expected == 0
    assert fault.path[-1] == "read begins"
