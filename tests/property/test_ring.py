"""Rings of random layers: never worse than another policy, never worse with more room, sound, and as good as can be."""

import random
import sys
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layered import layered, layers, planned
from tmmu.codec.read import read_plan
from tmmu.errors import ArenaTooSmall
from tmmu.ir.plan import encode_plan
from tmmu.ir.ring import POLICIES, Visit
from tmmu.judge.check import check_plan
from tmmu.planner.ring.assemble import assemble
from tmmu.planner.ring.cyclic import Candidate, choose_cyclic, evaluate_addresses, pass_time_bound
from tmmu.planner.ring.figures import simulate
from tmmu.planner.ring.policies import POLICY
from tmmu.planner.ring.prepare import RingRequest, prepare_ring
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks, streamed_blocks
from tmmu.planner.ring.residency import residency_candidates

FEW, MANY = 200, 10_000
OTHERS = tuple(policy for policy in POLICIES if policy != "cyclic")


def random_layers(seed: int) -> RingProblem:
    """Up to twelve layers: alike, of two kinds or all different; fast or slow to compute; some that must stay."""
    pick = random.Random(seed)
    count = pick.randint(1, 12)
    kind = pick.randint(0, 3)
    sizes = [pick.randint(1, 20)] * count if kind == 0 else [pick.choice((3, 7)) for _ in range(count)]
    sizes = [pick.randint(1, 30) for _ in range(count)] if kind > 1 else sizes
    scale = pick.choice((1, 5, 20, 50))
    copy = [2 * size + pick.choice((0, 0, 3)) for size in sizes]
    compute = [pick.randint(0, 2 * scale) for _ in sizes]
    return layers(sizes, compute, copy, [pick.random() < 0.08 for _ in sizes])


def there_and_back(seed: int) -> RingProblem:
    """Up to seven layers read in order and then in the reverse order: some once, some all the way in between."""
    pick = random.Random(seed)
    count = pick.randint(1, 7)
    sizes = [pick.randint(1, 12) for _ in range(count)]
    visits: list[Visit] = []
    for i in range(count):
        back, kind = 2 * count - 1 - i, pick.random()
        visits.append(Visit(block=i, first=i, last=back if 0.15 < kind < 0.3 else i))
        if kind >= 0.3:
            visits.append(Visit(block=i, first=back, last=back))
    return replace(
        layers(sizes, [pick.randint(0, 12) for _ in range(2 * count)], [2 * size + 1 for size in sizes]),
        pinned=tuple(pick.random() < 0.1 for _ in sizes),
        visits=tuple(sorted(visits, key=lambda visit: (visit.first, visit.last, visit.block))),
    )


def hold(seed: int, problem: RingProblem) -> None:
    """Three budgets, in order: no other policy is faster or fits where ours does not, and no step makes it slower."""
    pick = random.Random(-seed)
    before: Candidate | None = None
    for room in sorted(pick.randint(max(problem.bytes), sum(problem.bytes) + 2) for _ in range(3)):
        ours = choose_cyclic(problem, room, 0)
        for policy in OTHERS:
            other = POLICY[policy](problem, room, 0)
            assert other is None or (ours and ours.pass_time.ns <= other.pass_time.ns), (seed, room, policy)
        assert before is None or (ours and ours.pass_time.ns <= before.pass_time.ns), (seed, room)
        before = ours or before


def test_never_worse_than_another_policy_or_than_with_less_room() -> None:
    for seed in range(FEW):
        hold(seed, random_layers(seed))
        hold(seed, there_and_back(seed))


@pytest.mark.slow
def test_never_worse_over_many_sequences() -> None:
    for seed in range(FEW, MANY):
        hold(seed, random_layers(seed))
        hold(seed, there_and_back(seed))


def shortest(problem: RingProblem, room: int) -> int | None:
    """The least time per pass over all sets that stay and all addresses of the others."""
    best: int | None = None
    for streamed in product((False, True), repeat=len(problem.bytes)):
        stream = streamed_blocks(problem, streamed)
        left = room - stream.resident_bytes
        if left >= stream.largest_bytes and (best is None or stream.floor_ns < best):
            for address in product(*(range(left - problem.bytes[block] + 1) for block in stream.blocks)):
                found = evaluate_addresses(stream, address)
                best = found.pass_time.ns if found and (best is None or found.pass_time.ns < best) else best
    return best


@pytest.mark.parametrize("seed", range(40))
def test_small_rings_are_as_fast_as_any_addresses_allow(seed: int) -> None:
    pick = random.Random(seed)
    count, alike = pick.randint(2, 5), seed % 2
    sizes = [pick.randint(1, 2)] * count if alike else [pick.randint(1, 4) for _ in range(count)]
    compute = [pick.randint(0, 12)] * count if alike else [pick.randint(0, 12) for _ in range(count)]
    problem = layers(sizes, compute, [3 * size + 1 for size in sizes])
    room = pick.randint(max(sizes), min(sum(sizes), max(sizes) + 6))
    ours = choose_cyclic(problem, room, 0)
    assert ours
    assert ours.pass_time.ns == shortest(problem, room)


