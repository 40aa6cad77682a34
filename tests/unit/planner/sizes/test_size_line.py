"""Sizes between traced ones: read off a line that a third trace lies on, and off no other."""

from dataclasses import replace

import pytest

from tests.unit.planner.sizes.sized_models import Attention, Branch, Layers, Padded, step_of
from tmmu.eager.peak import eager_figures
from tmmu.ir.graph import Graph
from tmmu.judge.rules import require_legal
from tmmu.planner.sizes.size_line import SizeLine, find_size_line
from tmmu.planner.sizes.size_model import NotPolynomialError, SizeModel, same_memory


class Traces:
    """The graphs of a step, and the sizes that were asked for, in order."""

    def __init__(self, model: type, *, refused: tuple[int, ...] = ()) -> None:
        self.model, self.refused = model, refused
        self.sizes: list[int] = []

    def __call__(self, size: int) -> Graph | None:
        self.sizes.append(size)
        return None if size in self.refused else step_of(self.model, size).graph


def test_sizes_between_are_those_of_a_trace_in_eager_too() -> None:
    traces = Traces(Layers)
    line = find_size_line((12, 2, 3, 5, 7, 9), traces)
    assert line is not None
    assert line.sizes == (2, 5, 12)
    assert sorted(traces.sizes) == [2, 5, 12]
    for size in (3, 7, 9):
        read_off, traced = line.graph_at(size), step_of(Layers, size).graph
        assert same_memory(read_off, traced)
        assert read_off.notes.ops.flops == traced.notes.ops.flops
        assert read_off.notes.eager == traced.notes.eager
        assert eager_figures(read_off) == eager_figures(traced)
        require_legal(read_off)


def test_nothing_is_read_off_beyond_the_ends() -> None:
    line = find_size_line((2, 3, 5, 12), Traces(Layers))
    assert line is not None
    for size in (1, 13):
        with pytest.raises(NotPolynomialError):
            line.graph_at(size)


@pytest.mark.parametrize("model", [Attention, Padded, Branch])
def test_a_step_on_no_line_has_none(model: type) -> None:
    traces = Traces(model)
    assert find_size_line((3, 41, 45, 53, 60), traces) is None
    assert len(traces.sizes) == len(set(traces.sizes)), "a size is traced once"


def test_a_least_size_that_is_another_step_is_left_out() -> None:
    traces = Traces(Branch)
    line = find_size_line((4, 51, 54, 60, 70), traces)
    assert line is not None
    assert line.sizes == (51, 54, 70)
    assert sorted(traces.sizes) == [4, 51, 54, 70]


def test_a_refused_size_is_on_no_line() -> None:
    traces = Traces(Layers, refused=(2, 5))
    line = find_size_line((2, 4, 5, 6, 8, 11), traces)
    assert line is not None
    assert set(line.sizes).isdisjoint(traces.refused)


def test_few_sizes_are_not_traced_for_a_line() -> None:
    traces = Traces(Layers)
    assert find_size_line((2, 3, 4, 3), traces) is None
    assert not traces.sizes


def test_a_middle_that_differs_in_eager_alone_is_on_no_line() -> None:
    def trace(size: int) -> Graph:
        graph = step_of(Layers, size).graph
        eager = graph.notes.eager
        if size != 5 or eager is None:
            return graph
        later = replace(eager.storages, death=(eager.storages.death[0] + 1, *eager.storages.death[1:]))
        return replace(graph, notes=replace(graph.notes, eager=replace(eager, storages=later)))

    assert find_size_line((2, 5, 9, 12), Traces(Layers)) is not None
    assert find_size_line((2, 5, 9, 12), trace) is None


def test_eager_of_other_storages_is_no_polynomial() -> None:
    first, second = (step_of(Layers, size).graph for size in (2, 12))
    assert first.notes.eager is not None
    more_calls = replace(first.notes.eager, calls=first.notes.eager.calls + 1)
    other = replace(first, notes=replace(first.notes, eager=more_calls))
    with pytest.raises(NotPolynomialError):
        SizeModel(((2, other), (12, second))).eager_at(5)
    silent = replace(first, notes=replace(first.notes, eager=None))
    with pytest.raises(NotPolynomialError):
        SizeModel(((2, silent), (12, second))).eager_at(5)
    assert SizeModel(((2, silent),)).eager_at(5) is None
    assert SizeLine(SizeModel(((2, first), (12, second))), (2, 5, 12)).graph_at(7).notes.eager is not None
