"""The smallest cut: as small as networkx finds it, and the one nearest to the source."""

import random

import networkx as nx
import pytest

from tmmu.planner.fit.seeds.max_flow import UNBOUNDED, cut_side


@pytest.mark.parametrize("seed", range(200))
def test_cut_is_the_smallest(seed: int) -> None:
    dice = random.Random(seed)
    nodes = dice.randrange(2, 14)
    bounded = [(dice.randrange(nodes), dice.randrange(nodes), dice.randrange(20)) for _ in range(dice.randrange(40))]
    unbounded = [(0, dice.randrange(1, nodes), UNBOUNDED)] if nodes > 2 and seed % 2 else []
    unbounded = [edge for edge in unbounded if edge[1] != 1]
    edges = [edge for edge in (*bounded, *unbounded) if edge[0] != edge[1]]
    side = cut_side(nodes, edges, 0, 1)
    assert side[0]
    assert not side[1]
    width = sum(room for tail, head, room in edges if side[tail] and not side[head])
    graph = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    for tail, head, room in edges:
        before = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        graph.add_edge(tail, head, capacity=before + room)
    assert width == nx.minimum_cut_value(graph, 0, 1)


def test_cut_is_nearest_to_the_source() -> None:
    assert cut_side(4, [(0, 2, 5), (2, 3, 5), (3, 1, 5)], 0, 1) == [True, False, False, False]
