"""What a hostile plan says of its base is refused with a code, or makes a graph that means the base."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import cbor2
import pytest

from tests.fits import TOKEN, early_updates_and_reruns, fit_plan, unchanged, with_row
from tests.fuzz.test_ring import sign
from tests.unit.judge.rewrite.programs import step
from tmmu.codec.fitted import fit_of, judge_fitted
from tmmu.codec.read import read_plan
from tmmu.errors import PlanCorrupt, PlanError
from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.ir.plan import Plan, encode_plan
from tmmu.ir.rebuild import rebuild_graph
from tmmu.judge.rewrite.check import require_rows
from tmmu.judge.rules import check_graph

NUMBERS = (0, 1, 2, 3, 4, 7, 20, 255, 2**16, 2**32, 2**63, 2**64 - 1)


@cache
def sound() -> tuple[Graph, bytes]:
    base = step("adamw:foreach")
    rewrite = early_updates_and_reruns(base, {"gelu.default": "gelu_backward.default"})
    return base, encode_plan(fit_plan(base, rewrite))


def scramble(fit: dict[str, Any], pick: random.Random) -> dict[str, Any]:
    """One cell of a column changed, dropped, repeated or exchanged with another."""
    key = pick.choice(("origin", "kind", "part"))
    column = [list(cell) if isinstance(cell, list) else cell for cell in fit[key]]
    index, other = pick.randrange(len(column)), pick.randrange(len(column))
    act = pick.randrange(5)
    if act == 0:
        del column[index]
    elif act == 1:
        column.insert(index, column[other])
    elif act == 2:
        column[index], column[other] = column[other], column[index]
    elif isinstance(column[index], list):
        column[index][pick.randrange(2)] = pick.choice(NUMBERS)
    else:
        column[index] = pick.choice((*NUMBERS, column[other]))
    return {**fit, key: column}


def rerun_inserted(fit: dict[str, Any], pick: random.Random) -> dict[str, Any]:
    """A row more in both columns: any op again, or without its effects."""
    row, origin = pick.randrange(len(fit["origin"])), pick.choice(fit["origin"])
    return {
        **fit,
        "origin": [*fit["origin"][:row], origin, *fit["origin"][row:]],
        "kind": [*fit["kind"][:row], pick.choice((0, 1, 1, 2)), *fit["kind"][row:]],
    }


def verdict(base: Graph, plan: Plan) -> str:
    try:
        assert judge_fitted(base, plan, token=TOKEN).ir_hash == plan.ir_hash
    except PlanError as error:
        return error.code
    return "sound"


def forged(base: Graph, plan: Plan) -> Plan:
    """The plan under the hash of whatever its rows make, where they make something."""
    try:
        require_rows(base, fit_of(plan).rewrite)
    except PlanError:
        return plan
    return replace(plan, ir_hash=rebuild_graph(base, fit_of(plan).rewrite).ir_hash)


@pytest.mark.parametrize("attempts", [80, pytest.param(250, marks=pytest.mark.slow)])
def test_scrambled_rewrite_is_refused_with_a_code(attempts: int) -> None:
    pick, outcomes = random.Random(2), Counter[str]()
    base, data = sound()
    top = cbor2.loads(data)
    for attempt in range(attempts):
        fit = rerun_inserted(top["fit"], pick) if pick.randrange(4) == 0 else top["fit"]
        for _ in range(pick.randrange(1, 3)):
            fit = scramble(fit, pick)
        try:
            plan = read_plan(sign({**top, "fit": fit}))
        except PlanCorrupt:
            outcomes["PLAN_CORRUPT"] += 1
        else:
            outcomes[verdict(base, forged(base, plan) if attempt % 2 else plan)] += 1
    assert set(outcomes) <= {"PLAN_CORRUPT", "PLAN_UNSOUND", "REWRITE_UNSOUND", "sound"}
    assert min(outcomes[code] for code in ("PLAN_CORRUPT", "PLAN_UNSOUND", "REWRITE_UNSOUND")) > attempts / 12


def test_graph_of_a_scrambled_rewrite_is_held_against_its_base() -> None:
    """Where the plan is sound for whatever its rows make, the second judge alone is left."""
    pick, outcomes = random.Random(3), Counter[str]()
    base = step("draws")
    for _ in range(60):
        rewrite = unchanged(base)
        for _ in range(pick.randrange(1, 4)):
            rewrite = with_row(rewrite, pick.randrange(len(rewrite) + 1), OpId(pick.randrange(len(base.ops))))
        graph = rebuild_graph(base, rewrite)
        if not check_graph(graph):
            outcomes[verdict(base, fit_plan(base, rewrite, mode="inference"))] += 1
    assert set(outcomes) == {"REWRITE_UNSOUND", "sound"}
