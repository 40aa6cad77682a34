"""``tmmu run``: a run inside the plan, compared bit for bit, with random or recorded weights; refusals."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.kernels import plain_kernels
from tests.unit.cli.graphs import Shell
from tmmu.runtime.compare import run as rehearse
from tmmu.runtime.execute import bind
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.weights import sources

NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        self.register_buffer("scale", torch.arange(8).float().div(8).add(0.5))
        self.register_buffer("noise", torch.randn(4))
        self.register_buffer("index", torch.tensor([1, 0, 3, 2]))
    def forward(self, x):
        y = self.norm(self.conv(x)).relu().mean((2, 3)) * self.scale + torch.tensor([1.0] * 8)
        return (self.head(y) + self.noise)[:, self.index]
def loss(model, x):
    return model(x).square().mean()
model = Net
inputs = (torch.zeros(2, 3, 8, 8),)
"""
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50, "dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def net(shell: Shell) -> Path:
    path = Path("net.py")
    path.write_text(NET)
    return path


def ran(shell: Shell, *arguments: object) -> dict[str, Any]:
    done = shell.tmmu("run", *arguments, "--json")
    assert done.code == 0, done.err
    record: dict[str, Any] = json.loads(done.out)
    return record


@pytest.mark.parametrize("more", [(), ("--mode", "backward"), ("--mode", "backward", "--optimizer", "adamw")])
def test_run_has_the_bits_of_a_run_without_a_plan(shell: Shell, net: Path, more: tuple[str, ...]) -> None:
    record = ran(shell, net, "--check", *more)
    assert record["checked"] == len(record["outputs"]) + {0: 0, 2: 3, 4: 3 + 6 * 4}[len(more)]
    assert record["inputs"] == ["x float32[2,3,8,8]"]
    assert record["peak_bytes"]["stack"] > 0
    assert any(row["operator"].startswith("aten.convolution") for row in record["unplanned"])
    assert shell.files() == ("net.py",)


def test_random_operators_draw_the_same_in_all_runs(shell: Shell) -> None:
    Path("net.py").write_text(NET.replace("self.head(y)", "nn.functional.dropout(self.head(y), 0.5)"))
    record = ran(shell, "net.py", "--check", "--sanitize")
    assert (record["checked"], record["same"] + record["near"]) == (1, 1)
    assert record["sanitized"] > 10


def test_recurrent_step_has_the_models_bits_and_passes_the_sanitizer(shell: Shell) -> None:
    Path("net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.lstm = nn.LSTM(8, 20, 2)\n"
        "    def forward(self, x):\n        return self.lstm(x)[0]\n"
        "model = Net()\ndef inputs():\n    return (torch.randn(5, 3, 8),)\n"
        "def loss(model, x):\n    return model(x).square().sum()\n"
    )
    record = ran(shell, "net.py", "--mode", "backward", "--check", "--sanitize")
    assert (record["checked"], record["same"]) == (9, 9)
    assert record["sanitized"] > 10


@pytest.mark.parametrize("more", [(), ("--mode", "backward"), ("--mode", "backward", "--optimizer", "adamw")])
def test_run_gives_what_the_model_itself_gives(shell: Shell, net: Path, more: tuple[str, ...]) -> None:
    with plain_kernels():
        record = ran(shell, net, "--check", *more)
    assert (record["same"], record["near"]) == (record["checked"], 0)


def test_forward_half_is_compared_with_the_model(shell: Shell, net: Path) -> None:
    with plain_kernels():
        record = ran(shell, net, "--check", "--mode", "forward")
    assert (record["same"], record["near"]) == (len(record["outputs"]), 0)


def test_model_that_gives_something_else_each_time_is_found(shell: Shell) -> None:
    again = "import math\nmath.calls = getattr(math, 'calls', 0) + 1\n"
    counting = again + NET.replace("return (self", "return math.calls * (self")
    Path("net.py").write_text(counting)
    done = shell.tmmu("run", "net.py", "--check")
    assert (done.code, "CAPTURE_FAILED: output 0 is not what the model itself gives" in done.err) == (2, True)


