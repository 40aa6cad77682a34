"""Waits and issue points of copies, worked out by hand."""

from tests.layered import layer_problem
from tmmu.ir.ring import Copy, Visit, VisitRef
from tmmu.planner.ring.copies import derive_copies, max_prefetch_distances, overwritten_visits, prefetch_distances
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks, streamed_blocks

SIZES = (4, 4, 3, 2, 5)


def streamed_example() -> StreamedBlocks:
    return streamed_blocks(layer_problem(SIZES, [1] * 5, [1] * 5), [True] * 5)


def test_copy_waits_for_all_visits_that_it_overwrites_newest_first() -> None:
    """A skip-end ring of 11: the fourth block overwrites the first, the fifth what is left of it and the second."""
    address = (0, 4, 8, 0, 2)
    assert overwritten_visits(streamed_example(), address) == (
        ((4, 1), (3, 1)),
        ((4, 1), (1, 1)),
        ((2, 1),),
        ((0, 0),),
        ((1, 0), (0, 0)),
    )


def test_disjoint_blocks_wait_for_their_own_readers_only() -> None:
    assert overwritten_visits(streamed_example(), (0, 4, 8, 11, 13)) == tuple(((i, 1),) for i in range(5))


def test_copy_is_issued_at_the_visit_after_its_readers_in_link_order() -> None:
    blocks = streamed_example()
    copies = derive_copies(blocks, overwritten_visits(blocks, (0, 4, 8, 0, 2)))
    assert [copy.start for copy in copies] == [
        VisitRef(visit=0, lag=0),
        VisitRef(visit=0, lag=0),
        VisitRef(visit=0, lag=0),
        VisitRef(visit=1, lag=0),
        VisitRef(visit=2, lag=0),
    ]
    assert prefetch_distances(blocks, copies) == [0, 1, 2, 2, 2]


def test_start_in_the_pass_before_has_a_lag() -> None:
    blocks = streamed_blocks(layer_problem([1] * 4, [1] * 4, [1] * 4), [True] * 4)
    copies = derive_copies(blocks, overwritten_visits(blocks, (0, 1, 0, 1)))
    assert copies == (
        Copy(visit=0, start=VisitRef(visit=3, lag=1), waits=(VisitRef(visit=2, lag=1),)),
        Copy(visit=1, start=VisitRef(visit=0, lag=0), waits=(VisitRef(visit=3, lag=1),)),
        Copy(visit=2, start=VisitRef(visit=1, lag=0), waits=(VisitRef(visit=0, lag=0),)),
        Copy(visit=3, start=VisitRef(visit=2, lag=0), waits=(VisitRef(visit=1, lag=0),)),
    )
    assert prefetch_distances(blocks, copies) == [1, 1, 1, 1]


def test_visits_of_resident_blocks_count_as_starts_and_not_as_depth() -> None:
    """The only streamed layer is issued as soon as it has been read: at the visit of the next, resident layer."""
    blocks = streamed_blocks(layer_problem([1] * 3, [1] * 3, [1] * 3), [False, True, False])
    copies = derive_copies(blocks, overwritten_visits(blocks, (0, 0, 0)))
    assert copies == (Copy(visit=1, start=VisitRef(visit=2, lag=1), waits=(VisitRef(visit=1, lag=1),)),)
    assert prefetch_distances(blocks, copies) == [0]


def test_start_skips_visits_that_begin_before_the_reader_ends() -> None:
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
    blocks = streamed_blocks(problem, [True] * 3)
    assert overwritten_visits(blocks, (0, 1, 0)) == (((2, 1),), ((1, 1),), ((0, 0),))
    assert derive_copies(blocks, overwritten_visits(blocks, (0, 1, 0)))[2].start == VisitRef(visit=2, lag=0)
    assert max_prefetch_distances(blocks) == [1, 2, 2]


def test_block_read_twice_waits_for_its_previous_visit() -> None:
    problem = layer_problem([1, 1], [1, 1, 1], [1, 1])
    visits = (Visit(block=0, first=0, last=0), Visit(block=1, first=1, last=1), Visit(block=0, first=2, last=2))
    twice = RingProblem(**{name: getattr(problem, name) for name in vars(problem) if name != "visits"}, visits=visits)
    blocks = streamed_blocks(twice, [True, True])
    assert overwritten_visits(blocks, (0, 1)) == (((2, 1),), ((1, 1),), ((0, 0),))
    assert max_prefetch_distances(blocks) == [0, 2, 1]
