"""Ways to spread a model over ranks that are not planned are refused by their names, with the user's line."""

from pathlib import Path

import pytest

from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture

pytest.importorskip("torch.distributed")
START = """
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
net = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
inputs = torch.zeros(4, 16)
"""
MODELS = {
    r"FullyShardedDataParallel \(FSDP1\)": """
from torch.distributed.fsdp import FullyShardedDataParallel
def model():
    return FullyShardedDataParallel(net)
""",
}


@pytest.mark.parametrize("name", MODELS)
def test_each_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "spread.py").write_text(START + MODELS[name])
    with pytest.raises(UnsupportedOp, match=rf"spread\.py:\d+.*: {name} is not planned: ") as refused:
        capture(CaptureRequest(model=str(tmp_path / "spread.py"), world=4, device="cpu"))
    assert refused.value.fix


def test_a_failure_beside_them_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "spread.py").write_text(START + "def model():\n    raise ValueError('no stage')\n")
    with pytest.raises(CaptureFailed, match="ValueError: no stage"):
        capture(CaptureRequest(model=str(tmp_path / "spread.py"), world=4, device="cpu"))
