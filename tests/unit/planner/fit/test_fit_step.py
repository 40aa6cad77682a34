"""Fitted steps: within the limit, sound for both judges, as large as predicted; of captured steps, the bits."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.runtime.harness import TOKEN, same_bits
from tests.tagged import TaggedRun
from tests.unit.judge.rewrite.programs import convolutions, deep_step, step
from tests.unit.judge.rewrite.test_runs import run
from tests.unit.planner.fit.random_steps import meaning_fault, random_step
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.ir.rewrite import RERUN, TWIN
from tmmu.planner.arenas import default_arenas, parse_arenas
from tmmu.planner.fit import fit_step as module
from tmmu.planner.fit.between.points_between import fine_points
from tmmu.planner.fit.curve import CurvePoint, StepCurve, step_curve
from tmmu.planner.fit.fit_step import (
    NODES,
    FittedStep,
    PlanSettings,
    fit_point,
    fit_step,
    fit_within,
    judge_step,
    plan_point,
)
from tmmu.planner.fit.floor import stack_floor
from tmmu.planner.fit.forms import LEVERS, PARTS
from tmmu.planner.fit.step_facts import step_facts
from tmmu.planner.fit.step_table import step_table
from tmmu.planner.prepare import prepare_memory

ALL = [name for name, _ in LEVERS]
WHOLE = [name for name in ALL if name != PARTS]
"""What random calls mean in parts nobody knows."""
ARENAS = default_arenas()
TELLING = (163, 211, 231, 671)
"""Steps that tell a gap between the writes of one buffer, a mask that is changed after it was drawn, an output that
its last op may not overwrite, and a point that takes fewer bytes once what it drops in vain is kept.
"""
SETTINGS = PlanSettings(preset="train_full", token=TOKEN)


def curve_of(graph: Graph, levers: list[str] = ALL) -> StepCurve:
    return step_curve(graph, ARENAS, levers)


def live_bytes(plan: Plan) -> int:
    """The bound of the stack: the bytes that are live at its fullest position."""
    return int(plan.metrics["bound_bytes.stack"])


SHARDS = [pytest.param(range(first, first + 100), marks=pytest.mark.long) for first in range(0, 10_000, 100)]


@pytest.mark.parametrize(
    "seeds", [(*range(60), *TELLING), pytest.param(range(60, 160), marks=pytest.mark.slow), *SHARDS]
)
def test_points_of_random_steps_are_sound_and_mean_the_step(seeds: Sequence[int]) -> None:
    again = twins = 0
    for seed in seeds:
        base = random_step(seed)
        curve = curve_of(base, WHOLE)
        floor = stack_floor(step_facts(base, ARENAS)).bytes
        for point, below in some_points(curve):
            fitted = judge_step(curve, plan_point(curve, point, below, SETTINGS), SETTINGS)
            assert meaning_fault(base, fitted.graph, fitted.rewrite) == "", f"seed {seed}"
            assert TaggedRun(fitted.graph, fitted.plan).fault == "", f"seed {seed}"
            assert floor <= live_bytes(fitted.plan) == fitted.live <= point.peak, f"seed {seed}"
            assert fitted.live == point.peak or fitted.time < point.time, f"seed {seed}: nothing was kept again"
            again += fitted.reruns
            twins += fitted.rewrite.kind.count(TWIN)
    assert again > len(seeds)
    assert twins > len(seeds) // 12


def some_points(curve: StepCurve) -> Iterator[tuple[CurvePoint, int]]:
    """The first, the middle and the last, and one between two of the curve; each with the bytes of the next one."""
    points = list(fine_points(curve, lambda _: False))
    between = [place for place, point in enumerate(points) if point not in curve.points]
    for place in {0, len(points) // 2, len(points) - 1, *between[:1]}:
        yield points[place], points[place + 1].peak if place + 1 < len(points) else 0


@pytest.mark.parametrize("name", ["adamw:foreach", "adamw:fused", "sgd"])
def test_step_at_its_least_has_the_bits_of_the_step(name: str) -> None:
    base = convolutions(name)
    curve = curve_of(base)
    fitted = judge_step(curve, fit_point(curve, len(curve.points) - 1, SETTINGS), SETTINGS)
    kinds = zip(fitted.graph.ops.target, fitted.rewrite.kind, strict=True)
    twins = {target for target, kind in kinds if kind == TWIN}
    assert RERUN in fitted.rewrite.kind
    assert twins == {"aten.native_batch_norm.default", "aten.native_dropout_backward.default"}
    assert live_bytes(fitted.plan) == fitted.live
    expected, found = run(base), run(fitted.graph)
    assert len(expected) == len(found) > 20
    assert all(map(same_bits, expected, found))


def test_mask_that_a_dropout_drew_is_kept_while_its_result_may_be_made_again() -> None:
    base = convolutions("sgd")
    table = step_table(step_facts(base, ARENAS))
    group_of = dict(zip(table.facts.buffers, map(int, table.cells.group_of), strict=True))
    assert base.calls is not None
    rows = [op for op in base.ops.ids if base.ops.target[op] == "aten.native_dropout.default"]
    assert len(rows) == 2
    for row in rows:
        _, result, mask = (base.values.buffer[value] for value in base.calls.operands[row])
        assert group_of[result] >= 0 > group_of[mask]


def test_less_room_never_takes_more_bytes_or_less_time() -> None:
    curve = curve_of(deep_step("adamw:foreach"))
    top, bottom = curve.points[0].peak, curve.points[-1].peak
    limits = range(top, bottom - 1, -max(1, (top - bottom) // 40))
    fitted = [fit_step(curve, limit, SETTINGS) for limit in limits]
    steps = [each for each in fitted if each is not None]
    assert len(steps) >= 20
    assert all(each.stack_bytes <= limit for each, limit in zip(steps, limits, strict=False))
    assert all(later.stack_bytes <= earlier.stack_bytes for earlier, later in pairwise(steps))
    assert all(later.time >= earlier.time for earlier, later in pairwise(steps))


def test_nothing_fits_below_the_least() -> None:
    curve = curve_of(deep_step("adamw:foreach"))
    assert fit_step(curve, curve.points[-1].peak - 1, SETTINGS) is None


def test_levers_are_left_alone_where_they_are_not_named() -> None:
    base = deep_step("adamw:foreach")
    plain = curve_of(base, [])
    assert len(plain.points) == 1
    assert plain.frames[0].rewrite.origin == tuple(base.ops.ids)
    assert curve_of(base, ["updates"]).points[-1].peak < plain.points[0].peak
    without = curve_of(base, ["recompute"])
    assert all(set(frame.rewrite.kind) == {"same"} for frame in without.frames)
    fitted = fit_point(without, len(without.points) - 1, SETTINGS)
    assert fitted.plan.preset == "train_full"


def test_curve_is_one_and_the_same() -> None:
    base = step("adamw:foreach")
    assert curve_of(base).points == curve_of(base).points


@pytest.mark.slow
def test_curve_is_the_same_without_compiled_code() -> None:
    code = (
        "from tests.unit.planner.fit.test_fit_step import curve_of, random_step; from blake3 import blake3; "
        "print(blake3(repr([curve_of(random_step(seed)).points for seed in range(40)]).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | extra, check=True, capture_output=True, text=True
        ).stdout
        for extra in ({}, {"NUMBA_DISABLE_JIT": "1"}, {"PYTHONHASHSEED": "7"})
    }
    assert len(digests) == 1


def test_point_that_packs_badly_gives_way_to_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points whose live bytes are alike are not planned again, nor those that cannot be better."""
    curve = curve_of(deep_step("adamw:foreach"))
    real, least = module.plan_point, len(curve.points) - 1
    before = next(p for p in reversed(range(least)) if curve.points[p].peak * 1000 > curve.points[least].peak * 1001)
    planned: list[int] = []

    def badly_packed(curve: StepCurve, point: CurvePoint, below: int, settings: PlanSettings) -> FittedStep:
        planned.append(curve.points.index(point))
        fitted = real(curve, point, below, settings)
        is_least = point == curve.points[least]
        return replace(fitted, live=curve.points[before].peak * 1000 // 1001 - 1) if is_least else fitted

    monkeypatch.setattr(module, "plan_point", badly_packed)
    monkeypatch.setattr(FittedStep, "stack_bytes", property(lambda step: bytes_of(curve, step, before)))
    fitted = fit_within(curve, curve.points[least].time, SETTINGS)
    assert fitted is not None
    assert fitted.time == curve.points[before].time
    assert planned == [least, before]


def bytes_of(curve: StepCurve, step: FittedStep, before: int) -> int:
    """Of the plan, or more than point ``before`` takes where the step is the least."""
    return step.live if step.time < curve.points[-1].time else curve.points[before].peak + 1


def test_plans_that_miss_what_is_live_are_searched_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = curve_of(deep_step("adamw:foreach"))
    nodes: list[int] = []

    def counted(graph: Graph, **options: Any) -> Plan:
        nodes.append(options["search_nodes"])
        return prepare_memory(graph, **options)

    monkeypatch.setattr("tmmu.planner.fit.fit_step.prepare_memory", counted)
    fit_point(curve, 0, SETTINGS)
    fit_point(curve, 0, replace(SETTINGS, search_nodes=2 * NODES))
    assert nodes == [NODES, 2 * NODES]


def test_plan_that_misses_much_of_what_is_live_is_searched_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arenas apart do not pack what is live: a plan that joins them stands for what a longer search finds."""
    apart = parse_arenas(["gradients=layout:packed", "activations=layout:packed"])
    step = deep_step("adamw:foreach")
    curve, joint = (step_curve(step, arenas, ALL) for arenas in (apart, ARENAS))
    plan_of_step, nodes = module.plan_of_step, list[int]()

    def counted(curve: StepCurve, graph: Graph, settings: PlanSettings) -> Plan:
        nodes.append(settings.search_nodes)
        return plan_of_step(joint if settings.search_nodes else curve, graph, settings)

    monkeypatch.setattr(module, "plan_of_step", counted)
    least = curve.points[-1].time
    fitted = fit_within(curve, least, SETTINGS)
    assert fitted is not None
    assert nodes.pop() == module.MORE_NODES
    assert not any(nodes)
    assert fitted.stack_bytes * module.PPM <= fitted.live * module.TIGHT
    assert fitted.plan.fit is not None
    fit_within(joint, joint.points[-1].time, SETTINGS)
    assert not any(nodes), "it is tight"
    monkeypatch.setattr(module, "NODE_ITEMS", 10)
    fit_within(curve, least, SETTINGS)
    assert not any(nodes), "it is too large"
