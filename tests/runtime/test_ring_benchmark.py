"""The comparison with peers runs, and every contestant equals the module."""

import pytest

from benchmarks.ring import Case, measure


@pytest.mark.usefixtures("one_thread")
def test_contestants_agree_with_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(Case(name="small", layers=16, width=32, rows=1, passes=1), rounds=1)
    rows = {line.split("  ")[0]: line.split()[-3:] for line in capsys.readouterr().out.splitlines() if line}
    assert rows["group"][:2] == ["96", "96"]
    assert rows["double"][:2] == ["0", "16"]
    assert int(rows["cyclic"][1]) <= 16
    assert rows["cyclic"][0] == "0"
