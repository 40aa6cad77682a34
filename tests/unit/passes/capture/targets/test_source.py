"""A file is planned as it is now, whatever bytecode lies beside it."""

import os
import sys
from pathlib import Path

import pytest

from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program


@pytest.mark.parametrize("writes", [True, False])
def test_file_that_changed_within_a_second_is_planned_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not writes)
    path, shapes = tmp_path / "net.py", []
    for rows in (3, 7):
        path.write_text(f"import torch\nmodel = torch.nn.Tanh\ndef inputs():\n    return torch.zeros({rows}, 2)\n")
        os.utime(path, (1, 1))
        graph = lower_program(capture(CaptureRequest(model=f"{path}"))).graph
        shapes.append(graph.values.shape[0])
    assert shapes == [(3, 2), (7, 2)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.py"]
