"""The comparison with peers runs, and every contestant equals the module."""

import pytest
import torch

from benchmarks.ring import Case, measure


def test_contestants_agree_with_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert measure(Case(name="small", layers=16, width=32, rows=1, passes=1), rounds=1)
    finally:
        torch.set_num_threads(before)
    rows = {line.split("  ")[0]: line.split()[-3:] for line in capsys.readouterr().out.splitlines() if line}
    assert rows["group"][:2] == ["96", "96"]
    assert rows["double"][:2] == ["0", "16"]
    assert int(rows["cyclic"][1]) <= 16
    assert rows["cyclic"][0] == "0"
