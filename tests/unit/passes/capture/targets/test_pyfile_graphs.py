"""Graphs of Python files: weights that are tied, copied or converted, values that are known, and lines and imports."""

from pathlib import Path

import pytest

from tests.unit.passes.capture.targets.pyfiles import LINEAR, WHOLE, graph_of
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program


def test_file_inside_a_package_may_import_its_neighbours(tmp_path: Path) -> None:
    package = tmp_path / "pack_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(LINEAR)
    (package / "net.py").write_text("from .parts import Net\nimport torch\nmodel = Net\ninputs = torch.zeros(2, 4)\n")
    graph = lower_program(capture(CaptureRequest(model=str(package / "net.py")))).graph
    assert graph.notes.ops.source == ("parts.py:9",)


def test_tied_weights_are_one_buffer(tmp_path: Path) -> None:
    text = (
        LINEAR
        + "def model():\n    net = Net(depth=2)\n    net.layers[1].weight = net.layers[0].weight\n    return net\n"
    )
    graph = graph_of(tmp_path, text + "inputs = torch.zeros(2, 4)\n")
    assert graph.buffers.role.count("parameter") == 3


@pytest.mark.parametrize("convert", [".to(torch.bfloat16)", ".half()", ".double()", ".cuda()", ".to('cuda:0')"])
def test_conversions_keep_tied_weights_tied(tmp_path: Path, convert: str) -> None:
    text = LINEAR + (
        "def model():\n    net = Net(depth=2)\n    net.layers[1].weight = net.layers[0].weight\n"
        f"    return net{convert}\n"
        "def inputs():\n    return torch.zeros(2, 4, dtype=next(model().parameters()).dtype, device='cuda')\n"
    )
    graph = graph_of(tmp_path, text)
    assert graph.buffers.role.count("parameter") == 3


def test_source_lines_are_relative_and_name_the_users_line(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, WHOLE)
    assert graph.notes.ops.source == ("net.py:9",)
    assert graph.notes.ops.module == ("layers.0",)


def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, WHOLE, settings=(("width", "1048576"), ("depth", "4")))
    assert sum(graph.buffers.bytes) > 16 * 2**40


def test_scalars_of_constants_have_values_while_tracing(tmp_path: Path) -> None:
    text = (
        "import torch\ndef model():\n    rates = [r.item() for r in torch.linspace(0, 1, 3)]\n    def f(x):\n"
        "        mask = torch.zeros(4)\n        mask[2:] = 1\n"
        "        return x * 2 if mask.sum() == 2 and rates == [0.0, 0.5, 1.0] else x\n    return f\n"
    )
    graph = graph_of(tmp_path, text + "inputs = torch.zeros(4)\n")
    assert graph.ops.target[-1] == "aten.mul.Tensor"


def test_deep_copies_are_modules_of_their_own(tmp_path: Path) -> None:
    text = LINEAR + (
        "import copy\ndef model():\n    net = Net()\n"
        "    return nn.Sequential(net, copy.deepcopy(net), copy.copy(net))\n"
        "inputs = torch.zeros(2, 4)\n"
    )
    graph = graph_of(tmp_path, text)
    assert graph.buffers.role.count("parameter") == 4
    assert len(graph.ops) == 3


def test_deep_copies_keep_buffers_and_ties(tmp_path: Path) -> None:
    text = (
        "import copy, torch\nfrom torch import nn\ndef model():\n    norm = nn.BatchNorm1d(4)\n"
        "    norm.register_buffer('count', torch.tensor(3))\n"
        "    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))\n"
        "    tied[1].weight = tied[0].weight\n    return nn.Sequential(copy.deepcopy(norm), *copy.deepcopy(tied))\n"
        "inputs = torch.zeros(2, 4)\n"
    )
    graph = graph_of(tmp_path, text)
    names = [n for n, r in zip(graph.notes.buffers, graph.buffers.role, strict=True) if r == "parameter"]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias"]


def test_compiled_module_is_planned_as_it_was(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, LINEAR + "def model():\n    return torch.compile(Net())\ninputs = torch.zeros(2, 4)\n")
    assert graph.ops.target == ("aten.addmm.default",)


def test_constant_initializers_have_values(tmp_path: Path) -> None:
    text = LINEAR + (
        "def model():\n    width = torch.nn.init.constant_(torch.empty(1), 4.0)\n    return Net(int(width.item()))\n"
        "inputs = torch.zeros(2, 4)\n"
    )
    assert graph_of(tmp_path, text).ops.target == ("aten.addmm.default",)


def test_replaced_data_is_read_from_its_new_storage(tmp_path: Path) -> None:
    text = (
        "import torch\ndef model():\n    def f(x):\n        y = torch.zeros(4)\n        y.data = x[1] * 3\n"
        "        return y * 2\n    return f\ninputs = torch.zeros(2, 4)\n"
    )
    graph = graph_of(tmp_path, text)
    tripled = graph.values.buffer[graph.ops.writes[-2][0]]
    assert [graph.values.buffer[v] for v in graph.ops.reads[-1]] == [tripled]


def test_resized_storage_counts_at_its_largest(tmp_path: Path) -> None:
    text = "import torch\ndef model():\n    return lambda x: torch.add(x, x, out=torch.empty(0))\n"
    text += "inputs = torch.zeros(8)\n"
    graph = graph_of(tmp_path, text)
    assert graph.buffers.bytes[graph.values.buffer[graph.outputs[0]]] == 32


def test_neighbour_may_be_imported_late(tmp_path: Path) -> None:
    (tmp_path / "late_neighbour.py").write_text(LINEAR)
    text = "import torch\ndef model():\n    from late_neighbour import Net\n    return Net()\n"
    graph = graph_of(tmp_path, text + "inputs = torch.zeros(2, 4)\n")
    assert len(graph.ops) == 1


def test_frozen_parts_stay_frozen_in_training(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\n"
        "def model():\n    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))\n    net[1].eval()\n    return net\n"
        "inputs = torch.zeros(2, 4)\ndef loss(model, x):\n    return model(x).sum()\n"
    )
    graph = graph_of(tmp_path, text, mode="backward")
    assert "state" not in graph.buffers.role


def test_a_model_is_asked_for_no_attribute_that_it_may_refuse(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\n"
        "class Strict(torch.nn.Linear):\n"
        "    def __getattr__(self, name):\n"
        "        if name.startswith('_orig'):\n"
        "            raise RuntimeError(f'no {name}')\n"
        "        return super().__getattr__(name)\n"
        "model = Strict(8, 8)\n"
        "inputs = torch.zeros(2, 8)\n"
    )
    assert capture(CaptureRequest(model=str(path), device="cpu")).outputs
