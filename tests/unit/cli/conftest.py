from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The program, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)
