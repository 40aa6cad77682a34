"""Settings and inputs of Python files: where they come from, what takes them, and the shapes of a loader's batches."""

from pathlib import Path

import pytest
import torch

from tests.unit.passes.capture.targets.pyfiles import LINEAR, WHOLE, graph_of, refusal_of
from tmmu.codec.value_text import parse_value
from tmmu.errors import CaptureFailed, InvalidConfig, TmmuError
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.python_object import parse_input
from tmmu.passes.capture.trace import capture


def test_settings_go_to_whichever_takes_them(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, WHOLE, settings=(("depth", "3"), ("batch", "7"), ("width", "8")))
    assert graph.values.shape[graph.inputs[0]] == (7, 8)
    assert graph.ops.target == ("aten.addmm.default",) * 3


def test_setting_that_nothing_takes_is_refused(tmp_path: Path) -> None:
    error = refusal_of(tmp_path, WHOLE, settings=(("heads", "3"),))
    assert isinstance(error, InvalidConfig)
    assert "'heads'" in error.what


@pytest.mark.parametrize(
    "inputs",
    [
        "inputs = (torch.zeros(2, 4),)",
        "inputs = [torch.zeros(2, 4)]",
        "inputs = torch.zeros(2, 4)",
        "inputs = {'x': torch.zeros(2, 4)}",
        "inputs = lambda: {'x': torch.zeros(2, 4)}",
    ],
)
def test_inputs_may_be_a_tensor_a_sequence_a_mapping_or_a_callable(tmp_path: Path, inputs: str) -> None:
    graph = graph_of(tmp_path, f"{LINEAR}\nmodel = Net()\n{inputs}\n")
    assert [graph.notes.buffers[graph.values.buffer[v]] for v in graph.inputs] == ["x"]


def test_class_of_a_file_takes_inputs_of_the_command_line(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, LINEAR, "Net", inputs=("x=float32[3,4]",), settings=(("depth", "2"),))
    assert len(graph.ops) == 2
    assert graph.values.shape[graph.inputs[0]] == (3, 4)


def test_function_of_tensors_is_the_program_itself(tmp_path: Path) -> None:
    text = "import torch\ndef step(x, y, scale=1.0):\n    return x * scale + y\n"
    graph = graph_of(tmp_path, text, "step", inputs=("x=float32[2]", "y=float32[2]"), settings=(("scale", "2.0"),))
    assert graph.ops.target == ("aten.mul.Tensor", "aten.add.Tensor")


def test_function_that_makes_a_module_takes_the_settings(tmp_path: Path) -> None:
    text = f"{LINEAR}\ndef build(depth=1):\n    return Net(depth=depth)\n"
    graph = graph_of(tmp_path, text, "build", inputs=("x=float32[2,4]",), settings=(("depth", "2"),))
    assert len(graph.ops) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ids=int64[1,1024]", ("ids", torch.int64, (1, 1024))),
        ("x=float32[]", ("x", torch.float32, ())),
        (" x=bool[ 2 , 3 ]", ("x", torch.bool, (2, 3))),
    ],
)
def test_inputs_are_parsed(text: str, expected: tuple[str, torch.dtype, tuple[int, ...]]) -> None:
    assert parse_input(text) == expected


