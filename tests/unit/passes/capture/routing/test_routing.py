"""Programs that look at how many tokens an expert gets: refused without a capacity, and planned for the most with."""

from fractions import Fraction
from itertools import combinations_with_replacement
from pathlib import Path

import pytest
import torch

import tmmu
from tmmu.driver import PlanRequest, compile_graph
from tmmu.eager.peak import eager_figures
from tmmu.errors import CapacityUndeclared, CaptureFailed, RoutingAssumed
from tmmu.ir.program import AssumedRouting
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import parse_arenas
from tmmu.runtime.execute.bind import bind

LOOP = """
import torch

class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(8, 4)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def chosen(self, x):
        return self.gate(x).topk(2).indices

    def forward(self, x):
        mask = torch.nn.functional.one_hot(self.chosen(x), 4).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for expert in mask.sum((1, 2)).nonzero():
            place, token = torch.where(mask[expert[0]])
            out.index_add_(0, token, self.experts[int(expert[0])](x[token]).relu())
        return out

model = Experts

def inputs():
    return torch.empty(12, 8)
"""
EXCHANGE = """
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd

class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(8, 8)
        self.experts = torch.nn.Parameter(torch.empty(4, 8, 8))

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        chosen = torch.topk(scores, 2, dim=-1, sorted=False)[1]
        counts = torch.histc(chosen.view(-1).float(), bins=8, min=0, max=7)
        group = dist.group.WORLD
        with torch.no_grad():
            theirs = all_to_all_single(counts, None, None, group)
            sent = counts.view(2, -1).sum(dim=1).to(torch.device("cpu"), non_blocking=True).int().tolist()
            got = theirs.view(2, -1).sum(dim=1).to(torch.device("cpu"), non_blocking=False).int().tolist()
        order = chosen.view(-1).argsort(stable=True)
        here = all_to_all_single_autograd(x[order // 2], got, sent, group)
        parts = here.split(theirs.view(2, -1).T.reshape(-1).int().tolist())
        done = torch.cat([part @ self.experts[place // 2] for place, part in enumerate(parts)])
        return all_to_all_single_autograd(done, sent, got, group)

def model():
    dist.init_process_group("nccl")
    return Experts()

def inputs():
    return torch.empty(16, 8)
"""


def captured(folder: Path, text: str, **options: object) -> CapturedProgram:
    file = folder / "experts.py"
    file.write_text(text)
    return capture(CaptureRequest(model=str(file), device="cpu", **options))  # type: ignore[arg-type]


def eager_bytes(program: CapturedProgram) -> int:
    """What is made and dropped in a run as it is."""
    figures = eager_figures(lower_program(program).graph)
    assert figures is not None
    return figures.stack_bytes


def test_a_count_is_refused_by_its_gate_without_a_capacity(tmp_path: Path) -> None:
    with pytest.raises(CapacityUndeclared, match=r"experts\.py:16: .* choice at experts\.py:11 decides .*--capacity-"):
        captured(tmp_path, LOOP)


def test_a_look_at_no_gate_keeps_its_own_refusal(tmp_path: Path) -> None:
    text = LOOP.replace("mask.sum((1, 2)).nonzero()", "(x.sum(0) > 0).nonzero()")
    for factor in (None, Fraction(1)):
        with pytest.raises(CaptureFailed, match="shape depends on tensor data"):
            captured(tmp_path, text, capacity_factor=factor)


@pytest.mark.parametrize("look", ["int(best[0])", "best[0] == 3", "(best == 3).all()"])
def test_a_look_at_a_choice_itself_is_no_count_of_experts(tmp_path: Path, look: str) -> None:
    """The next token of a text is the largest of its chances too."""
    text = LOOP.replace("mask = ", f"best = self.gate(x).argmax(-1)\n        assert {look}\n        mask = ")
    with pytest.raises(CaptureFailed, match=r"experts\.py:15: .*control flow depends"):
        captured(tmp_path, text)


