"""Base and rewrite say all: what is made of them is, by hash, what two rewriters make, each by itself."""

from dataclasses import replace

import pytest

from tests.strategies import seeded
from tests.unit.judge.rewrite.programs import step
from tests.unit.judge.rewrite.rewriter import Rewriter, edited, random_rewrite
from tmmu.errors import InternalError
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import RERUN, SAME, SUBLIST, TWIN, Rewrite
from tmmu.judge.rewrite.check import check_rewrite
from tmmu.judge.rules import check_graph


@pytest.mark.parametrize("optimizer", ["adamw:foreach", "adamw:fused"])
@pytest.mark.parametrize("seed", range(8))
def test_graph_is_made_of_base_and_rewrite(optimizer: str, seed: int) -> None:
    base = step(optimizer)
    graph, rewrite = random_rewrite(base, seeded(seed), with_sublists=True)
    assert {SAME, RERUN, TWIN, SUBLIST} == set(rewrite.kind)
    rebuilt = rebuild_graph(base, rewrite)
    assert rebuilt.ir_hash == graph.ir_hash
    assert check_graph(rebuilt) == check_rewrite(base, rebuilt, rewrite) == ()


def test_base_is_what_is_made_of_every_op_as_it_is() -> None:
    base = step("adamw:foreach")
    count = len(base.ops)
    kinds, parts = (SAME,) * count, ((),) * count
    rewrite = Rewrite(base_hash=base.ir_hash, origin=tuple(base.ops.ids), kind=kinds, part=parts)
    assert rebuild_graph(base, rewrite) == base
    assert base.notes.eager is not None


def test_rerun_after_the_loss_is_of_the_backward_pass() -> None:
    base = step("adamw:foreach")
    gelu, first = base.ops.target.index("aten.gelu.default"), base.ops.stage.index("backward")
    rewriter = Rewriter(base)
    for op in base.ops.ids:
        rewriter.same(op)
        if op == first:
            rewriter.again(gelu)
    graph, rewrite = rewriter.graph()
    rebuilt = rebuild_graph(base, rewrite)
    assert rebuilt.ir_hash == graph.ir_hash
    assert rebuilt.ops.stage[rewrite.kind.index(RERUN)] == "backward"
    assert rebuilt.notes.ops.source[rewrite.kind.index(RERUN)] == base.notes.ops.source[gelu]


def test_what_cannot_be_made_is_an_internal_fault() -> None:
    base = step("adamw:foreach")
    _, rewrite = random_rewrite(base, seeded(0))
    with pytest.raises(InternalError, match="without calls"):
        rebuild_graph(replace(base, calls=None), rewrite)
    with pytest.raises(InternalError, match="no twin"):
        rebuild_graph(base, edited(rewrite, "kind", rewrite.kind.index(RERUN), TWIN))
