"""Random graphs executed in tagged bytes, and plans changed so that they mean something else: judge and run agree.

The run (``tests/tagged.py``) shares no code with the judge. Whatever it finds wrong, the judge must refuse; and what
the planner makes of any graph has no fault in either. The whole number is ``long``, a tenth of it ``slow``.
"""

import random
from collections.abc import Callable

import pytest

from tests.strategies import random_graph, seeded
from tests.tagged import TaggedRun
from tests.unit.ir.samples import TOKEN, edit
from tmmu.ir.graph import Graph
from tmmu.ir.plan import LAYOUTS, MODES, PRESETS, Plan
from tmmu.judge.check import check_plan
from tmmu.judge.execute import Execution
from tmmu.planner.arenas import default_arenas, parse_arenas
from tmmu.planner.prepare import prepare_memory


def random_plan(seed: int) -> tuple[Graph, Plan]:
    """A graph of a few ops up to thirty, and its plan in one of the modes, presets and layouts."""
    dice = random.Random(seed)
    graph = random_graph(seeded(seed), ops=dice.randrange(3, 30), joint=bool(seed % 2))
    layout = dice.choice(LAYOUTS)
    arenas = parse_arenas(
        [f"{name}=layout:{layout}" for name in ("activations", "gradients")], default_arenas(dice.choice((1, 64)))
    )
    plan = prepare_memory(graph, mode=dice.choice(MODES), preset=dice.choice(PRESETS), token=TOKEN, arenas=arenas)
    return graph, plan


@pytest.mark.parametrize(
    "attempts", [100, pytest.param(1000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.long)]
)
def test_plan_of_a_random_graph_runs_in_tagged_bytes(attempts: int) -> None:
    for seed in range(attempts):
        graph, plan = random_plan(seed)
        assert TaggedRun(graph, plan).fault == "", f"seed {seed}"


def moved(dice: random.Random, graph: Graph, plan: Plan) -> Plan:
    """One buffer at another offset: beside its own, or where another begins."""
    row = dice.randrange(len(plan.buffers))
    near = max(0, plan.buffers.offset[row] + dice.choice((-64, -8, -1, 1, 8, 64)))
    return edit(plan, "buffers.offset", dice.choice((near, dice.choice(plan.buffers.offset))), row)


def swapped(dice: random.Random, graph: Graph, plan: Plan) -> Plan:
    """Two buffers at each other's offsets."""
    first, second = dice.randrange(len(plan.buffers)), dice.randrange(len(plan.buffers))
    offset = plan.buffers.offset
    return edit(edit(plan, "buffers.offset", offset[second], first), "buffers.offset", offset[first], second)


def taken_over(dice: random.Random, graph: Graph, plan: Plan) -> Plan:
    """A buffer that takes over another, with its offset, or itself."""
    row, old = dice.randrange(len(plan.buffers)), dice.randrange(len(plan.buffers))
    changed = edit(plan, "buffers.takes_over", plan.buffers.id[dice.choice((old, row))], row)
    return edit(changed, "buffers.offset", plan.buffers.offset[old], row) if dice.randrange(2) else changed


def reordered(dice: random.Random, graph: Graph, plan: Plan) -> Plan:
    """Two ops exchanged, one left out, or one run twice."""
    order = list(plan.order)
    if not order:
        return plan
    first, second = dice.randrange(len(order)), dice.randrange(len(order))
    kind = dice.randrange(3)
    if kind == 0:
        order[first], order[second] = order[second], order[first]
    elif kind == 1:
        del order[first]
    else:
        order.insert(second, order[first])
    return edit(plan, "order", tuple(order))


def in_another_arena(dice: random.Random, graph: Graph, plan: Plan) -> Plan:
    row = dice.randrange(len(plan.buffers))
    return edit(plan, "buffers.arena", dice.randrange(len(plan.arenas)), row)


MUTATIONS: tuple[Callable[[random.Random, Graph, Plan], Plan], ...] = (
    moved, moved, swapped, taken_over, reordered, in_another_arena,
)  # fmt: skip


@pytest.mark.parametrize(
    "attempts", [200, pytest.param(2000, marks=pytest.mark.slow), pytest.param(20_000, marks=pytest.mark.long)]
)
def test_judge_refuses_whatever_a_run_finds_wrong(attempts: int) -> None:
    unsound = 0
    for seed in range(attempts):
        graph, plan = random_plan(seed // 20)
        dice = random.Random(f"mutation {seed}")
        changed = plan
        for _ in range(dice.randrange(1, 3)):
            changed = dice.choice(MUTATIONS)(dice, graph, changed)
        fault = TaggedRun(graph, changed).fault
        unsound += bool(fault)
        if fault:
            rules = {found.rule for found in check_plan(graph, changed, token=TOKEN)}
            assert rules, f"seed {seed}: {fault}"
            # Which ops run, each once, is another rule's: the abstract run takes that for granted.
            assert "order" in rules or next(Execution(graph, changed).run(), None), f"seed {seed}: {fault}"
    assert unsound > attempts // 10