@pytest.mark.parametrize(
    "text", ["ids", "ids=int64", "ids=int63[1]", "ids=int64[-1]", "ids=int64[1 2]", "=int64[1]", "i=nn[1]"]
)
def test_malformed_inputs_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_input(text)


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("2.5", 2.5), ("True", True), ("gelu", "gelu"), ("[1, 2]", [1, 2]), ("None", None)]
)
def test_settings_are_python_literals_or_text(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_unknown_input_name_lists_what_the_model_takes(tmp_path: Path) -> None:
    error = refusal_of(tmp_path, LINEAR, "Net", inputs=("z=float32[2,4]",))
    assert "'z'" in error.what
    assert "x" in error.fix


def test_missing_constructor_setting_is_named(tmp_path: Path) -> None:
    text = LINEAR.replace("width=4, depth=1", "width, depth=1")
    error = refusal_of(tmp_path, text, "Net", inputs=("x=float32[2,4]",))
    assert isinstance(error, InvalidConfig)
    assert "needs width" in error.what
    assert "--set width=VALUE" in error.fix


def test_unknown_setting_lists_the_known_ones(tmp_path: Path) -> None:
    assert "batch, depth, width" in refusal_of(tmp_path, WHOLE, settings=(("heads", "3"),)).fix


CONFIGURED = """
from collections import OrderedDict
from dataclasses import dataclass, field
import torch
from torch import nn
@dataclass
class Part:
    width: int = 4
@dataclass
class Config:
    layers: int = 1
    parts: list = field(default_factory=lambda: [Part()])
def model(config=None, name="net"):
    config = config or Config()
    return nn.Sequential(*[nn.Linear(4, part.width) for part in config.parts for _ in range(config.layers)])
inputs = torch.zeros(2, 4)
"""


@pytest.mark.parametrize(
    ("value", "parameters"),
    [
        ("Config()", 2),
        ("Config(layers=3)", 6),
        ("Config(2, parts=[Part(), Part(width=4)])", 8),
        ("Config(parts=(Part(4),))", 2),
        ("None", 2),
    ],
)
def test_settings_may_call_names_of_the_file(tmp_path: Path, value: str, parameters: int) -> None:
    graph = graph_of(tmp_path, CONFIGURED, settings=(("config", value),))
    assert graph.buffers.role.count("parameter") == parameters


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("Confg(layers=3)", "defines and imports no Confg.*it has OrderedDict, Part, Config"),
        ("eval('1')", "defines and imports no eval"),
        ("__import__('os')", "defines and imports no __import__"),
        ("torch('a')", "defines and imports no torch"),
        ("Config(depth=3)", "Config: got an unexpected keyword argument 'depth'.*it takes layers, parts"),
        ("Config(1, 2, 3)", "Config: too many positional arguments"),
        ("Config(layers=torch)", "torch is no literal"),
        ("nn.Linear(4, 4)", r"nn.Linear\(4, 4\) is no literal"),
    ],
)
def test_settings_that_call_anything_else_are_refused(tmp_path: Path, value: str, says: str) -> None:
    with pytest.raises(TmmuError, match=f"INVALID_CONFIG.*{says}"):
        graph_of(tmp_path, CONFIGURED, settings=(("config", value),))


def test_setting_whose_call_raises_names_the_line(tmp_path: Path) -> None:
    text = CONFIGURED + "class Broken:\n    def __init__(self):\n        raise ValueError('no')\n"
    with pytest.raises(TmmuError, match=r"CAPTURE_FAILED: net.py:\d+: ValueError: no .correct what makes the model"):
        graph_of(tmp_path, text, settings=(("config", "Broken()"),))


LOADER = """
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
loader = DataLoader(TensorDataset(torch.zeros(8, 4)), batch_size=2, shuffle=True)
def step(batch):
    return batch[0] * 2
"""


def shapes_of_inputs(program: CapturedProgram) -> list[tuple[int, ...]]:
    return [tuple(window.shape) for window in program.inputs]


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        ("inputs = next(iter(loader))[0]", "inference"),
        ("def inputs():\n    return next(iter(loader))[0]", "inference"),
        ("inputs = loader", "inference"),
        ("def inputs():\n    return loader", "inference"),
        ("batch = loader", "step"),
        ("for batch in loader:\n    pass", "step"),
        ("loader = DataLoader(loader.dataset, batch_size=2, shuffle=True, num_workers=2)\nbatch = loader", "step"),
        ("batch = DataLoader(loader.dataset, sampler=RandomSampler(loader.dataset), batch_size=2)", "step"),
        ("batch = DataLoader(loader.dataset, batch_sampler=BatchSampler(loader.sampler, 2, False))", "step"),
        ("batch = next(iter(DataLoader([[torch.zeros(2, 4)]], batch_size=None)))", "step"),
    ],
)
def test_batch_of_a_loader_has_its_shapes(tmp_path: Path, lines: str, mode: str) -> None:
    path = tmp_path / "net.py"
    path.write_text(LINEAR + LOADER + lines + "\n")
    target = f"{path}:{'step' if mode == 'step' else 'Net'}"
    program = capture(CaptureRequest(model=target, mode=mode, device="cpu"))
    assert shapes_of_inputs(program) == [(2, 4)]


STREAM = """
from torch.utils.data import DataLoader, IterableDataset
class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield {"x": torch.zeros(4), "y": 1}
batch = DataLoader(Stream(), batch_size=3)
def step(batch):
    return batch["x"] * batch["y"][:, None]
"""


def test_endless_stream_gives_a_batch_too(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("import torch\n" + STREAM)
    program = capture(CaptureRequest(model=f"{path}:step", mode="step", device="cpu"))
    assert shapes_of_inputs(program) == [(3, 4), (3,)]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("batch = DataLoader(TensorDataset(torch.zeros(1, 4)), batch_size=2, drop_last=True)", "without a batch"),
        ("def step():\n    return next(iter(loader))[0] * 2", "DataDependent"),
    ],
)
def test_loader_that_gives_none_is_told_what_to_write(tmp_path: Path, lines: str, says: str) -> None:
    error = refusal_of(tmp_path, LINEAR + LOADER + lines, "step", mode="step")
    assert isinstance(error, CaptureFailed)
    assert says in error.what
    assert "write one batch as the loader makes it" in error.fix
