import shutil
from pathlib import Path

import pytest

from tests.golden.graphs import FOLDER, SMALL
from tests.unit.cli.graphs import Done, Shell
from tmmu.cli.app import run


class OneProcessShell(Shell):
    """Plans golden cases in this process where the command does not say in how many: a new one costs a second."""

    def tmmu(self, *arguments: object) -> Done:
        plans = arguments[:2] in {("golden", "check"), ("golden", "update")}
        return super().tmmu(*arguments, *(("--jobs", 1) if plans and "--jobs" not in arguments else ()))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The program, run in a folder that has a copy of the golden files, less the case that takes a minute."""
    shutil.copytree(FOLDER, tmp_path / "golden")
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


@pytest.fixture(scope="session")
def little_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two recorded golden cases, one of them with ``keep``; only to be copied."""
    folder = tmp_path_factory.mktemp("little") / "golden"
    folder.mkdir()
    (folder / "cases.toml").write_text(SMALL)
    for name in ("diamond", "mixed-roles"):
        shutil.copy(FOLDER / f"{name}.ir.cbor", folder)
    assert run(["golden", "update", "--jobs", "1", "--dir", str(folder)]) == 0
    return folder


@pytest.fixture
def little(
    little_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """The program in a new folder with a copy of ``little_files``."""
    shutil.copytree(little_files, tmp_path / "golden")
    monkeypatch.chdir(tmp_path)
    return OneProcessShell(tmp_path, capsys)
