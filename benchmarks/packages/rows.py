"""One model of a package in one mode: planned bytes, the interceptor's, and bits beside eager's."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks.packages.interceptor import Interceptor, live_peak
from tmmu.errors import TmmuError
from tmmu.passes.capture.eager_model import EagerModel
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

MODELS: Final = Path(__file__).parent / "models"
MODES: Final = ("inference", "backward")
REFUSED: Final = {("torchvision_detection", "inference"): "CAPTURE_FAILED"}
"""What has no plan, and the code that says so: how many boxes are left depends on the scores."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Bytes of what operators make, by both sides; or why there is no plan."""

    model: str
    mode: str
    planned: int = 0
    seen: int = 0
    packed: int = 0
    refused: str = ""

    @property
    def is_equal(self) -> bool:
        return not self.refused and self.planned == self.seen

    @property
    def is_right(self) -> bool:
        code = REFUSED.get((self.model, self.mode))
        return self.is_equal if code is None else self.refused.startswith(code)


def models() -> list[str]:
    """The files of ``models/``, by name."""
    return sorted(path.stem for path in MODELS.glob("*.py"))


def row_of(model: str, mode: str) -> Row:
    """Both sides of one model: captured without bytes, and run on real tensors."""
    path = MODELS / f"{model}.py"
    own_loss = mode == "inference" or "\ndef loss(" in path.read_text(encoding="utf-8")
    request = CaptureRequest(model=str(path), device="cpu", mode=mode, loss=None if own_loss else "sum")
    try:
        bound, packed = planned_bytes(request)
    except TmmuError as error:
        return Row(model=model, mode=mode, refused=str(error))
    return Row(model=model, mode=mode, planned=bound, packed=packed, seen=seen_bytes(request))


def planned_bytes(request: CaptureRequest) -> tuple[int, int]:
    """What the plan's stack holds at its fullest op where no result takes an argument's bytes; and what is placed."""
    graph = lower_program(capture(request)).graph
    mode = "inference" if request.mode == "inference" else "backward"
    token, usual = token_from_seed(1), "train_full" if mode == "backward" else "inference"
    alone = prepare_memory(graph, mode=mode, preset="train_full", token=token, arenas=default_arenas(1))
    packed = prepare_memory(graph, mode=mode, preset=usual, token=token, arenas=default_arenas(64))
    return alone.metrics["bound_bytes.stack"], packed.metrics["peak_bytes.stack"]


def seen_bytes(request: CaptureRequest) -> int:
    """What the interceptor sees in the first step of the model on real tensors."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = EagerModel(request)
        before = [*model.states.values(), *model.inputs.values()]
        with Interceptor() as seen:
            results = [tensor for _, tensor in named_tensors(model.step())]
    return live_peak(seen, before, results)
