"""The generator of graphs makes legal ones, and reaches the corners that it promises."""

from hypothesis import given

from tests.strategies import graphs, random_graph, seeded
from tmmu.ir.graph import DTYPE_BYTES, PERSISTENT_ROLES, Graph


def extent(graph: Graph, value: int) -> int:
    values = graph.values
    shape, stride = values.shape[value], values.stride[value]
    width = DTYPE_BYTES[values.dtype[value]]
    if 0 in shape:
        return values.offset[value]
    return values.offset[value] + width * (1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)))


@given(graphs())
def test_windows_lie_inside_their_buffers(graph: Graph) -> None:
    for value, buffer in enumerate(graph.values.buffer):
        assert extent(graph, value) <= graph.buffers.bytes[buffer]


@given(graphs())
def test_values_are_written_before_they_are_read_or_defined_from_the_start(graph: Graph) -> None:
    written = [value for writes in graph.ops.writes for value in writes]
    assert len(set(written)) == len(written)
    seen = {v for v, b in enumerate(graph.values.buffer) if graph.buffers.role[b] in PERSISTENT_ROLES} - set(written)
    for reads, writes, saves in zip(graph.ops.reads, graph.ops.writes, graph.ops.saves, strict=True):
        assert set(reads) <= seen
        seen |= set(writes)
        assert set(saves) <= set(reads) | set(writes)
    assert set(graph.outputs) <= seen


def test_random_graphs_reach_the_corner_cases() -> None:
    pairs = saves = changes = views = 0
    for seed in range(50):
        graph = random_graph(seeded(seed), ops=20, joint=seed % 2 == 0)
        pairs += sum(map(len, graph.ops.overwrites))
        saves += sum(map(len, graph.ops.saves))
        views += sum(offset > 0 for offset in graph.values.offset)
        for reads, writes in zip(graph.ops.reads, graph.ops.writes, strict=True):
            old = {graph.values.buffer[v] for v in reads}
            changes += any(graph.values.buffer[v] in old for v in writes)
    assert min(pairs, saves, changes, views) > 50
