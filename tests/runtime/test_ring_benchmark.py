"""The comparison with peers runs, and every contestant equals the module."""

import sys

import pytest

from benchmarks import ring_generation
from benchmarks.ring import Case, measure


@pytest.mark.usefixtures("one_thread")
def test_contestants_agree_with_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(Case(name="small", layers=16, width=32, rows=1, passes=1), rounds=1)
    rows = {line.split("  ")[0]: line.split()[-3:] for line in capsys.readouterr().out.splitlines() if line}
    assert rows["group"][:2] == ["96", "96"]
    assert rows["double"][:2] == ["0", "16"]
    assert int(rows["cyclic"][1]) <= 16
    assert rows["cyclic"][0] == "0"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_tokens_of_contestants_are_those_of_weights_that_stay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    monkeypatch.setattr(sys, "argv", ["ring_generation", "--rounds", "1", "--width", "64", "--tokens", "4"])
    assert ring_generation.main() == 0
    rows = {line[:12].strip(): line[12:].split() for line in capsys.readouterr().out.splitlines() if "equal" in line}
    assert set(rows) == {"stay", "engine", "cyclic", "double", "no prefetch", "accelerate"}
    whole = float(rows["stay"][4])
    assert float(rows["cyclic"][4]) <= whole / 3  # of a quarter, in megabytes of one digit
    assert 0 < float(rows["cyclic"][2]) <= float(rows["double"][2])
    assert rows["engine"][2] == "0.0"
