"""Importable objects as targets: found in the current folder and the environment, or refused as a file's would be."""

from pathlib import Path

import pytest
import torch

from tmmu.errors import CaptureFailed, InvalidConfig, TmmuError
from tmmu.ir.graph import Graph
from tmmu.passes.capture.eager_model import EagerModel
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets import import_folder, source_folder
from tmmu.passes.capture.targets.named_module import split_name
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

NET = """
import torch
from torch import nn
TABLE = torch.arange(4.0)
class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.line = nn.Linear(width, 4)
    def forward(self, x):
        return self.line(x) * TABLE
def inputs():
    return torch.ones(2, 4)
"""
FILES = {
    "__init__.py": "",
    "net.py": NET,
    "unfinished.py": "x = 1 +\n",
    "needy.py": "import nowhere_to_be_found\n",
    "inner/__init__.py": "from . import net\n",
    "inner/net.py": "from ..net import Net, inputs\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package in the current folder, unknown to other tests."""
    name = f"package_of_{tmp_path.name}"
    for path, text in FILES.items():
        (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    return name


def graph_of(target: str, **options: object) -> Graph:
    return lower_program(capture(CaptureRequest(model=target, device="cpu", **options))).graph  # type: ignore[arg-type]


def refusal_of(target: str) -> TmmuError:
    with pytest.raises(TmmuError) as caught:
        graph_of(target)
    assert "\n" not in str(caught.value)
    return caught.value


def test_sources_of_a_module_start_with_its_package(package: str) -> None:
    graph = graph_of(f"{package}.net:Net")
    assert graph.notes.ops.source == (f"{package}/net.py:10",) * 2
    assert graph_of(f"{package}.inner.net:Net").notes.ops.source == graph.notes.ops.source
    assert graph.notes.name == "Net"


def test_settings_and_inputs_reach_an_object_of_a_module(package: str) -> None:
    graph = graph_of(f"{package}.net:Net", inputs=("x=float32[3,8]",), settings=(("width", "8"),))
    assert graph.values.shape[graph.inputs[0]] == (3, 8)


def test_module_at_the_top_has_its_own_folder(package: str) -> None:
    Path(f"{package}_file.py").write_text(NET)
    assert graph_of(f"{package}_file:Net").notes.ops.source == (f"{package}_file.py:10",) * 2


def test_module_of_the_environment_has_its_packages_folder() -> None:
    assert source_folder("torch.nn.modules.linear:Linear") == str(Path(torch.__file__).parents[1])
    assert source_folder("sys:path") == source_folder("no_such_module:Net") == ""
    sizes = (("in_features", "4"), ("out_features", "2"))
    graph = graph_of("torch.nn:Linear", inputs=("input=float32[2,4]",), settings=sizes)
    assert graph.ops.target == ("aten.addmm.default",)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no_such_module:Net", "no module 'no_such_module'"),
        ("{}.nat:Net", "no module '{}.nat'"),
        ("{}.net.deeper:Net", "no module '{}.net.deeper'"),
        ("{}.net:Nat", "no 'Nat' in the module"),
        ("{}:Net", "no 'Net' in the package"),
        ("{}.inner:net", "{}.inner:net is a module"),
        ("{}.net", "'{}.net' is no target"),
    ],
)
def test_names_that_lead_nowhere_are_the_callers_fault(package: str, target: str, says: str) -> None:
    error = refusal_of(target.format(package))
    assert isinstance(error, InvalidConfig)
    assert says.format(package) in error.what


def test_packages_without_the_name_tell_where_to_look(package: str) -> None:
    assert f"{package}.MODULE:Net" in refusal_of(f"{package}:Net").fix
    assert f"{package}.inner.net:NAME" in refusal_of(f"{package}.inner:net").fix


@pytest.mark.parametrize(
    ("module", "says"),
    [("unfinished", "/unfinished.py:1: invalid syntax"), ("needy", "/needy.py:1: ModuleNotFoundError")],
)
def test_imports_that_fail_inside_name_the_line(package: str, module: str, says: str) -> None:
    error = refusal_of(f"{package}.{module}:Net")
    assert isinstance(error, CaptureFailed)
    assert error.what.startswith(f"{package}{says}")


@pytest.mark.parametrize("target", ["net.pt2", "a b:c", "net:", ":Net", "a..b:c", "C:/net", "./net:Net"])
def test_texts_that_are_no_identifiers_name_no_module(target: str) -> None:
    assert split_name(target) is None


def test_files_and_configurations_are_no_modules() -> None:
    assert import_folder("models/net.py:Net") == str(Path.cwd() / "models")
    assert import_folder("hf:net") == ""
    assert import_folder("net:Net") == str(Path.cwd())


@pytest.mark.parametrize("form", ["{}.net:Net", "{}/net.py:Net", "neighbour.py:Net"])
def test_tensors_made_at_import_are_real_in_a_real_run(package: str, form: str) -> None:
    Path("neighbour.py").write_text(f"from {package}.net import Net, inputs\n")
    request = CaptureRequest(model=form.format(package), device="cpu")
    capture(request)
    assert type(EagerModel(request).run()[0]) is torch.Tensor
