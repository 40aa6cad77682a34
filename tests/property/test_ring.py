"""Rings of random layers: sound, never worse than another policy or with more room, and optimal where that is known."""

import random
import sys
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.layered import layer_problem, layered_graph, plan_graph
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

FEW, MORE, MANY = 80, 1_000, 10_000
BASELINES = tuple(policy for policy in POLICIES if policy != "cyclic")


def random_layers(seed: int) -> RingProblem:
    """Up to twelve layers: equal, of two kinds or all different; fast or slow to compute; some pinned."""
    pick = random.Random(seed)
    count = pick.randint(1, 12)
    kind = pick.randint(0, 3)
    sizes = [pick.randint(1, 20)] * count if kind == 0 else [pick.choice((3, 7)) for _ in range(count)]
    sizes = [pick.randint(1, 30) for _ in range(count)] if kind > 1 else sizes
    scale = pick.choice((1, 5, 20, 50))
    copy = [2 * size + pick.choice((0, 0, 3)) for size in sizes]
    compute = [pick.randint(0, 2 * scale) for _ in sizes]
    return layer_problem(sizes, compute, copy, [pick.random() < 0.08 for _ in sizes])


def forward_backward_layers(seed: int) -> RingProblem:
    """Up to seven layers read in order and then in reverse: some once, some held from the first to the second read."""
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
        layer_problem(sizes, [pick.randint(0, 12) for _ in range(2 * count)], [2 * size + 1 for size in sizes]),
        pinned=tuple(pick.random() < 0.1 for _ in sizes),
        visits=tuple(sorted(visits, key=lambda visit: (visit.first, visit.last, visit.block))),
    )


def require_best(seed: int, problem: RingProblem) -> None:
    """In three ascending budgets: not slower than another policy or a smaller budget; fits where any policy fits."""
    pick = random.Random(-seed)
    before: Candidate | None = None
    for room in sorted(pick.randint(max(problem.bytes), sum(problem.bytes) + 2) for _ in range(3)):
        cyclic = choose_cyclic(problem, room, 0)
        for policy in BASELINES:
            candidate = POLICY[policy](problem, room, 0)
            assert candidate is None or (cyclic and cyclic.pass_time.ns <= candidate.pass_time.ns), (seed, room, policy)
        assert before is None or (cyclic and cyclic.pass_time.ns <= before.pass_time.ns), (seed, room)
        before = cyclic or before


def test_cyclic_is_never_worse_than_another_policy_or_with_more_room() -> None:
    for seed in range(FEW):
        require_best(seed, random_layers(seed))
        require_best(seed, forward_backward_layers(seed))


@pytest.mark.parametrize(
    ("low", "high"),
    [pytest.param(FEW, MORE, marks=pytest.mark.slow), pytest.param(MORE, MANY, marks=pytest.mark.long)],
)
def test_cyclic_is_never_worse_over_many_sequences(low: int, high: int) -> None:
    for seed in range(low, high):
        require_best(seed, random_layers(seed))
        require_best(seed, forward_backward_layers(seed))


def exhaustive_pass_ns(problem: RingProblem, room: int) -> int | None:
    """The least ns of a pass over all resident sets and all addresses of the others."""
    best: int | None = None
    for is_streamed in product((False, True), repeat=len(problem.bytes)):
        streamed = streamed_blocks(problem, is_streamed)
        left = room - streamed.resident_bytes
        if left >= streamed.largest_bytes and (best is None or streamed.floor_ns < best):
            for address in product(*(range(left - problem.bytes[block] + 1) for block in streamed.blocks)):
                candidate = evaluate_addresses(streamed, address)
                best = candidate.pass_time.ns if candidate and (best is None or candidate.pass_time.ns < best) else best
    return best


@pytest.mark.parametrize("seed", range(40))
def test_small_rings_are_as_fast_as_any_addresses_allow(seed: int) -> None:
    pick = random.Random(seed)
    count, alike = pick.randint(2, 5), seed % 2
    sizes = [pick.randint(1, 2)] * count if alike else [pick.randint(1, 4) for _ in range(count)]
    compute = [pick.randint(0, 12)] * count if alike else [pick.randint(0, 12) for _ in range(count)]
    problem = layer_problem(sizes, compute, [3 * size + 1 for size in sizes])
    room = pick.randint(max(sizes), min(sum(sizes), max(sizes) + 6))
    cyclic = choose_cyclic(problem, room, 0)
    assert cyclic
    assert cyclic.pass_time.ns == exhaustive_pass_ns(problem, room)


