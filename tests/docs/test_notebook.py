"""The notebook of the examples runs, and prints what is stored in it."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.docs.commands import ROOT
from tools.notebook import executed

NOTEBOOK = ROOT / "examples/quickstart.ipynb"


def outputs(notebook: Any) -> list[list[Any]]:
    return [[dict(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_notebook_prints_what_is_stored(tmp_path: Path) -> None:
    stored = outputs(nbformat.read(NOTEBOOK, as_version=4))
    assert outputs(executed(NOTEBOOK, tmp_path)) == stored
    assert {path.name for path in tmp_path.iterdir()} >= {"step.html"}


def test_stored_notebook_is_whole_and_of_no_machine() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    stored = outputs(notebook)
    assert all(stored[1:])
    text = NOTEBOOK.read_text()
    assert not [word for word in ("stderr", "/home/", "/tmp/", "iopub", " at 0x", "Traceback") if word in text]
