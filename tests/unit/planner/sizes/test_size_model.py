"""Predicted graphs are the traced ones, byte for byte; what no polynomial goes through is refused."""

from dataclasses import replace

import pytest

from tests.unit.planner.sizes.sized_models import Attention, Branch, Layers, Padded, step_of
from tmmu.ir.call_text import decode_call
from tmmu.ir.graph import Graph
from tmmu.judge.rules import require_legal
from tmmu.planner.sizes.size_model import NotPolynomialError, SizeModel, same_memory


def model_of(name: type, *sizes: int) -> SizeModel:
    return SizeModel(tuple((size, step_of(name, size).graph) for size in sizes))


def whole_numbers(graph: Graph) -> list[object]:
    """Of each call, what is no float."""
    assert graph.calls is not None
    texts = [decode_call(graph.calls.texts[row]) for row in graph.calls.call]
    return [(t.operator, [a for a in t.arguments if not isinstance(a, bytes)], t.results) for t in texts if t]


@pytest.mark.parametrize(("name", "starts"), [(Layers, (2, 3)), (Layers, (5, 3, 4)), (Attention, (4, 5, 7))])
def test_graph_at_another_size_is_the_traced_one(name: type, starts: tuple[int, ...]) -> None:
    for size in (6, 29):
        predicted, traced = model_of(name, *starts).graph_at(size), step_of(name, size).graph
        assert same_memory(predicted, traced)
        assert predicted.notes.ops.flops == traced.notes.ops.flops
        assert predicted.notes.buffers == traced.notes.buffers
        assert whole_numbers(predicted) == whole_numbers(traced)
        require_legal(predicted)


def test_squares_take_three_traces() -> None:
    assert not same_memory(model_of(Attention, 4, 5).graph_at(29), step_of(Attention, 29).graph)


def test_padding_is_no_polynomial_or_seen_in_a_trace() -> None:
    with pytest.raises(NotPolynomialError):
        model_of(Padded, 9, 10).graph_at(29)  # less is added at 10 than at 9, and less than nothing at 29
    assert not same_memory(model_of(Padded, 17, 9).graph_at(12), step_of(Padded, 12).graph)


def test_ops_that_differ_are_no_polynomial() -> None:
    with pytest.raises(NotPolynomialError):
        model_of(Branch, 49, 51).graph_at(60)


def test_sizes_below_zero_and_halves_are_no_polynomial() -> None:
    graph = step_of(Layers, 4).graph

    def with_bytes(size: int) -> Graph:
        return replace(graph, buffers=replace(graph.buffers, bytes=(size, *graph.buffers.bytes[1:])))

    assert SizeModel(((2, with_bytes(10)), (4, with_bytes(14)))).graph_at(9).buffers.bytes[0] == 24
    for sizes, at in [((10, 13), 3), ((10, 40), 1)]:
        with pytest.raises(NotPolynomialError):
            SizeModel(((2, with_bytes(sizes[0])), (4, with_bytes(sizes[1])))).graph_at(at)


def test_same_memory_sees_one_byte_and_one_operand() -> None:
    graph = step_of(Layers, 4).graph
    assert same_memory(graph, replace(graph, notes=replace(graph.notes, name="other")))
    last = len(graph.buffers) - 1
    more = tuple(size + (at == last) for at, size in enumerate(graph.buffers.bytes))
    assert not same_memory(graph, replace(graph, buffers=replace(graph.buffers, bytes=more)))
    reads = (graph.ops.reads[0][1:], *graph.ops.reads[1:])
    assert not same_memory(graph, replace(graph, ops=replace(graph.ops, reads=reads)))
