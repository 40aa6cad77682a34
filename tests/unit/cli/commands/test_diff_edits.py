"""Edits of a real model: ops and buffers that an edit did not touch are matched."""

from pathlib import Path
from typing import Final

import pytest

from tests.unit.cli.commands.test_diff import EXAMPLE
from tests.unit.cli.graphs import Shell
from tmmu.codec.read import read_graph, read_plan
from tmmu.compare.diff import difference
from tmmu.compare.match import PlannedGraph, match_graphs

SETTINGS: Final = {"layers": 3, "width": 48, "heads": 4, "vocab": 100, "seq": 64, "batch": 1}
ATTEND = "        x = x + self.attention(self.norm_1(x))\n        return x + self.mlp(self.norm_2(x))"
PARALLEL = "        return x + self.attention(self.norm_1(x)) + self.mlp(self.norm_2(x))"
EDITS: Final = {
    "modules renamed": [("self.mlp", "self.ffn"), ("self.attention", "self.attn"), ("self.blocks", "self.h")],
    "an op inserted": [
        ("return x + self.mlp(self.norm_2(x))", "h = self.mlp(self.norm_2(x)) * 0.5\n        return x + h")
    ],
    "branches in parallel": [(ATTEND, PARALLEL)],
    "another activation": [('nn.GELU(approximate="tanh")', "nn.ReLU()")],
}


def plan_side(shell: Shell, name: str, edits: list[tuple[str, str]], mode: str, **settings: int) -> PlannedGraph:
    text = EXAMPLE.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    Path(f"{name}.py").write_text(text)
    words = [word for key, value in (SETTINGS | settings).items() for word in ("--set", f"{key}={value}")]
    done = shell.tmmu("plan", f"{name}.py", *words, "--mode", mode, "--no-cache")
    assert done.code == 0, done.err
    return PlannedGraph(graph=read_graph(Path(f"{name}.ir.cbor")), plan=read_plan(Path(f"{name}.plan.cbor")))


def strangers(before: PlannedGraph, after: PlannedGraph) -> tuple[int, int]:
    """Ops of both sides without a match."""
    matches = match_graphs(before, after)
    common = len(matches.ops) + len(matches.moved)
    return len(before.plan.order) - common, len(after.plan.order) - common


BY_MODE = pytest.mark.parametrize("mode", ["inference", pytest.param("backward", marks=pytest.mark.slow)])


@BY_MODE
def test_edit_leaves_all_that_it_did_not_touch(shell: Shell, mode: str) -> None:
    base = plan_side(shell, "base", [], mode)
    changes = {
        name: strangers(base, plan_side(shell, f"edit{n}", edit, mode)) for n, (name, edit) in enumerate(EDITS.items())
    }
    twice = 2 if mode == "backward" else 1
    assert changes == {
        "modules renamed": (0, 0),
        "an op inserted": (0, 3 * twice),
        "branches in parallel": (0, 0),
        "another activation": (3 * twice, 3 * twice),
    }


@BY_MODE
def test_other_sizes_and_depths_come_or_grow_and_nothing_goes(shell: Shell, mode: str) -> None:
    base = plan_side(shell, "base", [], mode)
    for name, settings in (("width", {"width": 96}), ("seq", {"seq": 128}), ("layers", {"layers": 5})):
        resized = plan_side(shell, name, [], mode, **settings)
        fared = difference(base, resized).totals
        assert fared["went"] == fared["shrank"] == (0, 0), name
        assert fared["came" if name == "layers" else "grew"][0] > 0
        assert strangers(base, resized)[0] == 0