def test_model_that_keeps_something_else_each_time_is_found(shell: Shell) -> None:
    again = "import math\nmath.calls = getattr(math, 'calls', 0) + 1\n"
    keeping = NET.replace("super().__init__()", "super().__init__(); self.register_buffer('kept', torch.zeros(2))")
    counting = keeping.replace("return (self", "self.kept.add_(math.calls); return (self")
    assert counting != keeping != NET
    Path("net.py").write_text(keeping)
    assert ran(shell, "net.py", "--check")["near"] == 0
    Path("net.py").write_text(again + counting)
    done = shell.tmmu("run", "net.py", "--check")
    assert (done.code, "CAPTURE_FAILED: state kept is not what the model itself gives" in done.err) == (2, True)


def test_sanitizer_names_the_op(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = bind.validate_steps

    def dropped(*args: Any, **kwargs: Any) -> Any:
        """Applied after ``validate_steps``, which would find it."""
        steps, unplanned = original(*args, **kwargs)
        return [replace(step, code=()) if "addmm" in step.name else step for step in steps], unplanned

    monkeypatch.setattr(bind, "validate_steps", dropped)
    done = shell.tmmu("run", net, "--sanitize")
    assert done.code == 3
    assert re.search(r"PLAN_UNSOUND: op \d+ aten.addmm.default \(net.py:15\) leaves buffer \d+ head:", done.err)


def test_bench_counts_allocations_of_each_way(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda run: run)
    record = ran(shell, net, "--bench")
    planned, calls, eager, compiled = record["bench"]
    assert [row["way"] for row in record["bench"]] == ["tmmu", "tmmu, no replay", "eager", "torch.compile"]
    assert (record["pieces"], record["grown"]) == (1, 0)
    assert 0 < planned["allocations"] == calls["allocations"] < eager["allocations"] == compiled["allocations"]
    assert 0 < planned["peak_bytes"] - sum(record["peak_bytes"].values()) - record["input_bytes"] < 20000
    assert eager["peak_bytes"] > record["input_bytes"] + record["peak_bytes"]["text"] // 2
    out = shell.tmmu("run", net, "--bench").out
    assert re.search(r"\ntmmu +[0-9.]+ ms +\d+ +[0-9.]+ KiB\n", out)


def test_bench_without_a_compiler_says_so(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", refuse)
    record = ran(shell, net, "--bench")
    assert [bool(row["failed"]) for row in record["bench"]] == [False, False, False, True]
    assert "no compiler here" in shell.tmmu("run", net, "--bench").out


def test_plan_from_a_file_is_run(shell: Shell, net: Path) -> None:
    planned = shell.tmmu("plan", net, "--device", "cpu", "--mode", "backward", "-o", "p.plan.cbor", "--json")
    assert planned.code == 0, planned.err
    record = ran(shell, net, "--plan", "p.plan.cbor", "--check")
    assert record["plan"] == json.loads(planned.out)["digest"]
    assert record["mode"] == "backward"


@pytest.mark.parametrize(
    ("message", "code", "arguments"),
    [
        ("--mode does not go with --plan", 2, ("--plan", "p.plan.cbor", "--mode", "backward")),
        ("--arena does not go with --plan", 2, ("--plan", "p.plan.cbor", "--arena", "state=alignment:256")),
        ("cannot read none", 2, ("--plan", "none")),
        ("PLAN_CORRUPT: net.py", 3, ("--plan", "net.py")),
        ("PLAN_MISMATCH: the plan is for graph", 3, ("--plan", "gpu.plan.cbor")),
        ("PLAN_MISMATCH", 3, ("--plan", "p.plan.cbor", "--seed", "9")),
    ],
)
def test_plans_that_do_not_fit_are_refused(
    shell: Shell, net: Path, message: str, code: int, arguments: tuple[str, ...]
) -> None:
    for target, path in (("cpu", "p.plan.cbor"), ("cuda", "gpu.plan.cbor")):
        assert shell.tmmu("plan", net, "--device", target, "-o", path).code == 0
    done = shell.tmmu("run", net, *arguments)
    assert (done.code, message in done.err) == (code, True), done.err


def test_exported_program_runs_with_its_own_weights(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    x = torch.randn(2, 4)
    torch.export.save(torch.export.export(module, (x,)), "m.pt2")
    tensors: dict[str, torch.Tensor] = {}
    original = bind.bind_executor

    def spied(request: bind.BindRequest) -> Any:
        tensors.update(request.weights)
        return original(request)

    monkeypatch.setattr(rehearse, "bind_executor", spied)
    record = ran(shell, "m.pt2", "--check", "--sanitize")
    assert record["same"] == 1
    assert tensors["0.weight"].tensor.equal(module[0].weight)


def test_report_names_outputs_segments_and_operators(shell: Shell, net: Path) -> None:
    out = shell.tmmu("run", net, "--check").out
    assert "net ran on cpu: " in out
    assert "outputs  float32[2,4]" in out
    for word in ("text ", "data ", "stack ", "inputs ", "aten.convolution.default", "checked: 1 outputs and states"):
        assert f"\n{word}" in out


@pytest.mark.parametrize("more", [("--seq", "8"), ("--decode", "--cache-len", "16")])
def test_configuration_runs_in_its_own_dtype(shell: Shell, more: tuple[str, ...]) -> None:
    Path("config.json").write_text(json.dumps(LLAMA))
    record = ran(shell, "hf:.", "--check", *more)
    assert record["outputs"][0].startswith("bfloat16[1,")
    assert record["checked"] >= 1


def test_weights_are_read_from_a_file_or_a_folder(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[torch.Tensor] = []
    original = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        outputs.extend(original(self, *args, **kwargs))
        return tuple(outputs[-1:])

    monkeypatch.setattr(Executor, "run", run)
    weights = {
        "conv.weight": torch.rand(8, 3, 3, 3), "conv.bias": torch.rand(8), "norm.weight": torch.rand(8),
        "norm.bias": torch.rand(8), "noise": torch.rand(4), "head.weight": torch.zeros(4, 8),
    }  # fmt: skip
    head = {"head.bias": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    save_file(weights | head, "all.safetensors")
    Path("parts").mkdir()
    save_file(weights, "parts/a.safetensors")
    save_file(head, "parts/b.safetensors")
    for path in ("all.safetensors", "parts"):
        ran(shell, net, "--weights", path, "--check")
    expected = (head["head.bias"] + weights["noise"])[[1, 0, 3, 2]].expand(2, 4)
    assert all(output.equal(expected) for output in outputs)
    done = shell.tmmu("run", net, "--weights", "parts/a.safetensors")
    assert (done.code, "head.bias" in done.err) == (2, True)


def test_seed_decides_what_is_drawn(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[torch.Tensor] = []
    original = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        results = original(self, *args, **kwargs)
        outputs.append(results[0])
        return results

    monkeypatch.setattr(Executor, "run", run)
    for seed in (3, 3, 4):
        ran(shell, net, "--seed-weights", seed)
    assert outputs[0].equal(outputs[1])
    assert not outputs[0].equal(outputs[2])


def test_output_that_differs_by_one_bit_is_an_unsound_plan(
    shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        (output,) = original(self, *args, **kwargs)
        output.view(torch.uint8)[1, 3] ^= 1
        return (output,)

    monkeypatch.setattr(Executor, "run", run)
    done = shell.tmmu("run", net, "--check")
    assert done.code == 3
    assert "PLAN_UNSOUND: output 0" in done.err
    assert "1 of 32 bytes differ" in done.err


def test_state_that_differs_is_an_unsound_plan(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Executor.state
    monkeypatch.setattr(Executor, "state", lambda self, name: original(self, name) ^ 1)
    done = shell.tmmu("run", net, "--check", "--mode", "backward")
    assert (done.code, "PLAN_UNSOUND: state norm." in done.err) == (3, True)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("cannot read", ("net.py", "--weights", "nowhere")),
        ("is no whole safetensors file", ("net.py", "--weights", "net.py")),
        ("no safetensors file at", ("net.py", "--weights", ".")),
        ("--device", ("net.py", "--device", "tpu")),
        ("--optimizer", ("net.py", "--optimizer", "adamw")),
        ("--batch", ("net.py", "--batch", "2")),
        ("--seed-weights", ("net.py", "--seed-weights", "-1")),
        ("what its operators are called with", ("given.ir.cbor",)),
        ("no file", ("missing.py",)),
    ],
)
def test_run_options_that_make_no_sense_are_refused(
    shell: Shell, net: Path, message: str, arguments: tuple[str, ...]
) -> None:
    Path("given.ir.cbor").touch()
    done = shell.tmmu("run", *arguments)
    assert (done.code, message in done.err) == (2, True), done.err


def test_integer_weights_without_values_must_be_given(shell: Shell) -> None:
    text = NET.replace("torch.tensor([1, 0, 3, 2])", "torch.randperm(4)")
    Path("net.py").write_text(text)
    done = shell.tmmu("run", "net.py")
    assert (done.code, "index" in done.err, "--weights" in done.err) == (2, True, True)


def test_weights_of_a_file_go_straight_into_place(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = {"conv.weight": (8, 3, 3, 3), "conv.bias": (8,), "norm.weight": (8,), "norm.bias": (8,), "noise": (4,)}
    module |= {"head.weight": (4, 8), "head.bias": (4,)}
    save_file({name: torch.rand(shape) for name, shape in module.items()}, "all.safetensors")
    places: list[tuple[int, int]] = []
    original = sources.read_stored

    def read(tensor: Any, target: memoryview, skip: int = 0) -> None:
        start = np.frombuffer(target, np.uint8).__array_interface__["data"][0]
        places.append((start, start + len(target)))
        original(tensor, target, skip)

    slabs: list[Any] = []
    bound = bind.bind_executor

    def spied(request: bind.BindRequest) -> Any:
        executor = bound(request)
        slabs.append(executor.segments.slabs["text"])
        return executor

    monkeypatch.setattr(sources, "read_stored", read)
    monkeypatch.setattr(rehearse, "bind_executor", spied)
    ran(shell, net, "--weights", "all.safetensors")
    (slab,) = slabs
    begin = slab.storage.data_ptr()
    assert len(places) == len(module)
    assert all(begin <= low and high <= begin + slab.storage.nbytes() for low, high in places)


def test_step_whose_kernels_leave_results_out_runs_as_without_a_plan(shell: Shell) -> None:
    """The gradient of an input without ``requires_grad`` is ``None`` in a run."""
    Path("norm.py").write_text(
        "import torch\nmodel = lambda: torch.nn.BatchNorm1d(4)\ninputs = lambda: torch.zeros(8, 4)\n"
        "def loss(model, x):\n    return model(x).pow(3).mean()\n"
    )
    done = shell.tmmu("run", "norm.py", "--mode", "backward", "--check")
    assert done.code == 0, done.err
    assert "have the bits of a run without a plan" in done.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_that_is_not_there_is_refused(shell: Shell, net: Path) -> None:
    done = shell.tmmu("run", net, "--device", "cuda")
    assert (done.code, "DEVICE_MISSING: there is no cuda" in done.err) == (2, True), done.err


@pytest.mark.parametrize("option", ["--no-cache", "--check", "--sanitize"])
def test_check_of_the_model_that_fails_is_one_line(shell: Shell, option: str) -> None:
    """A check returns nothing; without it a failed factorization would be given as good."""
    Path("net.py").write_text(
        "import torch\nclass model(torch.nn.Module):\n    def forward(self, x): return torch.linalg.cholesky(x - x)\n"
        "inputs = torch.ones(3, 3)\n"
    )
    done = shell.tmmu("run", "net.py", option)
    assert (done.code, done.out) == (2, "")
    assert re.search(r"INVALID_CONFIG: op \d aten._linalg_check_errors.default \(net.py:3\)", done.err)
