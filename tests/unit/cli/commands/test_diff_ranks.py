"""Two ranks of one program side by side: their plans are compared and shown as those of two models are."""

from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell
from tests.unit.passes.capture.ranks.test_pipelines import script_of

pytest.importorskip("torch.distributed.pipelining")


def test_plans_of_two_ranks_are_compared_by_line_and_shown_on_one_page(shell: Shell) -> None:
    Path("pipe.py").write_text(script_of("Schedule1F1B"))
    options = ("--mode", "step", "--world", 2, "--device", "cpu", "--no-cache", "--json")
    planned, eager = [], []
    for rank in range(2):
        record = shell.tmmu("plan", "pipe.py:step", *options, "--rank", rank, "-o", f"{rank}.plan.cbor").record
        planned.append(record["planned"]["total_bytes"])
        eager.append(record["eager"]["total_bytes"])
    found = shell.tmmu("diff", "0.plan.cbor", "1.plan.cbor", "--json").record
    assert [found[side]["model"] for side in ("before", "after")] == ["step, rank 0 of 2", "step, rank 1 of 2"]
    total = next(figure for figure in found["figures"] if figure["name"] == "total")
    assert [total["before"], total["after"]] == planned
    assert [found["eager"][side]["total_bytes"] for side in ("before", "after")] == eager
    assert any("pipe.py:" in line["source"] for line in found["lines"]), "the loss is computed by the last stage alone"
    shown = shell.tmmu("report", "0.plan.cbor", "--against", "1.plan.cbor")
    assert shown.code == 0, shown.err
    page = Path("0.html").read_text()
    assert "rank 0 of 2" in page
    assert "rank 1 of 2" in page
