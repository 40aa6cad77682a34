"""Python files as targets: what they may define, what settings and inputs reach, and how failures point at the line."""

from pathlib import Path

import pytest
import torch

from tmmu.codec.value_text import parse_value
from tmmu.errors import CaptureFailed, InvalidConfig, TmmuError, UnsupportedOp
from tmmu.ir.graph import Graph
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.python_object import parse_input
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

LINEAR = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width=4, depth=1):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])
    def forward(self, x):
        return self.layers(x)
"""
WHOLE = LINEAR + "model = Net\ndef inputs(batch=2, width=4):\n    return (torch.zeros(batch, width),)\n"


def graph_of(folder: Path, text: str, name: str | None = None, **options: object) -> Graph:
    path = folder / "net.py"
    path.write_text(text)
    target = f"{path}:{name}" if name else str(path)
    return lower_program(capture(CaptureRequest(model=target, **options))).graph  # type: ignore[arg-type]


def refusal_of(folder: Path, text: str, name: str | None = None, **options: object) -> TmmuError:
    with pytest.raises(TmmuError) as caught:
        graph_of(folder, text, name, **options)
    return caught.value


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nowhere_to_be_found\n", "net.py:1: ModuleNotFoundError"),
        ("model = 1 +\n", "net.py:1: invalid syntax"),
        ("x = 1\n", "defines no `model`"),
        (LINEAR + "model = Net\n", "defines no `inputs`"),
        (LINEAR + "model = 3\ninputs = ()\n", "`model` is neither"),
        (LINEAR + "model = Net\ninputs = 3\n", "`inputs` is no tensor"),
        (LINEAR + "model = Net\ninputs = torch.zeros(2, 5)\n", "net.py:9: RuntimeError"),
        (LINEAR + "model = Net\ninputs = (torch.zeros(2, 4), 1)\n", "TypeError"),
        ("raise SystemExit(3)\n", "net.py:1: SystemExit"),
        ("model = lambda: (lambda x: None)\ninputs = 1\n", "`inputs` is no tensor"),
    ],
)
def test_untraceable_files_say_why_and_in_which_line(tmp_path: Path, text: str, says: str) -> None:
    error = refusal_of(tmp_path, text)
    assert isinstance(error, CaptureFailed)
    assert says in error.what
    assert "\n" not in str(error)


def test_hints_name_the_models_of_the_file_and_what_a_model_takes(tmp_path: Path) -> None:
    assert refusal_of(tmp_path, LINEAR).fix.endswith("FILE.py:NAME, such as Net")
    assert "--input x=dtype[shape]" in refusal_of(tmp_path, LINEAR + "model = Net\n").fix


def test_control_flow_on_data_names_the_line(tmp_path: Path) -> None:
    text = (
        "import torch\ndef model():\n    def f(x):\n        if x.sum() > 0:\n            return x\n        return -x\n"
    )
    error = refusal_of(tmp_path, text + "    return f\ninputs = torch.randn(2)\n")
    assert error.what.startswith("net.py:4: DataDependentOutputException")
    assert "torch.where" in error.fix


def test_scalars_of_constants_have_values_while_tracing(tmp_path: Path) -> None:
    text = (
        "import torch\ndef model():\n    rates = [r.item() for r in torch.linspace(0, 1, 3)]\n    def f(x):\n"
        "        mask = torch.zeros(4)\n        mask[2:] = 1\n"
        "        return x * 2 if mask.sum() == 2 and rates == [0.0, 0.5, 1.0] else x\n    return f\n"
    )
    graph = graph_of(tmp_path, text + "inputs = torch.zeros(4)\n")
    assert graph.ops.target[-1] == "aten.mul.Tensor"


def test_model_without_tensor_outputs_is_refused(tmp_path: Path) -> None:
    error = refusal_of(tmp_path, "import torch\ndef model():\n    return lambda x: None\ninputs = torch.zeros(2)\n")
    assert "returns no tensor" in error.what


def test_nested_control_flow_operators_are_unsupported(tmp_path: Path) -> None:
    text = (
        "import torch\ndef model():\n    def f(x):\n"
        "        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))\n    return f\n"
    )
    error = refusal_of(tmp_path, text + "inputs = torch.zeros(2)\n")
    assert isinstance(error, UnsupportedOp), error


def test_sparse_tensors_are_unsupported(tmp_path: Path) -> None:
    text = "import torch\ndef model():\n    return lambda x: x.to_sparse()\ninputs = torch.zeros(2, 2)\n"
    assert refusal_of(tmp_path, text).code in ("UNSUPPORTED_OP", "CAPTURE_FAILED")


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


def test_missing_constructor_setting_is_named(tmp_path: Path) -> None:
    text = LINEAR.replace("width=4, depth=1", "width, depth=1")
    error = refusal_of(tmp_path, text, "Net", inputs=("x=float32[2,4]",))
    assert isinstance(error, InvalidConfig)
    assert "needs width" in error.what
    assert "--set width=VALUE" in error.fix


def test_unknown_setting_lists_the_known_ones(tmp_path: Path) -> None:
    assert "batch, depth, width" in refusal_of(tmp_path, WHOLE, settings=(("heads", "3"),)).fix


THREADED = (
    "from concurrent.futures import ThreadPoolExecutor as P\n        with P() as p:\n"
    "            return p.submit(torch.add, x, x).result() + 1"
)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return x.to(torch.float16) @ w", "mixed dtypes"),
        ("return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()", "quantized"),
        (THREADED, "another thread"),
        ("return x * 2 if torch.empty(1).item() > 0 else x", "DataDependent"),
        ("return x * 2 if torch.nn.init.normal_(torch.zeros(1)).item() > 0 else x", "DataDependent"),
    ],
)
def test_calls_that_a_real_run_refuses_or_cannot_repeat_are_refused(tmp_path: Path, body: str, says: str) -> None:
    text = f"import torch\ndef model():\n    def f(x, w):\n        {body}\n    return f\n"
    assert says in refusal_of(tmp_path, text + "inputs = (torch.zeros(4, 4), torch.zeros(4, 4))\n").what


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


@pytest.mark.parametrize(
    "raised",
    [
        "raise GeneratorExit('leaving')",
        "raise type('Rude', (BaseException,), {})('rude')",
        "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()",
    ],
)
def test_exceptions_of_any_kind_end_in_one_line(tmp_path: Path, raised: str) -> None:
    error = refusal_of(tmp_path, f"x = 1\n{raised}\n")
    assert isinstance(error, CaptureFailed)
    assert error.what.startswith("net.py:2: ")


def test_frozen_parts_stay_frozen_in_training(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\n"
        "def model():\n    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))\n    net[1].eval()\n    return net\n"
        "inputs = torch.zeros(2, 4)\ndef loss(model, x):\n    return model(x).sum()\n"
    )
    graph = graph_of(tmp_path, text, mode="backward")
    assert "state" not in graph.buffers.role


def test_missing_file_and_missing_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        capture(CaptureRequest(model=str(tmp_path / "none.py")))
    assert isinstance(refusal_of(tmp_path, LINEAR, "Nat", inputs=("x=float32[1]",)), InvalidConfig)
    with pytest.raises(InvalidConfig):
        capture(CaptureRequest(model="model.onnx"))


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


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("if not torch.isfinite(loss): return", "guards and comparisons of a loop, leave out of the step"),
        ("best.append(min(best[-1], loss.item()))", "guards and comparisons of a loop, leave out of the step"),
        ("loss.detach().numpy().sum()", "leave it out of what is planned"),
    ],
)
def test_line_of_a_loop_that_needs_values_is_told_to_be_left_out(tmp_path: Path, line: str, hint: str) -> None:
    step = f"def step(x):\n    loss = (x * w).sum()\n    {line}\n"
    text = "import torch\nbest = [1.0]\ninputs = torch.ones(4)\nw = torch.randn(4)\n" + step
    assert hint in refusal_of(tmp_path, text, "step", mode="step").fix


@pytest.mark.parametrize("line", ["", "model = 3", "model = Net()"])
def test_file_with_a_step_and_no_model_to_call_is_told_to_name_the_step(tmp_path: Path, line: str) -> None:
    step = "def step(batch):\n    return batch * 2\n"
    assert refusal_of(tmp_path, LINEAR + step + line).fix.startswith("to plan its step, name it: FILE.py:step; or ")
    assert "its step" not in refusal_of(tmp_path, LINEAR + line).fix
