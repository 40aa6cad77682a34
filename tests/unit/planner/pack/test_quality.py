"""Quality and scale: transformers pack to the bound; work and memory of planning grow as the ops do."""

import sys
import tracemalloc
from typing import Final

import pytest

from tests.problems import Widths, decoder, long_graph, random_problem
from tests.work import calls_of
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.planner.arenas import default_arenas
from tmmu.planner.layout import place_packed
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

WIDTHS = [
    Widths(),
    Widths(rows=1, vocab=128256),
    Widths(rows=512, hidden=768, inner=3072, kv=768, vocab=50257),
    Widths(rows=4096, hidden=1536, inner=8960, kv=256, vocab=151936),
    Widths(rows=333, hidden=2048, inner=5461, kv=512, vocab=1000),
]


def plan_of(graph: Graph, mode: str, preset: str) -> Plan:
    return prepare_memory(graph, mode=mode, preset=preset, token=token_from_seed(0), arenas=default_arenas())


def test_transformers_pack_to_the_bound() -> None:
    exact = total = 0
    for layers in (1, 2, 6, 12):
        for widths in WIDTHS:
            for train, preset in (
                (False, "inference"),
                (False, "train_full"),
                (True, "inference"),
                (True, "train_full"),
            ):
                plan = plan_of(decoder(layers, train=train, widths=widths), "backward", preset)
                peak, bound = plan.metrics["peak_bytes.stack"], plan.metrics["bound_bytes.stack"]
                assert peak * 100 <= bound * 101
                total += 1
                exact += peak == bound
    assert exact * 5 >= total * 4


SLOW_SIZE: Final = pytest.param(4000, 50, 80_000, marks=pytest.mark.slow)


@pytest.mark.parametrize(("items", "live", "ppm"), [(50, 5, 80_000), (500, 10, 50_000), SLOW_SIZE])
def test_random_problems_stay_near_the_bound(items: int, live: int, ppm: int) -> None:
    for seed in range(3):
        placement = place_packed(random_problem(items, live, seed))
        assert (placement.peak - placement.bound) * 10**6 <= ppm * placement.bound


def test_packing_is_smaller_than_the_slots_layout() -> None:
    plan = plan_of(decoder(4, train=True), "backward", "train_full")
    backed = sum(n for a, n in zip(plan.slots.arena, plan.slots.bytes, strict=True) if a == 2)
    assert backed > plan.arenas.peak[2] * 11 // 10


def test_calls_of_planning_are_linear_in_the_ops() -> None:
    few, many = (long_graph(ops) for ops in (1_000, 4_000))
    assert calls_of(lambda: plan_of(many, "inference", "inference")) < 4.5 * calls_of(
        lambda: plan_of(few, "inference", "inference")
    )


@pytest.mark.long
def test_quarter_million_buffers_are_planned_in_linear_memory() -> None:
    used = []
    for ops in (62_500, 250_000):
        graph = long_graph(ops)
        tracemalloc.start()
        plan = plan_of(graph, "inference", "inference")
        used.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(plan.buffers) == ops
        assert plan.metrics["peak_logical_slots"] == plan.metrics["max_live"]
        assert sys.getsizeof(plan.buffers.offset) <= 16 * ops
    assert used[1] < 4.5 * used[0]
