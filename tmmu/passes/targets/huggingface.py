"""A Hugging Face configuration, offline."""

from pathlib import Path

from tmmu.errors import CaptureFailed
from tmmu.passes.request import CaptureRequest
from tmmu.passes.workload import Workload


def load_huggingface(request: CaptureRequest, path: Path) -> Workload:
    raise CaptureFailed("not yet", fix="")
