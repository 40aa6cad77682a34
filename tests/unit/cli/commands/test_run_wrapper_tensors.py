"""``tmmu run`` of models whose tensors wrap others: weights of a file, jagged inputs and results."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.runtime.test_wrapper_tensors import MODEL, Int8Net, plain_weights
from tests.unit.cli.graphs import Shell


def test_command_runs_and_checks_wrapped_weights_of_a_file(shell: Shell) -> None:
    Path("net.py").write_text(MODEL)
    save_file(plain_weights(Int8Net()), "net.safetensors")
    done = shell.tmmu("run", "net.py", "--check", "--sanitize", "--weights", "net.safetensors")
    assert done.code == 0, done.err
    assert "checked: 2 outputs and states have the bits of the model itself" in done.out
    ring = shell.tmmu("run", "net.py", "--check", "--weights", "net.safetensors", "--ring", "--budget", "64KiB")
    assert ring.code == 0, ring.err


@pytest.mark.parametrize("result", ["rows", "rows.values()"])
def test_jagged_inputs_and_results_are_their_values_and_offsets(shell: Shell, result: str) -> None:
    Path("net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.linear = nn.Linear(4, 4)\n"
        f"    def forward(self, x):\n        rows = self.linear(x)\n        return {result}\n"
        "model = Net\n"
        "def inputs():\n"
        "    return (torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged),)\n"
    )
    done = shell.tmmu("run", "net.py", "--check", "--sanitize")
    assert done.code == 0, done.err
    assert "have the bits of the model itself" in done.out
