"""Whom a copy waits for, and when it may be issued, worked out by hand."""

from tests.layered import layers
from tmmu.ir.ring import Copy, Visit, When
from tmmu.planner.ring.copies import derive_copies, overwritten, visits_ahead, visits_since
from tmmu.planner.ring.problem import RingProblem, Stream, stream_of

SIZES = (4, 4, 3, 2, 5)


def stream() -> Stream:
    return stream_of(layers(SIZES, [1] * 5, [1] * 5), [True] * 5)


def test_a_copy_waits_for_all_whose_bytes_it_overwrites_newest_first() -> None:
    """A skip-end ring of 11: the fourth lands on the first, the fifth on the rest of that and on the second."""
    address = (0, 4, 8, 0, 2)
    assert overwritten(stream(), address) == (
        ((4, 1), (3, 1)),
        ((4, 1), (1, 1)),
        ((2, 1),),
        ((0, 0),),
        ((1, 0), (0, 0)),
    )


def test_blocks_apart_wait_for_their_own_readers_alone() -> None:
    assert overwritten(stream(), (0, 4, 8, 11, 13)) == tuple(((i, 1),) for i in range(5))


def test_a_copy_is_issued_at_the_visit_after_its_readers_and_in_turn() -> None:
    made = stream()
    copies = derive_copies(made, overwritten(made, (0, 4, 8, 0, 2)))
    assert [copy.start for copy in copies] == [
        When(visit=0, lag=0),
        When(visit=0, lag=0),
        When(visit=0, lag=0),
        When(visit=1, lag=0),
        When(visit=2, lag=0),
    ]
    assert visits_ahead(made, copies) == [0, 1, 2, 2, 2]


def test_a_start_in_the_pass_before_has_a_lag() -> None:
    made = stream_of(layers([1] * 4, [1] * 4, [1] * 4), [True] * 4)
    copies = derive_copies(made, overwritten(made, (0, 1, 0, 1)))
    assert copies == (
        Copy(visit=0, start=When(visit=3, lag=1), waits=(When(visit=2, lag=1),)),
        Copy(visit=1, start=When(visit=0, lag=0), waits=(When(visit=3, lag=1),)),
        Copy(visit=2, start=When(visit=1, lag=0), waits=(When(visit=0, lag=0),)),
        Copy(visit=3, start=When(visit=2, lag=0), waits=(When(visit=1, lag=0),)),
    )
    assert visits_ahead(made, copies) == [1, 1, 1, 1]


def test_visits_of_what_stays_count_as_starts_and_not_as_depth() -> None:
    """The one streamed layer is issued as soon as it has been read: at the visit of the next, which stays."""
    made = stream_of(layers([1] * 3, [1] * 3, [1] * 3), [False, True, False])
    copies = derive_copies(made, overwritten(made, (0, 0, 0)))
    assert copies == (Copy(visit=1, start=When(visit=2, lag=1), waits=(When(visit=1, lag=1),)),)
    assert visits_ahead(made, copies) == [0]


def test_a_start_skips_visits_that_begin_before_the_reader_ends() -> None:
    problem = RingProblem(
        names=("a", "b", "c"),
        bytes=(1, 1, 1),
        members=((), (), ()),
        pinned=(False, False, False),
        visits=(Visit(block=0, first=0, last=3), Visit(block=1, first=1, last=1), Visit(block=2, first=4, last=4)),
        op_ns=(1,) * 5,
        copy_ns=(1,) * 3,
        alignment=1,
    )
    made = stream_of(problem, [True] * 3)
    assert overwritten(made, (0, 1, 0)) == (((2, 1),), ((1, 1),), ((0, 0),))
    assert derive_copies(made, overwritten(made, (0, 1, 0)))[2].start == When(visit=2, lag=0)
    assert visits_since(made) == [1, 2, 2]


def test_a_block_read_twice_waits_for_its_visit_before() -> None:
    problem = layers([1, 1], [1, 1, 1], [1, 1])
    visits = (Visit(block=0, first=0, last=0), Visit(block=1, first=1, last=1), Visit(block=0, first=2, last=2))
    twice = RingProblem(**{name: getattr(problem, name) for name in vars(problem) if name != "visits"}, visits=visits)
    made = stream_of(twice, [True, True])
    assert overwritten(made, (0, 1)) == (((2, 1),), ((1, 1),), ((0, 0),))
    assert visits_since(made) == [0, 2, 1]
