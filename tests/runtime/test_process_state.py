"""Code that changes its process for good, as scripts do: a trace and a run after it both find what the first found."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.runtime.harness import run_checked
from tmmu.kernel_switches import set_switches
from tmmu.torch_private import default_device_context, function_modes

NET = """
import os
import torch
from torch import nn
{top}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)
    def forward(self, x):
        y = self.line(x) + torch.ones(8)
        {inside}
        return self.line(y) + torch.ones(8), torch.arange(8) / 3
model = Net
inputs = lambda: (torch.zeros(4, 8),)
"""
CHANGES = {
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "default device": "torch.set_default_device('cpu')",
    "working directory": "os.chdir(os.path.dirname(os.getcwd()))",
    "gradients": "torch.set_grad_enabled(False)",
    "mode": "__import__('torch.overrides').overrides.BaseTorchFunctionMode().__enter__()",
}


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    yield
    folder_and_modes_are_those_of_torch = not function_modes() and default_device_context() is None
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    set_switches((), "cpu")
    torch.set_grad_enabled(True)
    assert folder_and_modes_are_those_of_torch


def check_file(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has the bits of the model itself; afterwards the folder is the same."""
    (folder / "net.py").write_text(text)
    monkeypatch.chdir(folder)
    run_checked("net.py:Net")
    assert Path.cwd() == folder


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("place", ["top", "inside"])
def test_change_is_undone_before_the_model_runs_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, place: str
) -> None:
    parts = {"top": "", "inside": ""} | {place: CHANGES[change]}
    check_file(tmp_path, NET.format(**parts), monkeypatch)
