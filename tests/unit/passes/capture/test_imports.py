"""Packages that are imported while a model is traced: as without a trace, and once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tmmu.passes.capture import imports
from tmmu.passes.capture.eager_model import EagerModel
from tmmu.passes.capture.replace import replace_attribute
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture

REGISTERING = """
import torch
import {name}_registry

assert not {name}_registry.NAMES, "registered twice"
{name}_registry.NAMES.append("one")
table = torch.tensor([1.0, 2.0])
assert table.tolist() == [1.0, 2.0]
"""
USER = """
import torch
{first}

class Scaled(torch.nn.Module):
    def forward(self, x):
        import {name}
        return x * {name}.table

model = Scaled

def inputs():
    return (torch.randn(2),)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, in which a module registers something with another one."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(imports, "installed_folders", lambda: (str(folder),))
    return folder


@pytest.mark.parametrize("first", ["import {name}", ""], ids=["by the file", "by its forward"])
def test_package_with_a_tensor_is_imported_once_for_the_trace_and_the_run(
    installed: Path, tmp_path: Path, first: str
) -> None:
    name = "registering_early" if first else "registering_late"
    (installed / f"{name}_registry.py").write_text("NAMES = []\n")
    (installed / f"{name}.py").write_text(REGISTERING.format(name=name))
    file = tmp_path / "scaled.py"
    file.write_text(USER.format(name=name, first=first.format(name=name)))
    request = CaptureRequest(model=str(file), device="cpu")
    program = capture(request)
    assert sorted(str(storage.role) for storage in program.storages) == ["None", "constant", "input"]
    model = EagerModel(request)
    (result,) = model.run()
    assert torch.equal(result, model.inputs["x"] * torch.tensor([1.0, 2.0]))
    module = sys.modules[name]
    assert type(module.table) is torch.Tensor
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert type(module.__loader__).__name__ == "SourceFileLoader"


def test_search_path_of_imports_is_as_before() -> None:
    before = list(sys.meta_path)
    with imports.ordinary_imports():
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before


def test_module_that_nobody_has_is_still_not_found() -> None:
    with imports.ordinary_imports(), pytest.raises(ModuleNotFoundError, match="no_such_package_of_anybody"):
        __import__("no_such_package_of_anybody")


def test_a_block_of_a_module_begins_when_somebody_imports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "awaited_module.py").write_text("made = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[object] = []

    @contextmanager
    def replaced(module: ModuleType) -> Iterator[None]:
        with replace_attribute(module, "made", 2):
            yield
        seen.append(module.made)

    before = list(sys.meta_path)
    with imports.from_import_on("awaited_module", replaced), imports.ordinary_imports():
        assert "awaited_module" not in sys.modules
        module = import_module("awaited_module")
        assert module.made == 2
    assert (module.made, seen, sys.meta_path) == (1, [1], before)
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    with imports.from_import_on("awaited_module", replaced):
        assert module.made == 2
    with imports.from_import_on("nobody_imports_this", replaced), pytest.raises(ModuleNotFoundError):
        __import__("nobody_imports_that")
    assert (seen, sys.meta_path) == ([1, 1], before)
