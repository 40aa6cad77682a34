"""``optimizer(params)`` beside ``model``: what a file trains with is planned, run, and compared when it changes."""

import pytest

from tests.unit.cli.graphs import Shell

MODEL = """import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 1))
inputs = torch.randn(4, 8),
def loss(model, x):
    return model(x).square().mean()
"""
GROUPS = """def optimizer(params):
    decayed, others = [p for p in params if p.dim() > 1], [p for p in params if p.dim() < 2]
    return torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-3)
"""
STEP = ("--mode", "backward", "--device", "cpu")
STATES = 6 * 3
"""Of AdamW: a count and two averages of each parameter."""


def write(shell: Shell, text: str) -> str:
    (shell.folder / "m.py").write_text(MODEL + text)
    return "m.py"


def optimizer_bytes(shell: Shell, *options: str) -> int:
    record = shell.tmmu("plan", "m.py", *STEP, *options, "--json").record
    return sum(part["bytes"] for part in record["state"] if part["kind"] == "optimizer")


def test_optimizer_of_the_file_is_part_of_the_step(shell: Shell) -> None:
    write(shell, GROUPS)
    padded = 4 * 8 * 16 + 5 * 256  # the first weight, and five parameters below 256 bytes
    assert optimizer_bytes(shell) == 2 * padded + 6 * 256
    assert optimizer_bytes(shell, "--optimizer", "sgd:momentum=0.9") == padded
    assert optimizer_bytes(shell, "--optimizer", "none") == 0


def test_step_with_the_optimizer_of_the_file_has_eagers_bits(shell: Shell) -> None:
    result = shell.tmmu("run", write(shell, GROUPS), *STEP, "--check")
    assert result.out.rstrip().endswith("25 outputs and states have the bits of the model itself")
    assert 1 + 6 + STATES == 25


def test_no_optimizer_is_the_default_of_a_file_without_one(shell: Shell) -> None:
    write(shell, "")
    assert optimizer_bytes(shell) == optimizer_bytes(shell, "--optimizer", "none") == 0


@pytest.mark.parametrize("text", ["optimizer = 3\n", "def optimizer():\n    pass\n"])
def test_what_takes_no_parameters_is_not_looked_at(shell: Shell, text: str) -> None:
    write(shell, text)
    assert optimizer_bytes(shell) == 0


INSTANCE = GROUPS.replace("def optimizer(params)", "def make(params)") + "optimizer = make(list(model.parameters()))\n"


def test_optimizer_that_the_file_has_made_is_part_of_the_step(shell: Shell) -> None:
    write(shell, INSTANCE)
    by_instance = optimizer_bytes(shell)
    write(shell, GROUPS)
    assert by_instance == optimizer_bytes(shell) > 0


def test_step_with_the_optimizer_that_the_file_has_made_has_eagers_bits(shell: Shell) -> None:
    result = shell.tmmu("run", write(shell, INSTANCE), *STEP, "--check")
    assert result.out.rstrip().endswith("25 outputs and states have the bits of the model itself")


def test_optimizer_of_another_model_is_not_looked_at(shell: Shell) -> None:
    write(shell, "optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters())\n")
    assert optimizer_bytes(shell) == 0


def test_optimizer_of_a_part_of_the_model_is_refused_in_one_line(shell: Shell) -> None:
    result = shell.tmmu("plan", write(shell, "optimizer = torch.optim.Adam(model[0].parameters())\n"), *STEP)
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "CAPTURE_FAILED: `optimizer` has other parameters than those of the model" in result.err
    frozen = "model[1:].requires_grad_(False)\noptimizer = torch.optim.Adam(model[0].parameters())\n"
    write(shell, frozen)
    assert optimizer_bytes(shell) > 0


MAKERS = {
    "a partial call": "import functools\noptimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)\n",
    "a class": "class optimizer(torch.optim.SGD):\n    def __init__(self, params):\n"
    "        super().__init__(params, lr=0.1, momentum=0.9)\n",
    "a method": "class Maker:\n    def make(self, params):\n"
    "        return torch.optim.SGD(params, lr=0.1, momentum=0.9)\noptimizer = Maker().make\n",
}


@pytest.mark.parametrize("name", MAKERS)
def test_whatever_is_called_with_parameters_makes_the_optimizer(shell: Shell, name: str) -> None:
    write(shell, MAKERS[name])
    assert optimizer_bytes(shell) == optimizer_bytes(shell, "--optimizer", "sgd:momentum=0.9") > 0


def test_plan_is_compared_with_a_file_whose_optimizer_changed(shell: Shell) -> None:
    write(shell, GROUPS)
    shell.tmmu("plan", "m.py", *STEP)
    assert shell.tmmu("diff", "m.plan.cbor", "m.py").code == 0
    write(shell, GROUPS.replace("AdamW(", "RMSprop("))
    assert "went  state  optimizer.exp_avg.2.bias" in shell.tmmu("diff", "m.plan.cbor", "m.py").out


def test_plan_of_gradients_alone_is_compared_with_gradients_alone(shell: Shell) -> None:
    write(shell, GROUPS)
    shell.tmmu("plan", "m.py", *STEP, "--optimizer", "none")
    lines = shell.tmmu("diff", "m.plan.cbor", "m.py", "--json").record
    assert lines["peak"]["before"] == lines["peak"]["after"]


BAD = {
    "another object": ("return 3", "CAPTURE_FAILED: optimizer(params) makes a int", "return the optimizer"),
    "an unknown argument": (
        "return torch.optim.SGD(params, lx=3)", "CAPTURE_FAILED: m.py:8: TypeError", "must make its optimizer of",
    ),
    "L-BFGS": ("return torch.optim.LBFGS(params)", "INVALID_CONFIG: optimizer(params) makes LBFGS", "use another"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_optimizer_that_is_none_is_said_in_one_line(shell: Shell, name: str) -> None:
    body, what, fix = BAD[name]
    result = shell.tmmu("plan", write(shell, f"def optimizer(params):\n    {body}\n"), *STEP)
    assert result.code == 2
    assert what in result.err
    assert fix in result.err
    assert len(result.err.splitlines()) == 1
