import shutil
from pathlib import Path

import pytest

from tests.golden.graphs import FOLDER, SMALL
from tests.unit.cli.graphs import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The program, run in a folder that has a copy of the golden files, less the case that takes a minute."""
    shutil.copytree(FOLDER, tmp_path / "golden")
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


@pytest.fixture
def little(shell: Shell) -> Shell:
    """The program in a new folder with two recorded golden cases, one of them with ``keep``."""
    shutil.rmtree("golden")
    folder = Path("golden")
    folder.mkdir()
    (folder / "cases.toml").write_text(SMALL)
    for name in ("diamond", "mixed-roles"):
        shutil.copy(FOLDER / f"{name}.ir.cbor", folder)
    assert shell.tmmu("golden", "update").code == 0
    return shell