@pytest.mark.parametrize("count", [5, 12, 33, 80])
@pytest.mark.parametrize(("compute", "copy"), [(2, 10), (10, 10), (30, 10)])
def test_equal_layers_move_what_does_not_fit_and_no_more(count: int, compute: int, copy: int) -> None:
    """Two slots for what moves, and one layer more or one gap where its number is odd: no copy waits for room."""
    problem = layers([1] * count, [compute] * count, [copy] * count)
    for slots in range(2, count):
        ours = choose_cyclic(problem, slots, 0)
        assert ours
        moved = count - slots + 2
        pairs = moved + moved % 2
        even = max(copy * pairs, compute * count) if pairs <= count else sys.maxsize
        odd = max(copy * moved, compute * count) + min(compute, copy)
        assert max(copy * (moved - 1), compute * count) <= ours.pass_time.ns <= min(even, odd)


def whole_stream(seed: int) -> tuple[StreamedBlocks, tuple[int, ...]]:
    """All layers of a random sequence, at random addresses."""
    problem, pick = random_layers(seed), random.Random(-seed)
    room = pick.randint(max(problem.bytes), sum(problem.bytes))
    stream = streamed_blocks(problem, [True] * len(problem.bytes))
    return stream, tuple(pick.randint(0, room - size) for size in problem.bytes)


@pytest.mark.parametrize("seed", range(60))
def test_the_time_of_a_pass_is_what_passes_come_to(seed: int) -> None:
    stream, address = whole_stream(seed)
    choice = evaluate_addresses(stream, address)
    assert choice
    problem = replace(stream.problem, pinned=(False,) * len(address))
    ring = assemble(problem, choice, policy="cyclic", capacity=sum(problem.bytes) * 2)
    passes, count = 40, len(stream.visits)
    starts = [turn.start for turn in simulate(problem, ring, passes)]
    ends = starts[count - 1 :: count]
    assert ends[-1] - ends[-2] == choice.pass_time.ns
    assert all(later - earlier <= choice.pass_time.ns for earlier, later in pairwise(ends))


@pytest.mark.parametrize("seed", range(60))
def test_the_time_of_a_step_there_and_back_is_what_steps_come_to(seed: int) -> None:
    problem = there_and_back(seed)
    choice = choose_cyclic(problem, max(problem.bytes) + sum(problem.bytes) // 2, 0)
    if choice and choice.streamed.visits:
        ring, count = (
            assemble(problem, choice, policy="cyclic", capacity=sum(problem.bytes)),
            len(choice.streamed.visits),
        )
        ends = [turn.start for turn in simulate(problem, ring, 40)][count - 1 :: count]
        assert ends[-1] - ends[-2] == choice.pass_time.ns


@pytest.mark.parametrize("seed", range(60))
def test_no_addresses_beat_the_bound(seed: int) -> None:
    stream, address = whole_stream(seed)
    choice = evaluate_addresses(stream, address)
    room = max(at + size for at, size in zip(address, stream.problem.bytes, strict=True))
    bound = pass_time_bound(stream, room)
    assert choice
    assert bound is not None
    assert bound <= choice.pass_time.ns


@pytest.mark.parametrize("seed", range(30))
def test_the_sets_to_try_depend_on_no_budget_and_hold_the_extremes(seed: int) -> None:
    problem = random_layers(seed)
    found = [stream.blocks for stream in residency_candidates(problem)]
    assert len(set(found)) == len(found)
    assert () in found
    assert tuple(block for block, pinned in enumerate(problem.pinned) if not pinned) in found
    assert all(not problem.pinned[block] for blocks in found for block in blocks)


def test_many_layers_of_many_sizes_are_tried_in_few_sets() -> None:
    pick = random.Random(0)
    sizes = [pick.randint(5, 60) * 1000 for _ in range(60)]
    sizes.append(1)
    found = residency_candidates(layers(sizes, [1] * 61, sizes))
    assert tuple(range(61)) in [stream.blocks for stream in found]
    resident = sorted(stream.resident_bytes for stream in found)
    assert len(found) <= 4096
    assert max(later - before for before, later in pairwise(resident)) <= sum(sizes) // 100


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(4, 40).map(lambda n: 64 * n), min_size=1, max_size=7),
    tied=st.sampled_from([0, 256]),
    backward=st.booleans(),
    room=st.integers(0, 100),
    policy=st.sampled_from(POLICIES),
    depth=st.integers(0, 3),
)
def test_every_ring_is_sound_and_survives_its_file(
    sizes: list[int], tied: int, backward: bool, room: int, policy: str, depth: int
) -> None:
    graph = layered(sizes, tied=tied, backward=backward)
    plan = planned(graph, "backward" if backward else "inference")
    capacity = max(sizes) + tied + (sum(sizes) - max(sizes)) * room // 100
    try:
        made = prepare_ring(graph, plan, RingRequest(capacity=capacity, policy=policy, depth=depth))
    except ArenaTooSmall:
        return
    assert check_plan(graph, made) == ()
    assert read_plan(encode_plan(made)) == made
    assert made.ring
    assert made.ring.bytes <= capacity
