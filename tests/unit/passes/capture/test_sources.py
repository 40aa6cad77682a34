"""Source lines are the same on every machine: relative to the model's folder, or to the package of a library."""

from pathlib import Path

import pytest
import torch

from tmmu.errors import CaptureFailed
from tmmu.passes.capture import sources
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.sources import display_name
from tmmu.passes.capture.trace import capture


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


NET = """
import {library} as library
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return library.apply(x)
model = Net
def inputs(): return (torch.randn(2, 4),)
"""


def trace_with_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> CapturedProgram:
    """A model that calls ``name.apply``, of a package that is installed."""
    package = tmp_path / "site-packages" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"def apply(x):\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    (tmp_path / "net.py").write_text(NET.format(library=name))
    return capture(CaptureRequest(model=str(tmp_path / "net.py"), device="cpu"))


def test_packages_whose_names_begin_with_torch_are_not_torch() -> None:
    beside = Path(torch.__file__).parents[1]
    assert not sources.is_library(str(beside / "torchvision" / "ops" / "boxes.py"))
    assert sources.is_library(str(beside / "torch" / "nn" / "functional.py"))


def test_failures_name_the_line_of_the_model_and_that_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CaptureFailed, match=r"^CAPTURE_FAILED: net\.py:6 \(torch_made/__init__\.py:2\): RuntimeError"):
        trace_with_library(tmp_path, monkeypatch, "torch_made", "return x @ x")


def test_refusals_name_the_line_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaptureFailed, match=r"net\.py:6 \(torch_odd/__init__\.py:2\): aten.mm.default of"):
        trace_with_library(tmp_path, monkeypatch, "torch_odd", "return x @ x.t().double()")