def test_a_program_that_looks_at_no_count_is_as_without_a_capacity(tmp_path: Path) -> None:
    text = LOOP[: LOOP.index("        mask")] + "        return self.chosen(x)\n\n" + LOOP[LOOP.index("model =") :]
    plain, declared = (captured(tmp_path, text, capacity_factor=factor) for factor in (None, Fraction(2)))
    assert (declared.name, declared.routings) == (plain.name, ())


def test_a_loop_over_experts_has_the_tokens_of_its_routing(tmp_path: Path) -> None:
    program = captured(tmp_path, LOOP, capacity_factor=Fraction("1.25"))
    rows = [node.meta["windows"][0].shape[0] for node in program.graph.nodes if "addmm" in str(node.target)]
    assert program.name == "experts, capacity factor 1.25"
    assert rows == [12, 7, 1, 8, 8], "the gate; of four experts, which get 24 tokens together, the last are full"
    assert program.routings == (
        AssumedRouting(
            source="experts.py:11", gates=1, tokens=12, choices=2, experts=4, capacity=8, factor=Fraction(5, 4)
        ),
    )


def test_no_counts_within_the_capacity_make_an_evaluation_hold_more(tmp_path: Path) -> None:
    """Four tokens have two of four experts each: all counts up to three, with such a choice in place of the gate's."""
    text = LOOP.replace("torch.empty(12, 8)", "torch.empty(4, 8)")
    planned = eager_bytes(captured(tmp_path, text, capacity_factor=Fraction("1.5")))
    choices = {
        tuple(torch.bincount(torch.tensor(rows).flatten(), minlength=4).tolist()): rows
        for rows in combinations_with_replacement([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)], 4)
    }
    within = [rows for counts, rows in sorted(choices.items()) if max(counts) == 3]
    seen = [
        eager_bytes(captured(tmp_path, text.replace("self.gate(x).topk(2).indices", f"torch.tensor({rows})")))
        for rows in within[::4]
    ]
    assert len(seen) >= 4
    assert max(seen) <= planned


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_gets_as_many_tokens_as_its_experts_may_have(tmp_path: Path, rank: int) -> None:
    """Two ranks send up to five tokens to each of four experts."""
    options = {"world": 2, "rank": rank, "mode": "backward", "loss": "sum"}
    program = captured(tmp_path, EXCHANGE, capacity_factor=Fraction("1.25"), **options)
    exchanges = [node for node in program.graph.nodes if "all_to_all_single" in str(node.target)]
    received = [node.meta["windows"][0].shape[0] for node in exchanges]
    assert received == [8, 2 * 4 * 5, 32, 40], "counts, tokens, what comes back of them, and its gradients"
    with pytest.raises(CapacityUndeclared, match=r"choice at experts\.py:14"):
        captured(tmp_path, EXCHANGE, **options)


def test_such_a_program_is_not_bound(tmp_path: Path) -> None:
    program = lower_program(captured(tmp_path, LOOP, capacity_factor=Fraction(1)))
    request = PlanRequest(mode="inference", preset="inference", token=bytes(64), arenas=parse_arenas(()))
    plan = compile_graph(program.graph, request).plan
    with pytest.raises(RoutingAssumed, match="experts that get 6 tokens, as a capacity factor of 1 says"):
        bind(program, plan, token=bytes(64), weights={})


def test_a_plan_from_python_says_what_it_assumed(tmp_path: Path) -> None:
    file = tmp_path / "experts.py"
    file.write_text(LOOP)
    scope: dict[str, object] = {}
    exec(compile(LOOP, str(file), "exec"), scope)
    plan = tmmu.plan(scope["Experts"](), torch.empty(12, 8), device="cpu", capacity_factor=1.5)  # type: ignore[operator]
    assert plan.graph.notes.name == "Experts, capacity factor 1.5"
    assert [(row.experts, row.capacity) for row in plan.routings] == [(4, 9)]
    assert plan.to_dict()["routings"][0]["factor"] == "1.5"  # type: ignore[index]
