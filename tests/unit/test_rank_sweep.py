"""Layouts that differ in their batch alone: three are traced, and the others are rows of judged plans all the same."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.planner.sizes.sized_models import Branch, Layers, Padded, step_of
from tmmu.driver import Compiled, PlanRequest, compile_graph
from tmmu.errors import ArenaTooSmall, InternalError, InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.passes.capture.program import RankKinds, Traffic
from tmmu.planner.arenas import parse_arenas
from tmmu.planner.token import token_from_seed
from tmmu.rank_plans import RankKind, RankPlans, compile_ranks
from tmmu.rank_sweep import FittedRank, Layout, LayoutAxes, LayoutRow, RefusedLayout, layouts_of, sweep

WORLD = 4
REQUEST = PlanRequest(mode="backward", preset="train_full", token=token_from_seed(0), arenas=parse_arenas(()))


def linear(batch: int) -> int:
    """Bytes that a rank sends."""
    return 1000 + 24 * batch


class Planner:
    """Traces of a step of ``batch`` rows, and plans of graphs; ``traced`` are the layouts in order."""

    def __init__(
        self,
        model: type = Layers,
        *,
        kinds: int = 1,
        sent: Callable[[int], int] = linear,
        refused: tuple[int, ...] = (),
        plans: Callable[[Graph], Compiled] = lambda graph: compile_graph(graph, REQUEST),
        fits: bool = False,
    ) -> None:
        self.fits = fits
        self.model, self.kinds, self.sent, self.refused, self.plans = model, kinds, sent, refused, plans
        self.traced: list[Layout] = []

    def compile_layout(self, layout: Layout) -> RankPlans:
        """Each rank is of a kind by its number."""
        self.traced.append(layout)
        if layout.batch in self.refused:
            raise InvalidConfig(f"no batch of {layout.batch}", fix="take another")
        kind_of = tuple(rank % self.kinds for rank in range(WORLD))
        traced = replace(
            compile_graph(step_of(self.model, layout.batch).graph, REQUEST),
            rank_kinds=RankKinds(kind_of),
            traffic=Traffic(calls=3, bytes=self.sent(layout.batch)),
        )
        return compile_ranks(WORLD, lambda _: traced)

    def plan_graph(self, graph: Graph) -> Compiled:
        """A judged plan."""
        return self.plans(graph)

    def fit_rank(self, kind: RankKind, compiled: Compiled, others: int) -> FittedRank | None:
        """A step in half of its bytes, where a device has no more."""
        return FittedRank(planned=kind.planned // 2, reruns=1, extra_flops=others) if self.fits else None


def rows_of(planner: Planner, batches: tuple[int, ...], *, checkpoint: tuple[bool, ...] = (False,)) -> list[LayoutRow]:
    """The rows of these layouts, none refused, in their order."""
    layouts = layouts_of(WORLD, LayoutAxes(tp=[2], batch=batches, checkpoint=checkpoint))
    rows = [*sweep(layouts, planner)]
    assert [row.layout for row in rows] == list(layouts)
    found = [row for row in rows if isinstance(row, LayoutRow)]
    assert len(found) == len(rows)
    return found


def as_traced(planner: Planner, layout: Layout) -> LayoutRow:
    """The row of a layout that is planned alone."""
    alone = Planner(planner.model, kinds=planner.kinds, sent=planner.sent)
    (row,) = sweep([layout], alone)
    assert isinstance(row, LayoutRow)
    assert not row.follows_from
    return row


def test_of_layouts_on_a_line_three_are_traced_and_all_rows_are_those_of_traces() -> None:
    planner = Planner()
    rows = rows_of(planner, (12, 2, 3, 5, 7, 9), checkpoint=(False, True))
    assert [row.follows_from for row in rows[::2]] == [(), (), (2, 5, 12), (), (2, 5, 12), (2, 5, 12)]
    assert len(planner.traced) == len(set(planner.traced)) == 6, "three of each group"
    for row in rows:
        assert replace(row, follows_from=()) == as_traced(planner, row.layout)


@pytest.mark.parametrize(
    "planner",
    [
        Planner(Padded),
        Planner(kinds=2),
        Planner(sent=lambda batch: linear(batch) + (batch == 5)),
        Planner(sent=lambda batch: batch // 2),
    ],
    ids=["numbers on no line", "ranks of two kinds", "traffic on no line", "traffic in halves"],
)
def test_what_is_on_no_line_is_traced(planner: Planner) -> None:
    rows = rows_of(planner, (2, 5, 7, 12))
    assert not any(row.follows_from for row in rows)
    assert len(planner.traced) == 4


def test_a_least_batch_that_is_another_step_is_traced_beside_the_line() -> None:
    planner = Planner(Branch)
    rows = rows_of(planner, (4, 51, 54, 60, 70))
    assert [row.layout.batch for row in rows if row.follows_from] == [60]
    assert len(planner.traced) == 4


def test_a_refused_batch_is_a_row_and_no_end_of_a_line() -> None:
    layouts = layouts_of(WORLD, LayoutAxes(tp=[2], batch=(2, 3, 5, 7, 12), checkpoint=[False]))
    planner = Planner(refused=(2,))
    rows = [*sweep(layouts, planner)]
    assert [isinstance(row, RefusedLayout) for row in rows] == [True, False, False, False, False]
    assert len(planner.traced) == 4
    assert isinstance(rows[3], LayoutRow)
    assert rows[3].follows_from == (3, 5, 12)


def test_where_a_graph_off_a_line_has_no_plan_a_trace_says_why() -> None:
    def refuse(graph: Graph) -> Compiled:
        raise ArenaTooSmall("an arena is full", fix="give more")

    planner = Planner(plans=refuse)
    rows = rows_of(planner, (2, 3, 5, 7, 12))
    assert not any(row.follows_from for row in rows)
    assert len(planner.traced) == 5


def test_a_fault_of_ours_is_no_row() -> None:
    def fail(graph: Graph) -> Compiled:
        raise InternalError("a fault")

    layouts = layouts_of(WORLD, LayoutAxes(tp=[2], batch=(2, 3, 5, 7, 12), checkpoint=[False]))
    with pytest.raises(InternalError):
        list(sweep(layouts, Planner(plans=fail)))


def test_layouts_have_as_many_ranks_as_there_are_and_whole_experts() -> None:
    axes = LayoutAxes(tp=[1, 2], batch=[1], checkpoint=[False], pp=[1, 2, 4], microbatches=[None, 8], ep=[1, 2])
    rows = [(row.tp, row.fsdp, row.pp, row.ep, row.microbatches) for row in layouts_of(WORLD, axes)]
    one_rank_of_columns = [
        (1, 4, 1, 1, None), (1, 4, 1, 2, None),
        (1, 2, 2, 1, 2), (1, 2, 2, 1, 8), (1, 2, 2, 2, 2), (1, 2, 2, 2, 8),
        (1, 1, 4, 1, 4), (1, 1, 4, 1, 8),
    ]  # fmt: skip
    two_ranks_of_columns = [
        (2, 2, 1, 1, None), (2, 2, 1, 2, None), (2, 1, 2, 1, 2), (2, 1, 2, 1, 8), (2, 1, 2, 2, 2), (2, 1, 2, 2, 8)
    ]  # fmt: skip
    assert rows == one_rank_of_columns + two_ranks_of_columns
    assert all(tp * fsdp * pp == WORLD for tp, fsdp, pp, *_ in rows)


def test_each_rank_of_a_schedule_of_several_stages_has_its_micro_batches() -> None:
    axes = LayoutAxes(tp=[1], batch=[1], checkpoint=[False], pp=[2], stages=2)
    assert [layout.microbatches for layout in layouts_of(WORLD, axes)] == [4]


def test_steps_of_all_rows_are_fitted_traced_or_not_beside_the_other_kinds() -> None:
    rows = rows_of(Planner(fits=True), (2, 3, 5, 7, 12))
    assert any(row.follows_from for row in rows)
    assert [row.fitted for row in rows] == [
        FittedRank(planned=row.planned // 2, reruns=1, extra_flops=0) for row in rows
    ]
    row = rows_of(Planner(fits=True, kinds=2), (2,))[0]
    assert row.fitted == FittedRank(planned=row.planned // 2, reruns=1, extra_flops=row.planned), (
        "the other kind takes as much"
    )