@pytest.mark.parametrize("count", [5, 12, 33, 80])
@pytest.mark.parametrize(("compute", "copy"), [(2, 10), (10, 10), (30, 10)])
def test_equal_layers_move_what_does_not_fit_and_no_more(count: int, compute: int, copy: int) -> None:
    """Two slots suffice for what moves; if its number is odd, one layer more moves or there is one gap."""
    problem = layer_problem([1] * count, [compute] * count, [copy] * count)
    for slots in range(2, count):
        cyclic = choose_cyclic(problem, slots, 0)
        assert cyclic
        moved = count - slots + 2
        pairs = moved + moved % 2
        even = max(copy * pairs, compute * count) if pairs <= count else sys.maxsize
        odd = max(copy * moved, compute * count) + min(compute, copy)
        assert max(copy * (moved - 1), compute * count) <= cyclic.pass_time.ns <= min(even, odd)


def random_addresses(seed: int) -> tuple[StreamedBlocks, tuple[int, ...]]:
    """All layers of a random problem streamed, at random addresses."""
    problem, pick = random_layers(seed), random.Random(-seed)
    room = pick.randint(max(problem.bytes), sum(problem.bytes))
    streamed = streamed_blocks(problem, [True] * len(problem.bytes))
    return streamed, tuple(pick.randint(0, room - size) for size in problem.bytes)


@pytest.mark.parametrize("seed", range(60))
def test_simulated_passes_converge_to_the_predicted_time(seed: int) -> None:
    streamed, address = random_addresses(seed)
    candidate = evaluate_addresses(streamed, address)
    assert candidate
    problem = replace(streamed.problem, pinned=(False,) * len(address))
    ring = assemble(problem, candidate, policy="cyclic", capacity=sum(problem.bytes) * 2)
    passes, count = 40, len(streamed.visits)
    starts = [timing.start for timing in simulate(problem, ring, passes)]
    ends = starts[count - 1 :: count]
    assert ends[-1] - ends[-2] == candidate.pass_time.ns
    assert all(later - earlier <= candidate.pass_time.ns for earlier, later in pairwise(ends))


@pytest.mark.parametrize("seed", range(60))
def test_simulated_training_steps_converge_to_the_predicted_time(seed: int) -> None:
    problem = forward_backward_layers(seed)
    candidate = choose_cyclic(problem, max(problem.bytes) + sum(problem.bytes) // 2, 0)
    if candidate and candidate.streamed.visits:
        ring = assemble(problem, candidate, policy="cyclic", capacity=sum(problem.bytes))
        ends = [timing.end for timing in simulate(problem, ring, 40) if timing.visit == candidate.streamed.visits[-1]]
        assert ends[-1] - ends[-2] == candidate.pass_time.ns


@pytest.mark.parametrize("seed", range(60))
def test_pass_time_bound_holds_for_random_addresses(seed: int) -> None:
    streamed, address = random_addresses(seed)
    candidate = evaluate_addresses(streamed, address)
    room = max(start + size for start, size in zip(address, streamed.problem.bytes, strict=True))
    bound = pass_time_bound(streamed, room)
    assert candidate
    assert bound is not None
    assert bound <= candidate.pass_time.ns


@pytest.mark.parametrize("seed", range(30))
def test_residency_candidates_are_distinct_and_hold_the_extremes(seed: int) -> None:
    problem = random_layers(seed)
    candidates = [streamed.blocks for streamed in residency_candidates(problem)]
    assert len(set(candidates)) == len(candidates)
    assert () in candidates
    assert tuple(block for block, pinned in enumerate(problem.pinned) if not pinned) in candidates
    assert all(not problem.pinned[block] for blocks in candidates for block in blocks)


def test_residency_candidates_of_many_sizes_are_few_and_dense() -> None:
    pick = random.Random(0)
    sizes = [pick.randint(5, 60) * 1000 for _ in range(60)]
    sizes.append(1)
    candidates = residency_candidates(layer_problem(sizes, [1] * 61, sizes))
    assert tuple(range(61)) in [streamed.blocks for streamed in candidates]
    resident = sorted(streamed.resident_bytes for streamed in candidates)
    assert len(candidates) <= 4096
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
def test_rings_are_sound_and_survive_their_file(
    sizes: list[int], tied: int, backward: bool, room: int, policy: str, depth: int
) -> None:
    graph = layered_graph(sizes, tied=tied, backward=backward)
    plan = plan_graph(graph, "backward" if backward else "inference")
    capacity = max(sizes) + tied + (sum(sizes) - max(sizes)) * room // 100
    try:
        ringed = prepare_ring(graph, plan, RingRequest(capacity=capacity, policy=policy, depth=depth))
    except ArenaTooSmall:
        return
    assert check_plan(graph, ringed) == ()
    assert read_plan(encode_plan(ringed)) == ringed
    assert ringed.ring
    assert ringed.ring.bytes <= capacity
