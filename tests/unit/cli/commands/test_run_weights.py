"""``tmmu run``: the origin of weights, matched by name, shape and memory format, and reported."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.unit.cli.commands.test_run import ran
from tests.unit.cli.graphs import Shell
from tmmu.passes.capture.eager_model import EagerModel
from tmmu.runtime.compare import run as rehearse
from tmmu.runtime.execute.executor import Executor

HEAD = "import torch\nfrom torch import nn\n"
TURNED = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.turned = nn.Parameter(torch.randn(4, 3).t())
        self.register_buffer("number", torch.arange(4))
        self.to(memory_format=torch.channels_last)
    def forward(self, x):
        return self.conv(x).mean((2, 3)) @ self.turned + self.number
model = Net
inputs = (torch.zeros(2, 2, 4, 4),)
"""
)
SAME_NAME = HEAD + (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.x = nn.Parameter(torch.randn(4))\n"
    "    def forward(self, x):\n        return x * self.x\nmodel = Net\ninputs = (torch.zeros(3, 4),)\n"
)
COMPLEX = HEAD + (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.w = nn.Parameter(torch.randn(2, 3, dtype=DTYPE).t())\n"
    "    def forward(self, x):\n        return x * self.w\nmodel = Net\ninputs = (torch.zeros(3, 2),)\n"
)


