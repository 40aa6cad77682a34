"""``tmmu run``: one run inside the plan, checked bit for bit, with weights drawn or read; what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.cli.graphs import Shell
from tmmu.runtime.executor import Executor

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
def test_a_run_has_the_bits_of_a_run_without_a_plan(shell: Shell, net: Path, more: tuple[str, ...]) -> None:
    record = ran(shell, net, "--check", *more)
    assert record["checked"] == len(record["outputs"]) + {0: 0, 2: 3, 4: 3 + 6 * 4}[len(more)]
    assert record["inputs"] == ["x float32[2,3,8,8]"]
    assert record["peak_bytes"]["stack"] > 0
    assert record["unplanned"][0]["operator"].startswith("aten.convolution")
    assert shell.files() == ("net.py",)


def test_random_operators_draw_the_same_in_both_runs(shell: Shell) -> None:
    Path("net.py").write_text(NET.replace("self.head(y)", "nn.functional.dropout(self.head(y), 0.5)"))
    assert ran(shell, "net.py", "--check")["checked"] == 1


def test_the_report_names_outputs_segments_and_operators(shell: Shell, net: Path) -> None:
    out = shell.tmmu("run", net, "--check").out
    assert "net ran on cpu: " in out
    assert "outputs  float32[2,4]" in out
    for word in ("text ", "data ", "stack ", "inputs ", "aten.convolution.default", "checked: 1 outputs and states"):
        assert f"\n{word}" in out


@pytest.mark.parametrize("more", [("--seq", "8"), ("--decode", "--cache-len", "16")])
def test_a_configuration_runs_in_its_own_dtype(shell: Shell, more: tuple[str, ...]) -> None:
    Path("config.json").write_text(json.dumps(LLAMA))
    record = ran(shell, "hf:.", "--check", *more)
    assert record["outputs"][0].startswith("bfloat16[1,")
    assert record["checked"] >= 1


def test_weights_are_read_from_a_file_or_a_folder(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    original = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        seen.extend(original(self, *args, **kwargs))
        return tuple(seen[-1:])

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
    wanted = (head["head.bias"] + weights["noise"])[[1, 0, 3, 2]].expand(2, 4)
    assert all(one.equal(wanted) for one in seen)
    done = shell.tmmu("run", net, "--weights", "parts/a.safetensors")
    assert (done.code, "head.bias" in done.err) == (2, True)


def test_the_seed_decides_what_is_drawn(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    original = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        found = original(self, *args, **kwargs)
        seen.append(found[0])
        return found

    monkeypatch.setattr(Executor, "run", run)
    for seed in (3, 3, 4):
        ran(shell, net, "--seed-weights", seed)
    assert seen[0].equal(seen[1])
    assert not seen[0].equal(seen[2])


def test_a_difference_of_one_bit_is_an_unsound_plan(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        (found,) = original(self, *args, **kwargs)
        found.view(torch.uint8)[1, 3] ^= 1
        return (found,)

    monkeypatch.setattr(Executor, "run", run)
    done = shell.tmmu("run", net, "--check")
    assert done.code == 3
    assert "PLAN_UNSOUND: output 0" in done.err
    assert "1 of 32 bytes differ" in done.err


def test_a_state_that_differs_is_an_unsound_plan(shell: Shell, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Executor.state
    monkeypatch.setattr(Executor, "state", lambda self, name: original(self, name) ^ 1)
    done = shell.tmmu("run", net, "--check", "--mode", "backward")
    assert (done.code, "PLAN_UNSOUND: state norm." in done.err) == (3, True)


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("no safetensors file at", ("net.py", "--weights", "nowhere")),
        ("is no safetensors file", ("net.py", "--weights", "net.py")),
        ("no safetensors file at", ("net.py", "--weights", ".")),
        ("--device", ("net.py", "--device", "cuda")),
        ("--optimizer", ("net.py", "--optimizer", "adamw")),
        ("--batch", ("net.py", "--batch", "2")),
        ("--seed-weights", ("net.py", "--seed-weights", "-1")),
        ("what its operators are called with", ("given.ir.cbor",)),
        ("no file", ("missing.py",)),
    ],
)
def test_what_makes_no_sense_is_refused(shell: Shell, net: Path, said: str, arguments: tuple[str, ...]) -> None:
    Path("given.ir.cbor").touch()
    done = shell.tmmu("run", *arguments)
    assert (done.code, said in done.err) == (2, True), done.err


def test_whole_numbers_that_nobody_knows_must_be_given(shell: Shell) -> None:
    text = NET.replace("torch.tensor([1, 0, 3, 2])", "torch.randperm(4)")
    Path("net.py").write_text(text)
    done = shell.tmmu("run", "net.py")
    assert (done.code, "index" in done.err, "--weights" in done.err) == (2, True, True)


def test_an_absent_reader_of_weights_is_said(net: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    done = shell.tmmu("run", net, "--weights", "net.py")
    assert (done.code, "not installed" in done.err) == (2, True)


def test_a_step_whose_kernels_leave_results_out_runs_as_without_a_plan(shell: Shell) -> None:
    """The gradient of an input that asks for none is nothing at all in a real run."""
    Path("norm.py").write_text(
        "import torch\nmodel = lambda: torch.nn.BatchNorm1d(4)\ninputs = lambda: torch.zeros(8, 4)\n"
        "def loss(model, x):\n    return model(x).pow(3).mean()\n"
    )
    done = shell.tmmu("run", "norm.py", "--mode", "backward", "--check")
    assert done.code == 0, done.err
    assert "have the bits of a run without a plan" in done.out
