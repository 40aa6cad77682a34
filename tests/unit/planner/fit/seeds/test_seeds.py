"""Seeds of captured steps: what they drop and keep, and that a search may begin with them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.unit.judge.rewrite.programs import convolutions, deep_step, projected
from tests.unit.planner.fit.head_models import head_step
from tests.unit.planner.fit.random_steps import random_step
from tmmu.ir.graph import Graph
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit.orders import ORDERS, row_uses
from tmmu.planner.fit.search import Search
from tmmu.planner.fit.seeds.block_boundaries import _crossing, block_boundaries
from tmmu.planner.fit.seeds.min_cut import FEW_FLOPS, min_cut
from tmmu.planner.fit.seeds.seed import NOTHING, Seed
from tmmu.planner.fit.step_facts import step_facts
from tmmu.planner.fit.step_table import StepTable, step_table


def table_of(graph: Graph) -> StepTable:
    return step_table(step_facts(graph, default_arenas()))


def rows_again(table: StepTable, seed: Seed) -> list[int]:
    """The rows that run again from a seed."""
    search = Search(table=table)
    assert search.schedule(search.start(seed))
    return [int(row) for row in np.flatnonzero(np.asarray(search.now.reruns))]


def test_smallest_cut_runs_again_what_takes_few_flops() -> None:
    table = table_of(convolutions("sgd"))
    seed = min_cut(table)
    assert seed is not None
    again = [table.op[row] for row in rows_again(table, seed)]
    names = {table.graph.ops.target[op] for op in again}
    assert "aten.native_batch_norm.default" in names
    assert "aten.convolution.default" not in names
    written = [max(table.facts.size[cell] for cell in table.facts.write.row(op)) for op in again]
    flops = [table.graph.notes.ops.flops[op] for op in again]
    assert all(count <= FEW_FLOPS * size for count, size in zip(flops, written, strict=True))


STEPS: dict[str, Callable[[], Graph]] = {
    "norms": partial(convolutions, "sgd"),
    "deep": partial(deep_step, "sgd"),
    "beside": projected,
}
"""Captured by the test that wants one, and by none that is only collected."""


@pytest.mark.parametrize("name", STEPS)
def test_smallest_cut_runs_the_same_again_in_every_order(name: str) -> None:
    """What it keeps is there when something wants it, however long after its last use in the step that is."""
    base = STEPS[name]()
    facts = step_facts(base, default_arenas())
    orders = [(), *(order(row_uses(facts, tuple(base.ops.ids))) for _, order in ORDERS)]
    tables = [step_table(facts, order) for order in orders]
    again = [{table.op[row] for row in rows_again(table, min_cut(table) or NOTHING)} for table in tables]
    assert again[0]
    assert all(ops == again[0] for ops in again)


def test_smallest_cut_keeps_no_more_than_the_forward_pass_leaves() -> None:
    base = convolutions("sgd")
    table, plain = table_of(base), Search(table=table_of(base))
    seed = min_cut(table)
    assert seed is not None
    boundary = max(op for op in base.ops.ids if base.ops.stage[op] == "forward")
    assert plain.schedule(plain.start(NOTHING))
    search = Search(table=table)
    assert search.schedule(search.start(seed))
    first = next(k for k, row in enumerate(search.now.row) if row == boundary)
    assert int(search.now.profile[first + 1]) < int(plain.now.profile[boundary + 1])


def test_step_without_a_backward_pass_has_no_cut() -> None:
    seeds = [min_cut(table_of(random_step(seed))) for seed in range(0, 40, 6)]  # of inference
    assert seeds.count(None) == len(seeds)


def test_states_of_cuts_are_schedules_of_the_step() -> None:
    found = 0
    for number in range(1, 100, 2):
        graph = random_step(number)
        notes = replace(graph.notes, ops=replace(graph.notes.ops, flops=(0,) * len(graph.ops)))
        table = table_of(replace(graph, notes=notes))
        seed = min_cut(table)
        search = Search(table=table)
        if seed is not None and search.schedule(search.start(seed)):
            rows = [row for row, again in zip(search.now.row, search.now.again, strict=True) if not again]
            assert rows[: len(table.graph.ops)] == list(range(len(table.graph.ops)))
            found += 1
    assert found > 20


@pytest.mark.parametrize("name", ["norms", "deep"])
def test_boundaries_are_all_that_make_a_difference(name: str) -> None:
    table = table_of(STEPS[name]())
    crossing = Seed(available=tuple(_crossing(table)))
    assert crossing.available
    every, some = Search(table=table), Search(table=table)
    seed = block_boundaries(table) or NOTHING
    assert set(seed.available) <= set(crossing.available)
    assert [p.peak for p in every.shave(every.start(crossing))] == [p.peak for p in some.shave(some.start(seed))]


def test_buffer_that_nothing_may_want_after_its_last_use_is_no_boundary() -> None:
    """Of a step that saves all between its blocks itself."""
    table = table_of(head_step("tied"))
    assert block_boundaries(table) is None


def test_point_is_the_same_seed_in_every_order() -> None:
    facts = step_facts(convolutions("sgd"), default_arenas())
    first = tuple(range(len(facts.graph.ops)))
    orders = [order(row_uses(facts, first)) for _, order in ORDERS]
    assert len(set(orders)) > 1
    searches = [Search(table=step_table(facts, order)) for order in orders]
    point = [*searches[0].shave(searches[0].start(NOTHING))][-1]
    seed = searches[0].seed(point)
    for search in searches:
        assert search.schedule(search.start(seed))
        assert search.seed(search.point(search.start(seed))) == seed
