"""Source lines are the same on every machine: relative to the model's folder, or to the package of a library."""

from pathlib import Path

import pytest

from tmmu.passes.capture.sources import display_name


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("net.py", "net.py"),
        ("parts/layer.py", "parts/layer.py"),
        (".venv/lib/python3.11/site-packages/library/inner/layer.py", "library/inner/layer.py"),
        (".venv/lib/python3.11/site-packages/single.py", "single.py"),
        ("../elsewhere/library/layer.py", "library/layer.py"),
        ("../elsewhere/script.py", "script.py"),
    ],
)
def test_names_are_relative_to_folder_or_package(tmp_path: Path, file: str, name: str) -> None:
    path = (tmp_path / "model" / file).resolve()
    path.parent.mkdir(parents=True)
    for package in [path.parent, *path.parents]:
        if package.name in ("library", "inner"):
            (package / "__init__.py").write_text("")
    assert display_name(str(path), str(tmp_path / "model")) == name
