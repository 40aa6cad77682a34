"""``--fuse`` of ``tmmu plan`` and ``tmmu run``: what it does, and where it is refused."""

import json
import os
import subprocess
import sys

import pytest

from tests.compiler import needs_compiler
from tests.unit.cli.graphs import Shell
from tmmu.codec.load import load_graph
from tmmu.fusion.call_form import KernelForm
from tmmu.fusion.kernel_source import KernelSource

NET = """
from torch import nn
import torch
def model():
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.LayerNorm(16), nn.Softmax(-1))
def inputs():
    return (torch.zeros(4, 16),)
def step(batch):
    return model()(batch).sum().backward()
"""


LONG = """
import torch
from torch import nn
class Long(nn.Module):
    def __init__(self):
        super().__init__()
        self.levels = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
    def forward(self, x):
        seen = []
        for level in self.levels:
            x = torch.tanh(level(x))
            seen.append(torch.exp(x))
        for each in reversed(seen):
            x = x + each
        return x
model = Long
inputs = (torch.zeros(64, 16),)
"""
FIT = ("fit", "long.py", "--device", "cpu", "--step", "20KiB")
"""Of 28 KiB as it is."""


NORM = """
import torch
from torch import nn
def model():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 1))
def inputs():
    return (torch.randn(16, 8),)
def loss(model, x):
    return model(x).square().mean()
"""


@pytest.fixture
def net(shell: Shell) -> Shell:
    (shell.folder / "net.py").write_text(NET)
    (shell.folder / "long.py").write_text(LONG)
    return shell


def test_a_fused_plan_has_fused_ops_and_is_verified(net: Shell) -> None:
    assert net.tmmu("plan", "net.py", "--device", "cpu", "--fuse").code == 0
    graph = load_graph(net.folder / "net.ir.cbor")
    assert any(target.startswith("tmmu_fused.") for target in graph.ops.target)
    assert net.tmmu("verify", "net.plan.cbor").code == 0


def test_a_fused_plan_is_the_same_again_and_another_than_the_plain_one(net: Shell) -> None:
    plans = []
    for options in (("--fuse",), ("--fuse",), ()):
        net.tmmu("plan", "net.py", "--device", "cpu", "--no-cache", *options)
        plans.append((net.folder / "net.plan.cbor").read_bytes())
    assert plans[0] == plans[1] != plans[2]


