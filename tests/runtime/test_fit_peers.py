"""Fitted steps beside torch's partitioner and per-block checkpoints, on a small GPT-2: what ``fit_peers`` measures."""

import json
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from benchmarks import fit_peers
from benchmarks.fit import ARENAS, TOKEN, FitModel, captured, is_monotone
from benchmarks.fit_peers import OurCurves, PeerRow, Settings, peer_rows, peers
from tmmu.ir.graph import Graph
from tmmu.planner.fit.curve import step_curve
from tmmu.planner.fit.fit_step import PlanSettings

pytestmark = pytest.mark.slow
SETTINGS = Settings(plan=PlanSettings(preset="train_full", token=TOKEN), near=True)
SMALL = FitModel(
    name="GPT-2 b8 s1024",
    source="examples/gpt2.py",
    sizes={"layers": 4, "width": 64, "heads": 4, "vocab": 512, "batch": 4, "seq": 128},
    aims=(),
)


@pytest.fixture(scope="module")
def base() -> Graph:
    return captured(SMALL).graph


@pytest.fixture(scope="module")
def graphs() -> list[tuple[str, Graph]]:
    return list(peers(SMALL, ("Block",), 5))


@pytest.fixture(scope="module")
def rows(base: Graph, graphs: list[tuple[str, Graph]]) -> list[PeerRow]:
    return list(peer_rows(SMALL.name, OurCurves.of(base, near=True), graphs, SETTINGS))


def test_no_peer_takes_fewer_bytes_for_its_flops_or_in_its_time(rows: list[PeerRow]) -> None:
    assert [row.peer for row in rows] == ["checkpoint", *(f"budget {budget / 4:.2f}" for budget in range(4, -1, -1))]
    for row in rows:
        assert row.in_time_bytes <= row.peer_bytes, row
        assert not row.is_undercut, row


def test_no_step_takes_more_flops_than_its_peer(rows: list[PeerRow]) -> None:
    assert all(row.our_flops_ppm <= row.peer_flops_ppm for row in rows)


def test_peers_run_what_torch_runs(base: Graph, graphs: list[tuple[str, Graph]]) -> None:
    """All saved, the partitioner's step computes what ours does; checkpoints run each block once more."""
    flops = {name: sum(graph.notes.ops.flops) for name, graph in graphs}
    assert flops["budget 1.00"] == sum(base.notes.ops.flops)
    budgets = [count for name, count in flops.items() if name.startswith("budget")]
    assert all(more <= less for more, less in pairwise(budgets))
    ops = {name: graph.ops.target.count("aten.gelu.default") for name, graph in graphs}
    assert ops["checkpoint"] == 2 * base.ops.target.count("aten.gelu.default") == 8


def test_less_room_never_takes_more(base: Graph) -> None:
    assert is_monotone(step_curve(base, ARENAS, fit_peers.LEVER_NAMES, near=True), SETTINGS.plan, fit_peers.BUDGETS)


def test_table_fails_where_a_peer_takes_less(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], base: Graph
) -> None:
    """The peer that is better by far: a step of fewer tokens."""
    better = captured(FitModel(name="", source=SMALL.source, sizes=SMALL.sizes | {"batch": 1}, aims=())).graph

    def smaller(*_: object) -> Iterator[tuple[str, Graph]]:
        yield "smaller", better

    monkeypatch.setattr(fit_peers, "MODELS", (SMALL,))
    monkeypatch.setattr(fit_peers, "peers", smaller)
    monkeypatch.setattr(sys, "argv", ["fit_peers", "--json"])
    assert fit_peers.main() == 1
    found = json.loads(capsys.readouterr().out)
    assert found["peer_bytes"] < found["our_bytes"]
