"""``tmmu run --ring``: the same outputs with less memory for weights, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.cli.graphs import Shell

NET = """
import torch
from torch import nn
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(64, 16)
        self.norm = nn.BatchNorm1d(16)
    def forward(self, x):
        return self.norm(x + self.down(self.up(x).relu()))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(8))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
model = Net
inputs = (torch.zeros(4, 16),)
"""
BUDGET = "30KiB"


@pytest.fixture
def net(shell: Shell) -> Path:
    path = Path("net.py")
    path.write_text(NET)
    return path


def ran(shell: Shell, *arguments: object) -> dict[str, Any]:
    done = shell.tmmu("run", *arguments, "--json")
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads(done.out)
    return report


@pytest.mark.parametrize("more", [(), ("--no-prefetch",)])
def test_run_through_a_ring_has_the_bits_of_one_without_a_plan(shell: Shell, net: Path, more: tuple[str, ...]) -> None:
    report = ran(shell, net, "--ring", "--budget", BUDGET, "--check", *more)
    assert report["checked"] == report["same"] == 1
    assert report["peak_bytes"]["ring"] <= 30 * 1024 < report["ring"]["host_bytes"]
    assert "text" not in report["peak_bytes"]
    assert report["ring"]["passes"] == 1
    assert report["ring"]["copies"] >= 8


def test_report_says_what_streamed(shell: Shell, net: Path) -> None:
    done = shell.tmmu("run", net, "--ring", "--budget", BUDGET)
    assert done.code == 0, done.err
    assert any(line.startswith("ring ") for line in done.out.splitlines())
    assert (
        "streamed: of 76.0 KiB of weights on the host 19.0 KiB stay on the device, and 57.0 KiB move in a pass"
        in done.out
    )


def test_files_are_read_straight_into_it(shell: Shell, net: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(NET, namespace)
    torch.manual_seed(4)
    state = namespace["Net"]().state_dict()
    save_file({name: tensor.float() for name, tensor in state.items()}, "w.safetensors")
    whole = ran(shell, net, "--weights", "w.safetensors", "--ring", "--budget", BUDGET)
    assert whole["ring"]["host_bytes"] > 0
    del state["layers.3.up.weight"]
    save_file({name: tensor.float() for name, tensor in state.items()}, "w.safetensors")
    done = shell.tmmu("run", net, "--weights", "w.safetensors", "--ring", "--budget", BUDGET)
    assert done.code == 2
    assert "no value is given for layers.3.up.weight" in done.err
    Path("w.safetensors").write_bytes(Path("w.safetensors").read_bytes()[:-3])
    done = shell.tmmu("run", net, "--weights", "w.safetensors", "--ring", "--budget", BUDGET)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "is no whole safetensors file" in done.err


def test_plan_with_a_ring_streams_by_itself(shell: Shell, net: Path) -> None:
    done = shell.tmmu("ring", net, "--device", "cpu", "--budget", BUDGET, "-o", "net.plan.cbor")
    assert done.code == 0, done.err
    report = ran(shell, net, "--plan", "net.plan.cbor", "--check")
    assert report["ring"]["copies"] >= 8


def test_run_without_a_ring_streams_nothing(shell: Shell, net: Path) -> None:
    report = ran(shell, net)
    assert report["ring"] == {}
    assert "text" in report["peak_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ring",), "--ring and --budget go together"),
        (("--budget", "1MiB"), "--ring and --budget go together"),
        (("--ring", "--budget", "much"), "--budget: 'much' is not a size"),
        (("--ring", "--budget", "1KiB"), "no cyclic ring fits in 1024 bytes"),
        (("--no-prefetch",), "--no-prefetch goes with --ring"),
        (("--ring", "--budget", BUDGET, "--sanitize"), "--sanitize watches weights that stay"),
    ],
)
def test_options_that_make_no_sense_are_one_line(
    shell: Shell, net: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = shell.tmmu("run", net, *arguments)
    assert done.code in (2, 3)
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_ring_goes_with_no_plan_that_is_there(shell: Shell, net: Path) -> None:
    assert shell.tmmu("plan", net, "--device", "cpu").code == 0
    done = shell.tmmu("run", net, "--plan", "net.plan.cbor", "--ring", "--budget", BUDGET)
    assert "--ring does not go with --plan" in done.err