def test_a_plan_for_a_gpu_is_fused_without_one(net: Shell) -> None:
    plans = []
    for options in (("--fuse",), ("--fuse",), ()):
        assert net.tmmu("plan", "net.py", "--no-cache", *options).code == 0
        plans.append((net.folder / "net.plan.cbor").read_bytes())
    assert plans[0] == plans[1] != plans[2]
    assert net.tmmu("plan", "net.py", "--no-cache", "--fuse").code == 0
    graph = load_graph(net.folder / "net.ir.cbor")
    assert graph.target == "cuda"
    assert any(target.startswith("tmmu_fused.native_layer_norm_softmax_") for target in graph.ops.target)
    assert net.tmmu("verify", "net.plan.cbor").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "net.py:step", "--fuse"), "are not fused"),
        (("run", "net.py", "--fuse", "--ring", "--budget", "1MiB"), "kernels read weights that stay"),
        (("run", "net.py", "--fuse", "--world", "2"), "ops of a rank are not fused"),
        (("plan", "net.ir.cbor", "--fuse"), "a graph does not say what its operators are called with"),
        (("fit", "net.ir.cbor", "--fuse", "--step", "1MiB"), "a graph does not say what its operators are called with"),
        (("fit", "net.py", "--fuse", "--device", "cpu", "--curve"), "ops of a step that is written are fused"),
        (
            ("fit", "net.py", "--fuse", "--device", "cpu", "--max", "n", "--step", "1MiB"),
            "ops of a step that is written",
        ),
    ],
)
def test_where_nothing_is_fused_one_line_says_so(net: Shell, arguments: tuple[str, ...], message: str) -> None:
    net.tmmu("plan", "net.py", "--device", "cpu")
    result = net.tmmu(*arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


@needs_compiler
@pytest.mark.slow
def test_a_fused_run_says_how_near_it_is_and_takes_its_plan(net: Shell) -> None:
    net.tmmu("plan", "net.py", "--device", "cpu", "--fuse", "-o", "fused.plan.cbor")
    report = json.loads(net.tmmu("run", "net.py", "--fuse", "--check", "--sanitize", "--json").out)
    assert (report["fused"], report["compiled"], report["near"]) == (1, 1, 1)
    assert 0 < report["difference"] < 1e-5
    text = net.tmmu("run", "net.py", "--fuse", "--plan", "fused.plan.cbor", "--check").out
    assert "fused: 1 of" in text
    assert "outputs and states have the bits of a run op by op, each op near its members" in text
    refused = net.tmmu("run", "net.py", "--plan", "fused.plan.cbor")
    assert refused.code == 3
    assert "PLAN_MISMATCH" in refused.err
    assert "--fuse" in refused.err


def test_a_fitted_step_is_fused_and_its_files_are_verified(net: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is generated: a form is all that a plan needs of one."""
    source = KernelSource(form=KernelForm(pointers=(), scratch=()), types=(), text="")
    monkeypatch.setattr("tmmu.fusion.kernel_forms.generate_kernel", lambda *_, **__: source)
    done = net.tmmu(*FIT, "--fuse", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["kernels"] > 0
    assert report["stack_bytes"] <= 20 << 10 < report["base_stack_bytes"]
    text = net.tmmu(*FIT, "--fuse").out
    assert "judged: before its ops are fused it computes what the step computes, and the fused step is sound" in text
    assert "run it: tmmu run long.py --fuse --plan long.fit.plan.cbor --check" in text
    verified = net.tmmu("verify", "long.fit.plan.cbor", "--base", "long.ir.cbor")
    assert verified.code == 0, verified.err
    assert "its ops are fused since, which a run checks and no file can" in verified.out
    refused = net.tmmu("run", "long.py", "--plan", "long.fit.plan.cbor")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "add --fuse" in refused.err
    (net.folder / "long.fit.ir.cbor").unlink()
    missing = net.tmmu("verify", "long.fit.plan.cbor", "--base", "long.ir.cbor")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "put it there)" in missing.err
    net.tmmu(*FIT)
    unfused = net.tmmu("run", "long.py", "--fuse", "--plan", "long.fit.plan.cbor")
    assert (unfused.code, unfused.err.count("\n")) == (2, 1)
    assert "fit it with --fuse" in unfused.err


@needs_compiler
@pytest.mark.slow
def test_a_fused_fit_runs_in_its_plan_near_the_model(net: Shell) -> None:
    net.tmmu(*FIT, "--fuse")
    done = net.tmmu("run", "long.py", "--fuse", "--plan", "long.fit.plan.cbor", "--check", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["compiled"] == report["fused"] > 0
    assert 0 <= report["difference"] < 1e-5


@needs_compiler
@pytest.mark.slow
def test_what_rounding_alone_makes_is_said_and_no_fault(net: Shell) -> None:
    """The bias before a batch norm has a gradient of zero, of which each program makes other noise, and Adam a step."""
    (net.folder / "bn.py").write_text(NORM)
    options = ("--fuse", "--mode", "backward", "--optimizer", "adamw", "--check", "--json")
    done = net.tmmu("run", "bn.py", *options)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["checked"] > 10  # the outputs, the weights and what Adam keeps of them
    assert report["far"] > 0
    assert report["near"] + report["same"] > report["far"]


@pytest.mark.slow
def test_a_fused_plan_is_the_same_in_every_process(net: Shell) -> None:
    """Other hash seeds, threads and vectors; forms are made anew in each, for they have no cache in common."""
    plans = set()
    for number, settings in enumerate(
        ({}, {"OMP_NUM_THREADS": "1"}, {"ATEN_CPU_CAPABILITY": "avx2"}, {"ATEN_CPU_CAPABILITY": "default"}, {})
    ):
        variables = os.environ | {"PYTHONHASHSEED": str(number), "TMMU_CACHE_DIR": str(net.folder / f"c{number}")}
        command = (sys.executable, "-c", "from tmmu.cli.main import main; main()", "plan", "net.py")
        options = ("--device", "cpu", "--fuse", "--no-cache", "-o", f"{number}.plan.cbor")
        subprocess.run((*command, *options), cwd=net.folder, env=variables | settings, check=True, capture_output=True)
        plans.add((net.folder / f"{number}.plan.cbor").read_bytes())
    assert len(plans) == 1
