"""``plan``, ``run`` and ``run --plan`` run one table of passes: they count the same ops."""

import pytest

from tests.unit.cli.graphs import Shell

NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
    def forward(self, x):
        y = self.first(x)
        (y * 3).sum()
        y.t()[1:].exp()
        return y.relu()
def loss(model, x):
    return model(x).sum()
model = Net
inputs = (torch.zeros(4, 8),)
"""


@pytest.mark.parametrize("options", [(), ("--mode", "backward", "--optimizer", "sgd")])
def test_dead_ops_are_gone_from_every_command_alike(shell: Shell, options: tuple[str, ...]) -> None:
    (shell.folder / "net.py").write_text(NET)
    planned = shell.tmmu("plan", "net.py", "--device", "cpu", "--json", *options).record
    ran = shell.tmmu("run", "net.py", "--check", "--no-cache", "--json", *options).record
    optimizer = options[2:]
    in_plan = shell.tmmu("run", "net.py", "--plan", "net.plan.cbor", "--check", "--json", *optimizer)
    assert in_plan.code == 0, in_plan.err
    assert planned["ops"] == ran["steps"] == in_plan.record["steps"]
    assert planned["digest"] == ran["plan"] == in_plan.record["plan"]
    assert "aten.exp" not in shell.tmmu("show", "net.plan.cbor", "--ops").out
