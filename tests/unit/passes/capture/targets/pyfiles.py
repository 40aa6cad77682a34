"""Texts of Python files with a model, and the graphs and refusals of such files as targets."""

from pathlib import Path

import pytest

from tmmu.errors import TmmuError
from tmmu.ir.graph import Graph
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

LINEAR = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width=4, depth=1):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])
    def forward(self, x):
        return self.layers(x)
"""

WHOLE = LINEAR + "model = Net\ndef inputs(batch=2, width=4):\n    return (torch.zeros(batch, width),)\n"


def graph_of(folder: Path, text: str, name: str | None = None, **options: object) -> Graph:
    path = folder / "net.py"
    path.write_text(text)
    target = f"{path}:{name}" if name else str(path)
    return lower_program(capture(CaptureRequest(model=target, **options))).graph  # type: ignore[arg-type]


def refusal_of(folder: Path, text: str, name: str | None = None, **options: object) -> TmmuError:
    with pytest.raises(TmmuError) as caught:
        graph_of(folder, text, name, **options)
    return caught.value
