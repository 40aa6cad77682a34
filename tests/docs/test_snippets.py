"""Every Python block of a document runs, after those before it on the page."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.commands import ROOT, documents, shown_code

TESTS = "def test_"
"""What makes a page's code a file of tests, which is given to pytest."""


def with_code() -> list[Any]:
    """Documents that show Python; all but the Python interface's are left to the slow tests."""
    pages = [document for document in documents() if shown_code(document.read_text())]
    return [pytest.param(page, marks=[] if page.name == "api.md" else [pytest.mark.slow]) for page in pages]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("document", with_code(), ids=lambda page: str(page.relative_to(ROOT)))
def test_code_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = shown_code(document.read_text())
    if TESTS in code:
        run_tests(code, tmp_path)
    else:
        exec(compile(code, document.name, "exec"), {"__name__": document.stem})


def run_tests(code: str, folder: Path) -> None:
    """The page's tests pass once their plans are recorded, and then without recording."""
    (folder / "tests").mkdir()
    (folder / "tests/test_memory.py").write_text(code)
    for option in ("--tmmu-update", "-v"):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", option, "tests/test_memory.py"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
    recorded = sorted(path.name for path in (folder / "tests/memory_plans").iterdir())
    assert recorded[0].startswith("test_memory.test_training_does_not_grow.")
