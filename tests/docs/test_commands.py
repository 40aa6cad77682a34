"""Every command that a document shows is run, and prints what the document says."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.docs.commands import ROOT, SETUP, Shown, documents, languages, matches, shown_commands
from tests.warm_server import WarmPython

DRY: Final = {"pytest": "pytest --version", "make": "make -n"}
"""Commands that would run the tests within the tests are dry runs here; ``.ci/run`` runs them."""


def session(folder: Path, shown: Shown, programs: Path) -> subprocess.CompletedProcess[str]:
    """Run one command as a person would: by a shell, in a folder, with the project's programs on the path."""
    path = os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"]))
    command = SETUP.sub("", shown.command).removeprefix(".venv/bin/")
    program, _, arguments = command.partition(" ")
    command = f"{DRY.get(program, program)} {arguments}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


class Background:
    """Commands that end in ``&``: each runs until the document is over, in a process that gets signals itself."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, folder: Path, shown: Shown) -> tuple[str, ...]:
        """As many lines as the command is said to print; it goes on."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        process = subprocess.Popen(
            ["bash", "-c", "exec " + shown.command.removesuffix("&")],
            cwd=folder,
            env=os.environ | {"PATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        return tuple(process.stdout.readline().rstrip() for _ in shown.output)

    def end(self) -> None:
        """Each ends by SIGTERM, with 0."""
        for process in self._processes:
            process.terminate()
            process.communicate(timeout=60)
            assert process.returncode == 0


@pytest.fixture
def background() -> Iterator[Background]:
    background = Background()
    yield background
    background.end()


def relative(document: Path) -> str:
    return str(document.relative_to(ROOT))


def with_commands() -> list[Any]:
    """Documents that show commands; all but the README are left to the slow tests."""
    shown = [document for document in documents() if shown_commands(document.read_text())]
    return [
        pytest.param(document, marks=[] if document.name == "README.md" else [pytest.mark.slow]) for document in shown
    ]


@pytest.mark.parametrize("document", with_commands(), ids=relative)
def test_commands_print_what_the_document_shows(
    document: Path, tmp_path: Path, warm_python: WarmPython, background: Background
) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "golden", tmp_path / "golden")
    for shown in shown_commands(document.read_text()):
        if shown.command.endswith(" &"):
            assert background.start(tmp_path, shown) == shown.output, f"$ {shown.command}"
            continue
        done = session(tmp_path, shown, warm_python.tmmu().parent)
        printed = tuple(line.rstrip() for line in done.stdout.splitlines())
        program = SETUP.sub("", shown.command).split()[0]
        assert program in DRY or matches(shown.output, printed), f"$ {shown.command}\n{done.stdout}"
        refused = any(line.startswith("tmmu: ") for line in printed)
        assert (done.returncode != 0) == refused, f"$ {shown.command}: exit {done.returncode}"


def test_readme_sets_up_with_two_commands() -> None:
    setups = [shown.command for shown in shown_commands((ROOT / "README.md").read_text()) if SETUP.match(shown.command)]
    assert [SETUP.sub("", command).split()[0] for command in setups] == ["tmmu", "pytest"]


@pytest.mark.parametrize("document", documents(), ids=relative)
def test_commands_are_in_console_blocks_only(document: Path) -> None:
    assert not {"sh", "bash", "shell", ""} & set(languages(document.read_text()))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (("a", "b"), ("a", "b"), True),
        (("a",), ("a", "b"), False),
        (("a", "...", "d"), ("a", "b", "c", "d"), True),
        (("a", "...", "d"), ("a", "b"), False),
        (("...",), (), True),
        (("a.c",), ("abc",), False),
    ],
)
def test_three_dots_stand_for_any_lines(shown: tuple[str, ...], printed: tuple[str, ...], same: bool) -> None:
    assert matches(shown, printed) is same
