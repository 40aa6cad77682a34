"""What is no part of an op is refused by name, whoever says so."""

import pytest

from tests.strategies import seeded
from tests.unit.judge.rewrite.rewriter import edited
from tests.unit.planner.fit.head_models import head_step
from tmmu.errors import InternalError
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import KINDS, LIKE, LOSS, PART, PICKED, PLACED, ROWS, SAME, SUMMAND, Part, Rewrite
from tmmu.judge.rewrite.check import check_rewrite
from tmmu.judge.rewrite.parts import NEAR_RULES
from tmmu.judge.rules import check_graph
from tmmu.planner.fit.head_parts import head_parts

NEAR = frozenset(NEAR_RULES.values())


def with_row(target: str, kind: str, part: Part) -> Rewrite:
    base = head_step("tied")
    count = len(base.ops)
    rewrite = Rewrite(base_hash=base.ir_hash, origin=tuple(base.ops.ids), kind=(SAME,) * count, part=((),) * count)
    op = base.ops.target.index(target)
    return edited(edited(rewrite, "kind", op, kind), "part", op, part)


@pytest.mark.parametrize(
    ("target", "kind", "part"),
    [
        ("aten.mm.default", PART, ()),
        ("aten.mm.default", PART, (0, 0, 999)),
        ("aten.native_layer_norm_backward.default", PLACED, (0, 0, 1)),
        ("aten.native_layer_norm.default", PART, (2, 0, 1)),
        ("aten._fused_adamw_.default", PART, (0, 0, 1)),
        ("aten.mm.default", SUMMAND, (0, 999)),
        ("aten.mm.default", SUMMAND, (0,)),
        ("aten.relu.default", SUMMAND, (0, 1)),
        ("aten.ones_like.default", LIKE, ()),
        ("aten.ones_like.default", LIKE, (9999,)),
        ("aten.mm.default", LIKE, (0,)),
        ("aten.mm.default", PICKED, (LOSS,)),
        ("aten.nll_loss_forward.default", PICKED, ()),
        ("aten.nll_loss_forward.default", PICKED, (9,)),
        ("aten.nll_loss_forward.default", PICKED, (ROWS,)),
        ("aten.nll_loss_forward.default", PICKED, (ROWS, 0, 9999)),
        ("aten.nll_loss_forward.default", PICKED, (LOSS,)),
    ],
)
def test_what_is_no_part_is_refused(target: str, kind: str, part: Part) -> None:
    with pytest.raises(InternalError):
        rebuild_graph(head_step("tied"), with_row(target, kind, part))


@pytest.mark.parametrize("seed", range(8))
def test_any_kinds_and_parts_make_a_graph_or_are_refused(seed: int) -> None:
    base, pick = head_step("tied"), seeded(seed)
    good = head_parts(base, 6, smallest=1, near=True)
    refused = 0
    for _ in range(60):
        rewrite = good
        for _ in range(1 + pick(3)):
            row = pick(len(good))
            rewrite = edited(rewrite, "kind", row, KINDS[pick(len(KINDS))])
            part = tuple(pick(12) * (1 + pick(20)) - 1 for _ in range(pick(5)))
            rewrite = edited(rewrite, "part", row, part if pick(2) else good.part[pick(len(good))])
            rewrite = edited(rewrite, "origin", row, good.origin[pick(len(good))])
        try:
            graph = rebuild_graph(base, rewrite)
        except InternalError:
            refused += 1
        else:
            assert check_graph(graph) or check_rewrite(base, graph, rewrite, near=NEAR) or len(graph.ops) == len(good)
    assert 0 < refused < 60
