"""Numbers in: whatever a well-typed plan says, the judge answers with faults and nothing else. About a second each."""

import random

import pytest

from tests.strategies import random_graph, seeded
from tests.unit.ir.samples import TOKEN, arenas, edit, graph, plan
from tmmu.ir.plan import MODES, PRESETS, Plan
from tmmu.judge.check import check_plan
from tmmu.planner.prepare import prepare_memory

CHOSEN = {"arenas.page", "arenas.capacity", "arenas.proven", "buffers.offset"}
"""What a plan may say otherwise and still be sound: a caller's wish, a modest claim, another place that is free."""


FORM = {"arenas.slots", "slots.arena", "slots.slot", "buffers.id", "buffers.arena", "buffers.slot"}
"""Change one of these, and the judge looks no further."""


def columns(base: Plan) -> list[str]:
    tables = {"arenas": base.arenas, "slots": base.slots, "buffers": base.buffers}
    return [f"{name}.{column}" for name, table in tables.items() for column in type(table).__slots__]


def cells(base: Plan, path: str) -> tuple[object, ...]:
    table, column = path.split(".")
    return getattr(getattr(base, table), column)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["joint", "packed", "slots"])
def test_every_cell_of_a_plan_is_checked(mode: str, layout: str) -> None:
    """A number one off, a word or mark replaced, anywhere in a plan's tables, is a fault."""
    base = plan(mode, "inference", layout)
    for path in columns(base):
        for index, cell in enumerate(cells(base, path)):
            changed_cell = cell + 1 if type(cell) is int else cell + "s" if isinstance(cell, str) else not cell
            if path not in CHOSEN:
                assert check_plan(graph(), edit(base, path, changed_cell, index), token=TOKEN), f"{path}[{index}]"
    for name in base.metrics:
        changed = {**base.metrics, name: base.metrics[name] + 1}
        assert check_plan(graph(), edit(base, "metrics", changed), token=TOKEN), name


@pytest.mark.parametrize("seed", range(8))
def test_judge_answers_any_numbers_with_faults(seed: int) -> None:
    dice = random.Random(seed)
    made_graph = random_graph(seeded(seed), ops=10, joint=bool(seed % 2))
    mode, preset = dice.choice(MODES), dice.choice(PRESETS)
    good = prepare_memory(made_graph, mode=mode, preset=preset, token=TOKEN, arenas=arenas("joint"))
    paths = [path for path in columns(good) if cells(good, path) and type(cells(good, path)[0]) is int]
    deep = [path for path in paths if path not in FORM]
    reached = 0
    for _ in range(300):
        base = good
        for _ in range(dice.randrange(1, 5)):
            path = dice.choice(deep if dice.randrange(8) else paths)
            column = cells(base, path)
            ids = good.buffers.id if path == "buffers.takes_over" else (0, 1, 7, 64, 2**63, 2**64 - 1)
            base = edit(base, path, dice.choice((*ids, dice.choice(column))), dice.randrange(len(column)))
        if dice.randrange(3) == 0:
            order = [dice.randrange(len(made_graph.ops)) for _ in range(dice.randrange(12))]
            base = edit(base, "order", tuple(order))
        faults = check_plan(made_graph, base, token=TOKEN)
        reached += not faults or faults[0].rule not in ("columns", "words", "arenas", "cells", "ids")
    assert reached > 100
