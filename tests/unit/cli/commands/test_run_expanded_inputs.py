"""``tmmu run`` of expanded inputs, which it cannot draw: refused in one line."""

from tests.unit.cli.graphs import Shell

MODEL = """import torch
from torch import nn
net = nn.Linear(8, 1)
def batch():
    return torch.randn(1, 8).expand(4, 8)
def inputs():
    return (batch(),)
def model():
    return net
def step(x):
    loss = net(x).square().mean()
    loss.backward()
    net.zero_grad()
    return loss.detach()
"""


def test_expanded_inputs_are_refused_with_a_code(shell: Shell) -> None:
    (shell.folder / "m.py").write_text(MODEL.replace("def inputs():\n    return (batch(),)\n", ""))
    step = shell.tmmu("run", "m.py:step", "--check", "--device", "cpu")
    (shell.folder / "m.py").write_text(MODEL)
    model = shell.tmmu("run", "m.py", "--check", "--device", "cpu")
    assert "UNSUPPORTED_OP: input x is expanded" in step.err
    assert "expanded along axis 0" in model.err
    assert step.code == model.code == 2
    assert max(len(result.err.splitlines()) for result in (step, model)) == 1
