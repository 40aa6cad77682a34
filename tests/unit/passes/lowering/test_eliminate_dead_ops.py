"""Dead code goes: what nobody reads and has no effect. All that eager leaves behind stays."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from torch import nn

from tests.strategies import graphs
from tests.unit.ir.test_edit import diamond, halves_of, program_of
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.program import Program, ValueRef
from tmmu.judge.rules import check_graph
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.lowering.eliminate_dead_ops import eliminate_dead_ops, live_ops
from tmmu.passes.meaning import drops_without_effect
from tmmu.passes.pipeline import lower_program


def lowered(run: Callable[..., Any], module: nn.Module | None = None) -> Program:
    with fake_environment("cpu"):
        work = Workload(name="f", folder="", run=module or run, module=module, args=(torch.empty(4, 8),))
        return lower_program(trace(work, CaptureRequest(model="f", device="cpu"), no_progress))


def targets(run: Callable[..., Any]) -> list[str]:
    return [name.split(".")[1] for name in lowered(run).graph.ops.target]


def test_dead_chain_leaves_the_graph_that_never_had_it() -> None:
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin()

    def with_dead(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        (y[1:].cos().view(-1) @ torch.ones(24)).tanh()
        return y.sin()

    assert lowered(with_dead).graph.ir_hash == lowered(plain).graph.ir_hash


def test_op_stays_for_any_one_of_its_results() -> None:
    assert targets(lambda x: x.max(dim=1)[1]) == ["max"]


def test_version_that_a_live_op_changes_in_part_stays() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y[0] = 1
        return y

    assert targets(run) == ["exp", "fill_"]


def test_draw_of_eager_stays_where_nobody_reads_it() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        torch.nn.functional.dropout(x, 0.5)
        x.exp()
        return x.sin()

    assert targets(run)[-1] == "sin"
    assert "rand" in targets(run)
    assert any("dropout" in name or "bernoulli" in name for name in targets(run))
    assert "exp" not in targets(run)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x.sin()


def test_change_of_what_outlives_the_step_stays() -> None:
    assert lowered(Counting.forward, Counting()).graph.ops.target == ("aten.add_.Tensor", "aten.sin.default")


def test_change_of_the_callers_input_stays() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.ones(3)

    assert "add_" in targets(run)


def test_unknown_operator_stays() -> None:
    program = diamond()
    unknown = replace(program.graph, ops=replace(program.graph.ops, target=("custom.log.default",) * 4))
    assert live_ops(program) == [0, 2, 3]
    assert live_ops(replace(program, graph=unknown)) == [0, 1, 2, 3]


def test_what_a_half_hands_out_stays() -> None:
    program = diamond(halves_of((ValueRef(2), 0), after=4, forward_ops=4))
    assert live_ops(program) == [0, 1, 2, 3]


@settings(max_examples=200, deadline=None)
@given(graphs(max_ops=12))
def test_random_programs_lose_dead_ops_and_nothing_else(graph: Graph) -> None:
    program = program_of(graph)
    kept = eliminate_dead_ops(program)
    assert not check_graph(kept.graph)
    assert not list(drops_without_effect(program, kept))
    assert eliminate_dead_ops(kept) is kept
    writes = [kept.graph.ops.writes[op] for op in range(len(kept.calls))]
    named = {
        *kept.graph.outputs,
        *(v for op in kept.graph.ops.reads for v in op),
        *(v for op in kept.graph.ops.saves for v in op),
    }
    roles, buffer = kept.graph.buffers.role, kept.graph.values.buffer
    assert all(named & set(w) or not w or any(roles[buffer[v]] in PERSISTENT_ROLES for v in w) for w in writes)
