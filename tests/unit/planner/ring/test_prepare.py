"""A plan with its ring: refusals, least budgets, figures, and equal bytes in every process."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.layered import layer_problem, layered_graph, plan_graph
from tmmu.errors import ArenaTooSmall, InvalidConfig
from tmmu.ir.plan import encode_plan
from tmmu.ir.ring import POLICIES
from tmmu.judge.check import judge
from tmmu.planner.ring.figures import figures_of, first_pass_ns, simulate
from tmmu.planner.ring.least_capacity import least_busy_capacity, least_capacity
from tmmu.planner.ring.policies import POLICY
from tmmu.planner.ring.prepare import RingRequest, plan_ring, prepare_ring, problem_of
from tmmu.planner.ring.problem import RingProblem
from tmmu.planner.ring.profile import Profile, copy_time
from tmmu.planner.ring.timing import CAPACITY, COMPUTE, LINK

SIZES = (512, 1024, 512, 768, 512, 1024)
GB = 10**9


def llama_70b(compute_ns: int = 2_000_000) -> RingProblem:
    """Embedding, 80 layers and head of Llama 3 70B in bfloat16, 141 GB, with copies at 24 GB/s and 10 us each."""
    sizes = [2_101_346_304, *[1_711_308_800] * 80, 2_101_362_688]
    return layer_problem(sizes, [1000, *[compute_ns] * 80, 1_400_000], [copy_time(Profile(), size) for size in sizes])


def test_ring_leaves_all_else_in_the_plan_unchanged() -> None:
    plan = plan_graph(layered_graph(SIZES, tied=256))
    ringed = prepare_ring(layered_graph(SIZES, tied=256), plan, RingRequest(capacity=2048))
    assert ringed.ring
    assert replace(ringed, ring=None) == plan
    assert ringed.digest != plan.digest
    judge(layered_graph(SIZES, tied=256), ringed)


def test_host_image_has_blocks_one_after_another() -> None:
    graph = layered_graph(SIZES)
    ring = prepare_ring(graph, plan_graph(graph), RingRequest(capacity=2048)).ring
    assert ring
    assert [later - before for before, later in pairwise(ring.host_offsets)] == list(SIZES[:-1])
    assert ring.model_bytes == sum(SIZES)
    assert ring.resident_bytes + sum(b.bytes for b in ring.blocks if not b.resident) == ring.model_bytes


def test_nothing_streams_with_room_for_all_blocks() -> None:
    graph = layered_graph(SIZES)
    ring = prepare_ring(graph, plan_graph(graph), RingRequest(capacity=sum(SIZES))).ring
    assert ring
    assert all(block.resident for block in ring.blocks)
    assert (ring.copies, ring.bytes_per_pass, ring.depth, ring.bytes) == ((), 0, 0, sum(SIZES))


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="unknown policy 'lucky'"):
        prepare_ring(layered_graph(SIZES), plan_graph(layered_graph(SIZES)), RingRequest(capacity=2048, policy="lucky"))


def test_graph_without_weights_is_refused() -> None:
    graph = layered_graph(SIZES)
    roles = tuple("state" if role == "parameter" else role for role in graph.buffers.role)
    state = replace(graph, buffers=replace(graph.buffers, role=roles))
    with pytest.raises(InvalidConfig, match="nothing to stream"):
        prepare_ring(state, plan_graph(state), RingRequest(capacity=2048))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_least_budget_is_named_and_is_the_least(policy: str, depth: int) -> None:
    problem = problem_of(layered_graph(SIZES, tied=256), plan_graph(layered_graph(SIZES, tied=256)), Profile())
    with pytest.raises(ArenaTooSmall) as refused:
        plan_ring(problem, RingRequest(capacity=1024, policy=policy, depth=depth))
    least = refused.value.fields["least"]
    if policy == "double" and depth == 2:
        assert least is None
        assert "another policy or depth" in refused.value.fix
        return
    assert isinstance(least, int)
    assert str(least) in refused.value.fix
    assert plan_ring(problem, RingRequest(capacity=least, policy=policy, depth=depth))
    with pytest.raises(ArenaTooSmall):
        plan_ring(problem, RingRequest(capacity=least - 1, policy=policy, depth=depth))


def test_layer_larger_than_the_ring_is_named() -> None:
    graph = layered_graph([512, 4096, 512])
    with pytest.raises(ArenaTooSmall, match=r"the largest layer, h\.1, has 4096 bytes") as refused:
        prepare_ring(graph, plan_graph(graph), RingRequest(capacity=4000))
    assert refused.value.fields["least"] == 4096


def test_layer_without_a_name_is_that_of_the_model_itself() -> None:
    problem = layer_problem([512, 4096, 512], [1] * 3, [1] * 3)
    unnamed = replace(problem, names=("",) * len(problem.names))
    with pytest.raises(ArenaTooSmall, match="the largest layer, that of the model itself, has 4096 bytes"):
        plan_ring(unnamed, RingRequest(capacity=4000))


def test_refusal_names_pinned_bytes_that_leave_no_room() -> None:
    graph = layered_graph([512] * 3, tied=4096)
    with pytest.raises(ArenaTooSmall, match=r"4096 bytes \(4\.0 KiB\) are read at several places and stay"):
        prepare_ring(graph, plan_graph(graph), RingRequest(capacity=4096))


def test_least_busy_budget_never_waits_for_room() -> None:
    problem = layer_problem([1] * 6, [3] * 6, [7] * 6)
    assert least_busy_capacity(problem, 0) == 2
    assert least_busy_capacity(problem, 2) == 3
    assert least_capacity(problem, "cyclic", 0) == 1
    candidate = POLICY["cyclic"](problem, 2, 0)
    assert candidate
    assert candidate.pass_time.limit == LINK


def test_70b_in_48_gb_keeps_the_link_busy_and_moves_what_does_not_fit() -> None:
    problem, budget = llama_70b(), 48 * GB
    ring = plan_ring(problem, RingRequest(capacity=budget, depth=2))
    figures = figures_of(problem, ring)
    pure = figures_of(problem, plan_ring(problem, RingRequest(capacity=budget, policy="skip_end")))
    assert ring.depth >= 2
    assert len(ring.copies) == len({copy.visit for copy in ring.copies}) == 58
    assert figures.limit == LINK
    assert figures.bytes_per_pass / 24 >= 0.99 * figures.pass_ns
    assert figures.utilization_ppm >= 990_000
    assert figures.bandwidth >= 1.4 * pure.bandwidth
    assert figures.overlap_ppm == 1_000_000


@pytest.mark.parametrize(("compute_ns", "limit"), [(2_000_000, LINK), (120_000_000, COMPUTE)])
def test_70b_is_limited_by_the_link_or_by_computing(compute_ns: int, limit: str) -> None:
    problem = llama_70b(compute_ns)
    assert figures_of(problem, plan_ring(problem, RingRequest(capacity=48 * GB, depth=2))).limit == limit


def test_figures_of_a_schedule_without_overlap() -> None:
    problem = layer_problem([10] * 4, [3] * 4, [7] * 4)
    figures = figures_of(problem, plan_ring(problem, RingRequest(capacity=10)))
    assert (figures.pass_ns, figures.limit) == (40, CAPACITY)
    assert (figures.overlap_ppm, figures.utilization_ppm, figures.bandwidth) == (0, 700_000, GB)


def test_figures_where_nothing_streams() -> None:
    problem = layer_problem([10] * 4, [3] * 4, [7] * 4)
    figures = figures_of(problem, plan_ring(problem, RingRequest(capacity=40)))
    assert (figures.pass_ns, figures.limit, figures.link_ns, figures.overlap_ppm) == (12, COMPUTE, 0, 1_000_000)


def test_simulated_passes_one_by_one() -> None:
    """Two slots: the first pass waits for its first copy, the second finds it prefetched."""
    problem = layer_problem([1] * 4, [3] * 4, [7] * 4)
    ring = plan_ring(problem, RingRequest(capacity=2, policy="double"))
    timings = simulate(problem, ring, 2)
    assert [(t.copy_start, t.copy_end, t.start, t.end) for t in timings[:5]] == [
        (0, 7, 7, 10),
        (7, 14, 14, 17),
        (14, 21, 21, 24),
        (21, 28, 28, 31),
        (28, 35, 35, 38),
    ]
    assert [timing.pass_index for timing in timings] == [0] * 4 + [1] * 4
    assert first_pass_ns(problem, ring) == 31


def test_first_pass_waits_for_readers_of_its_own() -> None:
    problem = layer_problem([1] * 3, [3] * 3, [7] * 3)
    ring = plan_ring(problem, RingRequest(capacity=1))
    assert [timing.copy_start for timing in simulate(problem, ring, 2)] == [0, 10, 20, 30, 40, 50]
    assert first_pass_ns(problem, ring) == 30


def test_double_buffers_are_both_of_the_largest_layer() -> None:
    problem = layer_problem([4, 2, 4, 2], [1] * 4, [1] * 4)
    assert POLICY["double"](problem, 7, 0) is None
    candidate = POLICY["double"](problem, 8, 0)
    assert candidate
    assert candidate.address == (0, 4, 0, 4)


def test_plan_bytes_are_equal_in_every_process() -> None:
    probe = (
        "from tests.layered import *; from tmmu.planner.ring.prepare import *; from tmmu.ir.plan import *;"
        "g = layered_graph((512, 1024, 512, 768, 512, 1024, 640, 896, 512, 1152), tied=256);"
        "print(encode_plan(prepare_ring(g, plan_graph(g), RingRequest(capacity=3072))).hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", probe], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    graph = layered_graph((512, 1024, 512, 768, 512, 1024, 640, 896, 512, 1152), tied=256)
    expected = encode_plan(prepare_ring(graph, plan_graph(graph), RingRequest(capacity=3072))).hex()
    assert outputs == {expected + "\n"}
