"""``tmmu run`` of a step that cuts tensors where they lie: an input for good, a buffer of the model for a while."""

from tests.unit.cli.graphs import Shell

STEP = """import torch
net = torch.nn.Linear(8, 8)
net.register_buffer("scale", torch.ones(4, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step(x):
    kept = net.scale.clone()
    with torch.no_grad():
        x.resize_(2, 8).mul_(2)
        net.scale.resize_(2, 8).copy_(kept[2:])
    loss = (net(x) * net.scale).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        net.scale.resize_(4, 8).copy_(kept)
    return loss.detach()
def inputs():
    return torch.randn(4, 8)
"""


def test_a_step_that_cuts_its_batch_has_the_bits_of_eager(shell: Shell) -> None:
    (shell.folder / "cut.py").write_text(STEP)
    ran = shell.tmmu("run", "cut.py:step", "--check", "--device", "cpu")
    assert ran.code == 0, ran.err
    assert "have the bits of the step itself, over 2 steps" in ran.out


def test_a_buffer_that_stays_cut_is_refused_by_its_line(shell: Shell) -> None:
    (shell.folder / "cut.py").write_text(
        STEP.replace("        net.scale.resize_(4, 8).copy_(kept)\n", "        pass\n")
    )
    ran = shell.tmmu("plan", "cut.py:step", "--device", "cpu")
    assert ran.code == 2
    assert "UNSUPPORTED_OP: cut.py:9: aten.resize_.default changes where constant scale lies" in ran.err
