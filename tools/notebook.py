"""Run a notebook in a folder of its own and write it back with what it printed.

    python -m tools.notebook examples/quickstart.ipynb

Nothing of a machine is stored: no times, no addresses, no warnings on stderr.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def executed(path: Path, folder: Path, *, seconds: int = 300) -> NotebookNode:
    """The notebook with the outputs of a run in ``folder``; raises where a cell does."""
    notebook = nbformat.read(path, as_version=4)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    client = NotebookClient(
        notebook, timeout=seconds, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=os.environ | {"PATH": programs})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [_of_any_machine(output) for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def _of_any_machine(output: NotebookNode) -> NotebookNode:
    texts = output.get("data", {})
    for form, text in texts.items():
        texts[form] = ADDRESS.sub("", text) if isinstance(text, str) else text
    return output


def main() -> None:
    """Write each notebook that is named."""
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(Path(name), Path(folder)), name)


if __name__ == "__main__":
    main()