@pytest.fixture
def recorded_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Mapping[str, torch.Tensor], torch.Tensor]]:
    """Of each run, the inputs and the first output."""
    runs: list[tuple[Mapping[str, torch.Tensor], torch.Tensor]] = []
    original = Executor.run

    def run(self: Executor, inputs: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        outputs = original(self, inputs, **kwargs)
        runs.append((dict(inputs), outputs[0].clone()))
        return outputs

    monkeypatch.setattr(Executor, "run", run)
    return runs


def module_of(text: str) -> nn.Module:
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    module = namespace["model"]()
    assert isinstance(module, nn.Module)
    return module


@pytest.mark.parametrize("ring", [(), ("--ring", "--budget", "1MiB")])
def test_weights_of_a_file_are_those_of_load_state_dict_in_any_memory_format(
    shell: Shell, recorded_runs: list[Any], ring: tuple[str, ...]
) -> None:
    Path("net.py").write_text(TURNED)
    module = module_of(TURNED)
    tensors = {name: torch.rand_like(t).contiguous() for name, t in module.named_parameters()}
    save_file({**tensors, "more": torch.ones(3)}, "w.safetensors")
    record = ran(shell, "net.py", "--weights", "w.safetensors", "--check", *ring)
    module.load_state_dict(tensors, strict=False)
    ((inputs, output),) = recorded_runs
    torch.testing.assert_close(output, module(inputs["x"]), rtol=1e-5, atol=1e-6)
    assert (record["same"] + record["near"], record["weights"]) == (1, {"file": 3, "numbers": 1})


def test_model_itself_has_weights_of_its_own(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--check`` loads the file in another way, and so finds bytes in the wrong place."""
    Path("net.py").write_text(TURNED)
    save_file({name: torch.rand(t.shape) for name, t in module_of(TURNED).named_parameters()}, "w.safetensors")
    monkeypatch.setattr(rehearse, "file_source_like", lambda source, like: source)
    done = shell.tmmu("run", "net.py", "--weights", "w.safetensors", "--check")
    assert (done.code, "CAPTURE_FAILED: output 0 is not what the model itself gives" in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("name", "misfit", "message"),
    [
        ("conv.weight", torch.ones(2, 3, 2, 2), "conv.weight is float32[2,3,2,2] in w.safetensors, and float32[3,"),
        ("turned", torch.ones(4, 3), "turned is float32[4,3] in w.safetensors, and float32[3,4] in the model"),
        ("turned", torch.ones(12), "turned is float32[12] in w.safetensors, and float32[3,4] in the model"),
        ("conv.bias", torch.ones(4), "conv.bias is float32[4] in w.safetensors, and float32[3] in the model"),
        ("conv.bias", torch.ones(3).half(), "conv.bias is float16[3] in w.safetensors, and float32[3] in the model"),
        ("number", torch.ones(2, 2).long(), "number is int64[2,2] in w.safetensors, and int64[4] in the model"),
    ],
)  # fmt: skip
def test_tensor_of_another_shape_is_refused(shell: Shell, name: str, misfit: torch.Tensor, message: str) -> None:
    Path("net.py").write_text(TURNED)
    tensors = {key: tensor.detach().clone().contiguous() for key, tensor in module_of(TURNED).state_dict().items()}
    save_file(tensors | {name: misfit}, "w.safetensors")
    done = shell.tmmu("run", "net.py", "--weights", "w.safetensors")
    assert (done.code, message in done.err, len(done.err.splitlines())) == (2, True, 1), done.err
    assert "ring" not in done.err


def test_weight_that_the_graph_does_not_read_need_not_fit(shell: Shell) -> None:
    Path("net.py").write_text(TURNED.replace("super().__init__()", "super().__init__(); self.spare = nn.Linear(2, 2)"))
    tensors = {name: torch.rand(t.shape) for name, t in module_of(TURNED).named_parameters()}
    save_file({**tensors, "spare.weight": torch.ones(5)}, "w.safetensors")
    assert ran(shell, "net.py", "--weights", "w.safetensors", "--check")["weights"]["file"] == 3


@pytest.mark.parametrize("shape", [(3, 4), (4,)])
def test_weight_with_the_name_of_an_input_is_a_weight(
    shell: Shell, recorded_runs: list[Any], shape: tuple[int, ...]
) -> None:
    text = SAME_NAME.replace("torch.randn(4)", f"torch.randn{shape}")
    Path("net.py").write_text(text)
    assert ran(shell, "net.py", "--check", "--sanitize")["same"] == 1
    save_file({"x": torch.full(shape, 3.0)}, "w.safetensors")
    recorded_runs.clear()
    assert ran(shell, "net.py", "--weights", "w.safetensors", "--check")["weights"] == {"file": 1}
    assert recorded_runs[0][1].equal(recorded_runs[0][0]["x"] * 3)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_weights_are_drawn_and_come_in_pairs_from_files(
    shell: Shell, recorded_runs: list[Any], dtype: torch.dtype
) -> None:
    Path("net.py").write_text(COMPLEX.replace("DTYPE", str(dtype)))
    assert ran(shell, "net.py", "--check")["same"] == 1
    drawn = recorded_runs[0][1] / recorded_runs[0][0]["x"]
    assert (drawn.real.unique().numel(), drawn.imag.abs().min().item() > 0) == (6, True)
    value = torch.randn(3, 2, dtype=dtype)
    files = [{"w": torch.view_as_real(value).contiguous()}] + [{"w": value}] * (dtype == torch.complex64)
    for tensors in files:
        save_file(tensors, "w.safetensors")
        recorded_runs.clear()
        assert ran(shell, "net.py", "--weights", "w.safetensors", "--check")["same"] == 1
        assert recorded_runs[0][1].equal(recorded_runs[0][0]["x"] * value)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("torch.randn(4, 2)[:, 0]", "x is a part of a tensor in the model"),
        ("torch.randn(8)[:4]", "x in w.safetensors has 16 bytes, and its place in the plan 32"),
    ],
)
def test_part_of_a_storage_cannot_come_from_a_file(shell: Shell, part: str, message: str) -> None:
    Path("net.py").write_text(SAME_NAME.replace("torch.randn(4)", part))
    assert ran(shell, "net.py", "--check")["same"] == 1
    save_file({"x": torch.ones(4)}, "w.safetensors")
    done = shell.tmmu("run", "net.py", "--weights", "w.safetensors")
    assert (done.code, f"INVALID_CONFIG: {message}" in done.err) == (2, True), done.err


def test_report_counts_weights_of_an_exported_program(shell: Shell) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    torch.export.save(torch.export.export(module, (torch.randn(2, 4),)), "m.pt2")
    save_file({"0.bias": torch.ones(3)}, "some.safetensors")
    save_file({"0.bias": torch.ones(3), "0.weight": torch.ones(3, 4)}, "all.safetensors")
    for more, message in (
        ((), "weights of m.pt2"),
        (("--weights", "some.safetensors"), "weights: 1 of some.safetensors and 1 of m.pt2"),
        (("--weights", "all.safetensors"), "weights of all.safetensors"),
    ):
        done = shell.tmmu("run", "m.pt2", "--check", *more)
        assert (done.code, done.out.splitlines()[0].split(" ops, ")[1]) == (0, message), done.err


@pytest.mark.parametrize("names", [("other.weight",), ("input",), ()])
def test_file_with_nothing_of_the_model_is_refused(shell: Shell, names: tuple[str, ...]) -> None:
    torch.export.save(torch.export.export(nn.Linear(4, 3), (torch.randn(2, 4),)), "m.pt2")
    save_file({name: torch.ones(2, 4) for name in names}, "w.safetensors")
    done = shell.tmmu("run", "m.pt2", "--weights", "w.safetensors")
    assert (done.code, re.search(r"nothing in .*w.safetensors is a weight of this model", done.err) is not None) == (
        2,
        True,
    ), done.err


def test_empty_outputs_are_as_many_as_the_model_gives(shell: Shell) -> None:
    Path("net.py").write_text(
        HEAD + "class Net(nn.Linear):\n    def forward(self, x, y):\n        return super().forward(x), y.relu(), x\n"
        "model = lambda: Net(4, 4)\ninputs = (torch.zeros(0, 4), torch.zeros(0, 4))\n"
    )
    record = ran(shell, "net.py", "--check")
    assert (record["same"], len(record["inputs"]), len(record["outputs"])) == (3, 2, 3)


@pytest.mark.parametrize("output", ["reshape(4, 3)", "view(torch.int32)"])
def test_output_of_the_same_bytes_and_another_type_is_another(
    shell: Shell, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("net.py").write_text(SAME_NAME)
    original = EagerModel.run
    monkeypatch.setattr(
        EagerModel, "run", lambda self: [eval(f"t.{output}", {"t": t, "torch": torch}) for t in original(self)]
    )
    done = shell.tmmu("run", "net.py", "--check")
    assert (done.code, "CAPTURE_FAILED: output 0 is not what the model itself gives" in done.err) == (2, True), done.err
