"""An exported program (``.pt2``): its graph is run once over fake tensors, weights unread."""

from pathlib import Path
from typing import Any

import torch
from torch import fx

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.passes.request import CaptureRequest
from tmmu.passes.workload import Workload


def load_exported(request: CaptureRequest, path: Path) -> Workload:
    """The program of a ``.pt2`` file, with the inputs that it was exported for."""
    raise CaptureFailed("not yet", fix="")
