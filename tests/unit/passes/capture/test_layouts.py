"""Tensors that no window describes: kept by a model they are nobody's business, read by a step they are refused."""

from pathlib import Path

import pytest

from tmmu.errors import UnsupportedOp
from tmmu.judge.rules import require_legal
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

FILE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("heads", torch.eye(4).to_sparse(), persistent=False)
        self.register_buffer("rows", torch.eye(4).to_sparse_csr().to_dense() * 2)

    def forward(self, x):
        {body}

model = Net
def inputs(): return (torch.randn(2, 4),)
def loss(model, x): return model(x).sum()
"""


def traced(folder: Path, body: str, mode: str = "inference") -> CapturedProgram:
    path = folder / "net.py"
    path.write_text(FILE.format(body=body))
    return capture(CaptureRequest(model=str(path), device="cpu", mode=mode))


def test_sparse_buffers_that_nobody_reads_pass(tmp_path: Path) -> None:
    program = traced(tmp_path, "return self.linear(x) + self.rows[0]")
    assert "rows" in [storage.name for storage in program.storages]
    assert "heads" not in [storage.name for storage in program.storages]


def test_sparse_buffers_that_are_read_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOp, match=r"net\.py:12: aten\.\w+\.\w+ touches 'heads', a sparse_coo tensor"):
        traced(tmp_path, "return torch.sparse.mm(self.heads, self.linear(x).t())")


def test_sparse_tensors_made_in_a_step_are_refused_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOp, match=r"net\.py:12: .* touches a sparse_coo tensor"):
        traced(tmp_path, "return x.to_sparse() + 1")


def test_sparse_gradients_are_refused(tmp_path: Path) -> None:
    body = "e = torch.nn.functional.embedding(x.long(), self.linear.weight, sparse=True); return e.sum()"
    with pytest.raises(UnsupportedOp, match="a sparse_coo tensor: only strided ones are modelled"):
        traced(tmp_path, body, "backward")


@pytest.mark.parametrize("body", ["y = x[:0] + 1; return y[:, 1:] * 2", "y = x[:0] + 1; y[:, 1:] = 3; return y"])
def test_slices_of_nothing_lie_inside_their_buffer(tmp_path: Path, body: str) -> None:
    require_legal(lower_program(traced(tmp_path, body)).graph)
