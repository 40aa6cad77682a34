"""Kinds of ranks: one of each is planned, a kind may turn out to be two, and the fullest is named."""

from dataclasses import replace

import pytest

from tests.unit.cli.graphs import small
from tmmu.driver import Compiled, PlanRequest, compile_graph
from tmmu.errors import InvalidConfig
from tmmu.passes.capture.program import RankKinds
from tmmu.planner.arenas import parse_arenas
from tmmu.planner.token import token_from_seed
from tmmu.rank_plans import MAX_KINDS, compile_ranks, ranks_text

REQUEST = PlanRequest(mode="inference", preset="inference", token=token_from_seed(0), arenas=parse_arenas(()))


def planned(kind_of: tuple[int, ...], *, size: int = 4096, reads: tuple[str, ...] = ()) -> Compiled:
    """A plan whose cache has ``size`` bytes, of a trace that says these kinds."""
    graph = small()
    sizes = tuple(size if buffer == 3 else held for buffer, held in enumerate(graph.buffers.bytes))
    graph = replace(graph, buffers=replace(graph.buffers, bytes=sizes))
    return replace(compile_graph(graph, REQUEST), rank_kinds=RankKinds(kind_of, reads))


def test_ranks_that_one_trace_takes_for_equal_are_told_apart_by_the_next() -> None:
    traces = {
        0: planned((0, 0, 1, 1, 1, 1), reads=("train.py:3",)),
        2: planned((0, 0, 1, 1, 2, 2), size=8192, reads=("train.py:3", "train.py:9")),
        4: planned((0, 0, 0, 0, 1, 1)),
    }
    traced: list[int] = []
    plans = compile_ranks(6, lambda rank: traced.append(rank) or traces[rank])  # type: ignore[func-returns-value]
    assert traced == [0, 2, 4]
    assert [kind.ranks for kind in plans.kinds] == [(0, 1), (2, 3), (4, 5)]
    assert plans.fullest is traces[2]
    assert plans.fullest_kind is plans.kinds[1]
    assert plans.fullest_kind.state == plans.kinds[0].state + 4096
    assert plans.reads == ("train.py:3", "train.py:9")
    assert [(kind.ranks, traced) for kind, traced in plans.side_by_side] == [
        ((0, 1), traces[0]), ((2, 3), traces[2]), ((4, 5), traces[4])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ((4096, 4096, 4096, 4096), [0, 3]),
        ((4096, 8192, 9216, 4096), [0, 2, 3]),
        ((4096, 9216, 8192, 4096), [0, 1, 3]),
        ((4096, 4096, 4096, 8192), [0, 3]),
    ],
)
def test_first_last_and_fullest_are_kept_side_by_side_each_once(sizes: tuple[int, ...], shown: list[int]) -> None:
    plans = compile_ranks(4, lambda rank: planned((0, 1, 2, 3), size=sizes[rank]))
    assert [kind.rank for kind, _ in plans.side_by_side] == shown
    states = [compiled.graph.buffers.bytes[3] for _, compiled in plans.side_by_side]
    assert states == [sizes[rank] for rank in shown]
    assert plans.fullest in [compiled for _, compiled in plans.side_by_side]


def test_more_kinds_than_are_traced_in_one_go_are_refused_after_one_trace() -> None:
    traced: list[int] = []
    compiled = planned(tuple(range(MAX_KINDS + 1)))
    with pytest.raises(InvalidConfig, match=f"of {MAX_KINDS + 1} kinds"):
        compile_ranks(MAX_KINDS + 1, lambda rank: traced.append(rank) or compiled)  # type: ignore[func-returns-value]
    assert traced == [0]


@pytest.mark.parametrize(("ranks", "text"), [((0,), "0"), ((0, 1, 2, 4, 6, 7), "0-2,4,6-7"), ((), "")])
def test_neighbours_are_one_range(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text
