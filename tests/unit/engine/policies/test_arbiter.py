"""The link's arbiter: order, chunks, bytes in flight, and how long anybody is passed over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.engine.policies.arbiter import DIRECTIONS, Chunk, Direction, LinkArbiter
from tmmu.errors import InvalidConfig

PATIENCE = 3


def arbiter(chunk: int = 10, in_flight: int = 1000) -> LinkArbiter:
    return LinkArbiter(chunk=chunk, in_flight=in_flight, patience=PATIENCE)


def issue(link: LinkArbiter, count: int) -> list[tuple[str, int, int]]:
    chunks = [link.next_chunk() for _ in range(count)]
    return [(chunk.direction, chunk.key, chunk.size) for chunk in chunks if chunk is not None]


def test_swap_ins_go_before_swap_outs_before_weights_in_chunks() -> None:
    link = arbiter()
    link.request(7, "weights", 5, urgent=True)
    link.request(1, "out", 9, urgent=False)
    link.request(2, "in", 11, urgent=True)
    assert issue(link, 9) == [("in", 2, 10), ("in", 2, 1), ("out", 1, 9), ("weights", 7, 5)]


def test_urgent_requests_go_first_and_an_early_one_becomes_urgent_with_what_remains() -> None:
    link = arbiter()
    link.request(1, "in", 30, urgent=False)
    assert issue(link, 1) == [("in", 1, 10)]
    link.request(2, "in", 10, urgent=False)
    link.request(3, "in", 10, urgent=True)
    link.request(2, "in", 0, urgent=True)
    assert issue(link, 9) == [("in", 3, 10), ("in", 2, 10), ("in", 1, 10), ("in", 1, 10)]


def test_nothing_is_asked_for_by_no_bytes() -> None:
    link = arbiter()
    link.request(1, "in", 0, urgent=True)
    assert (issue(link, 1), link.remaining(1, "in")) == ([], 0)


def test_bytes_in_flight_are_capped_until_a_chunk_has_landed() -> None:
    link = arbiter(in_flight=20)
    link.request(1, "in", 30, urgent=True)
    first = link.next_chunk()
    assert (issue(link, 5), link.in_flight) == ([("in", 1, 10)], 20)
    assert first is not None
    link.landed(first)
    assert (issue(link, 5), link.in_flight) == ([("in", 1, 10)], 20)


def test_cancelled_bytes_are_never_issued() -> None:
    link = arbiter()
    link.request(1, "out", 25, urgent=True)
    issue(link, 1)
    assert (link.cancel(1, "out"), issue(link, 1)) == (15, [])


def test_chunk_lands_once() -> None:
    link = arbiter()
    link.request(1, "in", 5, urgent=True)
    chunk = link.next_chunk()
    assert chunk is not None
    link.landed(chunk)
    with pytest.raises(InvalidConfig, match="not in flight"):
        link.landed(chunk)


@pytest.mark.parametrize(("chunk", "in_flight", "patience"), [(0, 10, 1), (11, 10, 1), (10, 10, 0)])
def test_limits_that_move_nothing_are_refused(chunk: int, in_flight: int, patience: int) -> None:
    with pytest.raises(InvalidConfig):
        LinkArbiter(chunk=chunk, in_flight=in_flight, patience=patience)


def test_weights_that_wait_behind_endless_swaps_have_their_turn() -> None:
    link = arbiter()
    for direction in DIRECTIONS:
        link.request(0, direction, 1000, urgent=True)
    order = [direction for direction, *_ in issue(link, 12)]
    assert order == ["in", "in", "in", "weights", "out", "in", "in", "weights", "out", "in", "in", "weights"]


requests = st.lists(
    st.tuples(st.sampled_from(DIRECTIONS), st.integers(0, 3), st.integers(0, 60), st.booleans(), st.integers(0, 4)),
    max_size=40,
)


@given(requests)
def test_no_direction_is_passed_over_longer_than_the_bound(rows: list[tuple[Direction, int, int, bool, int]]) -> None:
    link, passed = arbiter(in_flight=25), dict.fromkeys(DIRECTIONS, 0)
    asked: dict[tuple[int, Direction], int] = {}
    flying: list[Chunk] = []
    for direction, key, size, urgent, chunks in [*rows, *[("in", 0, 0, True, 99)] * 3]:
        link.request(key, direction, size, urgent=urgent)
        asked[key, direction] = asked.get((key, direction), 0) + size
        for _ in range(chunks):
            asking = [name for name in DIRECTIONS if any(link.remaining(each, name) for each in range(4))]
            chunk = link.next_chunk()
            assert link.in_flight <= 25
            if chunk is None:
                if not flying:
                    break
                link.landed(flying.pop(0))
                continue
            flying.append(chunk)
            asked[chunk.key, chunk.direction] -= chunk.size
            for name in DIRECTIONS:
                passed[name] = passed[name] + 1 if name in asking and name != chunk.direction else 0
            assert max(passed.values()) <= PATIENCE + 2
    assert {key: size for key, size in asked.items() if size} == {
        (key, name): link.remaining(key, name) for name in DIRECTIONS for key in range(4) if link.remaining(key, name)
    }
