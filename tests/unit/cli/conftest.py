from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell
from tests.warm_server import WarmPython
from tmmu.cli import diff_inputs
from tmmu.cli.commits import Checkout
from tmmu.cli.planning_process import command_line


@pytest.fixture
def shell(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    warm_python: WarmPython,
) -> Shell:
    """The program, run in an empty folder. Processes that it starts to plan a side each have all modules imported."""

    def warm_line(arguments: Sequence[str], checkout: Checkout | None) -> list[str]:
        return [str(warm_python.python()), *command_line(arguments, checkout)[1:]]

    monkeypatch.setattr(diff_inputs, "command_line", warm_line)
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)
