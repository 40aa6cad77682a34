"""Largest sizes: against plans of every size, in three traces where shapes are polynomials, and by traces elsewhere."""

from dataclasses import replace

import pytest

from tests.runtime.harness import TOKEN
from tests.unit.planner.fit.head_models import head_step
from tests.unit.planner.sizes.sized_models import Attention, Branch, Fixed, Layers, Limited, Normed, Padded, step_of
from tmmu.errors import BudgetTooSmall
from tmmu.ir.graph import Graph
from tmmu.ir.plan import ArenaSpec, Plan
from tmmu.judge.check import judge
from tmmu.judge.rewrite.check import require_meaning
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit.fit_step import PlanSettings
from tmmu.planner.fit.forms import LEVER_NAMES
from tmmu.planner.sizes.largest import MOST
from tmmu.planner.sizes.max_size import MaxSizes, SizeRequest, _WithLevers, max_sizes

LIMIT = 160_000
ARENAS = default_arenas()


def largest(
    name: type,
    *,
    limit: int = LIMIT,
    levers: bool = False,
    whole: bool = False,
    starts: tuple[int, ...] = (2, 3),
    arenas: tuple[ArenaSpec, ...] = ARENAS,
) -> MaxSizes:
    def trace(size: int) -> tuple[Graph, Plan]:
        made = step_of(name, size)
        return made.graph, made.plan

    request = SizeRequest(
        starts=starts,
        limit=limit,
        is_whole=whole,
        mode="backward",
        arenas=arenas,
        settings=PlanSettings(preset="train_full", token=TOKEN),
        unit=8 if name is Padded and starts[0] % 8 == 0 else 1,
        levers=LEVER_NAMES if levers else None,
    )
    return max_sizes(trace, request)


@pytest.mark.parametrize(
    ("name", "starts", "traces"),
    [(Layers, (2, 3), 3), (Layers, (30, 31), 3), (Attention, (2, 3), 5), (Attention, (2, 3, 4), 4)],
)
def test_polynomials_take_a_trace_more_than_their_degree(name: type, starts: tuple[int, ...], traces: int) -> None:
    found = largest(name, starts=starts)
    form = found.as_it_is
    assert form is not None
    assert form.is_predicted
    assert len(found.traces) <= traces
    assert form.needed == step_of(name, form.size).stack <= LIMIT < step_of(name, form.size + 1).stack


def test_all_of_the_device_counts_weights_and_inputs() -> None:
    found = largest(Layers, limit=240_000, whole=True).as_it_is
    assert found is not None
    assert found.needed == step_of(Layers, found.size).total <= 240_000 < step_of(Layers, found.size + 1).total


@pytest.mark.parametrize("name", [Padded, Branch, Limited])
def test_other_shapes_are_searched_in_traces(name: type) -> None:
    found = largest(name).as_it_is
    assert found is not None
    assert not found.is_predicted
    assert found.needed == step_of(name, found.size).stack <= LIMIT
    if name is Limited:
        assert found.size == 40
        assert "at most 40 rows" in found.refusal
    else:
        assert step_of(name, found.size + 1).stack > LIMIT


def test_padded_shapes_are_predicted_at_multiples() -> None:
    found = largest(Padded, limit=LIMIT - 12_000, starts=(24, 16, 8))
    form = found.as_it_is
    assert form is not None
    assert form.unit in (1, 8)
    assert form.size % 8 == 0
    assert form.is_predicted
    assert step_of(Padded, form.size).stack <= LIMIT - 12_000 < step_of(Padded, form.size + 8).stack


def test_levers_reach_further_and_are_judged() -> None:
    found = largest(Layers, levers=True)
    plain, form = found.as_it_is, found.fitted
    assert plain is not None
    assert form is not None
    assert form.fitted is not None
    assert form.size > plain.size
    assert len(found.traces) <= 4
    assert form.is_predicted
    assert form.needed == form.fitted.stack_bytes <= LIMIT
    require_meaning(form.graph, form.fitted.graph, form.fitted.rewrite)
    judge(form.fitted.graph, form.fitted.plan, token=TOKEN)


def test_arena_s_capacity_is_a_limit_too() -> None:
    capacity = 60_000
    specs = tuple(replace(spec, capacity=capacity * (spec.name == "activations")) for spec in ARENAS)
    found = largest(Layers, levers=True, arenas=specs).fitted
    assert found is not None
    assert found.fitted is not None
    arenas = found.fitted.plan.arenas
    assert capacity // 2 < arenas.peak[arenas.name.index("activations")] <= capacity


def test_where_1_does_not_fit_the_least_is_said() -> None:
    with pytest.raises(BudgetTooSmall, match="not even 1 fits") as error:
        largest(Layers, limit=100)
    assert error.value.fields["least_bytes"] == step_of(Layers, 1).stack


def test_where_the_model_refuses_1_the_least_that_it_takes_is_said() -> None:
    with pytest.raises(BudgetTooSmall, match=r"not even 2 fits in 100 B: it takes .*; the model refuses 1: ") as error:
        largest(Normed, limit=100)
    assert error.value.fields["least_bytes"] == step_of(Normed, 2).stack


def test_1_is_tried_by_a_trace() -> None:
    found = largest(Layers, limit=step_of(Layers, 2).stack - 1).as_it_is
    assert found is not None
    assert found.size == 1


def test_step_that_does_not_grow_ends_at_the_most() -> None:
    found = largest(Fixed)
    assert found.as_it_is is not None
    assert found.as_it_is.size == MOST
    assert len(found.traces) == 3


def test_model_that_takes_no_more_than_was_traced_is_asked_once_more() -> None:
    found = largest(Limited, starts=(40, 39))
    assert found.as_it_is is not None
    assert found.as_it_is.size == 40
    assert found.traces == (40, 39)


def test_what_is_only_near_is_looked_at_where_it_is_allowed() -> None:
    graph = head_step("tied")
    exact = SizeRequest(
        starts=(2, 3),
        limit=1,
        is_whole=False,
        mode="backward",
        arenas=default_arenas(),
        settings=PlanSettings(preset="train_full", token=TOKEN),
        levers=LEVER_NAMES,
    )
    needs = [_WithLevers(replace(exact, near=near), LEVER_NAMES).count_bytes(graph) for near in (False, True)]
    assert needs[1] < needs[0]
