"""Two rewrites as one: of each pair of kinds, what it is seen from the first graph."""

from dataclasses import replace

import pytest

from tests.unit.judge.rewrite.programs import deep_step
from tests.unit.planner.fit.head_models import head_step
from tmmu.errors import InternalError
from tmmu.ir.graph import Graph
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import PART, RERUN, SAME, SUBLIST, TWIN, Part, Rewrite
from tmmu.judge.rewrite.check import require_meaning
from tmmu.judge.rules import require_legal
from tmmu.planner.fit.compose import compose
from tmmu.planner.fit.early_updates import early_updates
from tmmu.planner.fit.head_parts import head_parts


def rows(base: Graph, *ops: tuple[int, str, Part]) -> Rewrite:
    origin, kind, part = zip(*ops, strict=True)
    return Rewrite(base_hash=base.ir_hash, origin=origin, kind=kind, part=part)


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ((SAME, ()), (SAME, ()), (SAME, ())),
        ((SAME, ()), (RERUN, ()), (RERUN, ())),
        ((SAME, ()), (TWIN, ()), (TWIN, ())),
        ((SAME, ()), (SUBLIST, (1, 2)), (SUBLIST, (1, 2))),
        ((RERUN, ()), (SAME, ()), (RERUN, ())),
        ((RERUN, ()), (RERUN, ()), (RERUN, ())),
        ((PART, (0, 1, 2)), (SAME, ()), (PART, (0, 1, 2))),
        ((PART, (0, 1, 2)), (RERUN, ()), (PART, (0, 1, 2))),
        ((SUBLIST, (3, 7)), (SUBLIST, (1, 2)), (SUBLIST, (4, 5))),
    ],
)
def test_pairs_of_kinds(first: tuple[str, Part], second: tuple[str, Part], both: tuple[str, Part]) -> None:
    base = deep_step("adamw:fused")
    found = compose(base, rows(base, (2, *first)), rows(base, (0, *second)))
    assert (found.base_hash, found.origin) == (base.ir_hash, (2,))
    assert (found.kind[0], found.part[0]) == both


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((PART, (0, 1, 2)), (PART, (0, 0, 1))),
        ((SAME, ()), (PART, (0, 0, 1))),
        ((SUBLIST, (0, 2)), (RERUN, ())),
        ((TWIN, ()), (SUBLIST, (0, 1))),
    ],
)
def test_pairs_that_are_of_no_kind(first: tuple[str, Part], second: tuple[str, Part]) -> None:
    base = deep_step("adamw:fused")
    with pytest.raises(InternalError, match="of no kind"):
        compose(base, rows(base, (2, *first)), rows(base, (0, *second)))


def test_rewrite_of_another_graph_is_not_composed() -> None:
    base = deep_step("adamw:fused")
    with pytest.raises(InternalError, match="another graph"):
        compose(base, replace(rows(base, (0, SAME, ())), base_hash=bytes(32)), rows(base, (0, SAME, ())))


def test_reruns_of_parts_are_parts() -> None:
    """The parts of one op again, right before the last op that reads them."""
    base = head_step("tied")
    first = head_parts(base, 6, smallest=1)
    parted = rebuild_graph(base, first)
    order = [(op, SAME) for op in parted.ops.ids]
    softmax = next(op for op in parted.ops.ids if parted.ops.target[op] == "aten._log_softmax.default")
    reader = next(op for op in parted.ops.ids if parted.ops.target[op] == "aten._log_softmax_backward_data.default")
    order.insert(reader, (softmax, RERUN))
    second = rows(parted, *((op, kind, ()) for op, kind in order))
    both = compose(base, first, second)
    assert both.kind.count(PART) == first.kind.count(PART) + 1
    graph = rebuild_graph(base, both)
    require_legal(graph)
    require_meaning(base, graph, both)
    assert graph.calls is not None
    assert graph.calls.operands[reader + 1][1] == graph.calls.operands[reader][-1]


def test_updates_of_parts_keep_their_order() -> None:
    base = head_step("tied")
    first = head_parts(base, 6, smallest=1)
    parted = rebuild_graph(base, first)
    both = compose(base, first, early_updates(parted, smallest=1))
    assert sorted(both.kind) != sorted(first.kind)
    assert [kind for kind in both.kind if kind not in (SAME, SUBLIST)] == [kind for kind in first.kind if kind != SAME]
