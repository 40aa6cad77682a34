"""Losses that tmmu takes of a model's output itself, as a training script would: ``--loss cross_entropy|mse|sum``.

The output is ``logits`` where the model returns something of that name, else its first floating tensor. What it is
compared with is one more input of the step, whose shape is the output's: of classes, ``labels`` without the dimension
of classes, which is the last of sequences (up to three dimensions) and the second of images (four and more);
of numbers, ``target``. Nothing is shifted: who trains a language model gives labels that are.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch.nn import functional

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.ir.graph import LOSS_MODULE
from tmmu.passes.capture.tree import named_tensors

SEQUENCE_DIMENSIONS: Final = 3
"""Most dimensions of an output whose last one is the classes."""
_FIX: Final = "take another --loss, or define loss(model, *inputs) in the file"


class SupervisionKeeper(Protocol):
    """What a loss tells its recorder."""

    def in_stage(self, stage: str, /, *, module: str = "") -> AbstractContextManager[None]:
        """Block whose calls belong to this stage; ``module`` is noted for those of no module."""

    def keep_supervision(self, make: Callable[[], torch.Tensor], /, *, name: str) -> torch.Tensor:
        """The input that the output is compared with: the caller's, or else what ``make`` gives."""


def supervision_name(loss: str | None) -> str | None:
    """The input that a loss adds to those of the model; ``None`` for none."""
    return {"cross_entropy": "labels", "mse": "target"}.get(loss or "")


def loss_of_output(loss: str, output: Any, keeper: SupervisionKeeper) -> torch.Tensor:
    """The scalar loss of what the model returned. Its ops have the module ``loss:NAME``, with ``:dim=N`` of classes."""
    if loss not in _LOSSES:
        raise InvalidConfig(f"no loss {loss!r}", fix=f"choose one of {', '.join(_LOSSES)}")
    prediction = _prediction(output)
    if prediction is None:
        raise CaptureFailed(f"the model returns no floating tensor to take {loss} of", fix=_FIX)
    return _LOSSES[loss](prediction, keeper)


def _prediction(output: Any) -> torch.Tensor | None:
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    candidates = [logits, *(tensor for _, tensor in named_tensors(output))]
    return next((t for t in candidates if isinstance(t, torch.Tensor) and t.is_floating_point()), None)


def _cross_entropy(output: torch.Tensor, keeper: SupervisionKeeper) -> torch.Tensor:
    dim = class_dimension(output)
    shape = (*output.shape[:dim], *output.shape[dim + 1 :])
    labels = keeper.keep_supervision(lambda: output.new_zeros(shape, dtype=torch.int64), name="labels")
    with keeper.in_stage("forward", module=f"{LOSS_MODULE}cross_entropy:dim={dim}"):
        if output.dim() == SEQUENCE_DIMENSIONS:
            return functional.cross_entropy(output.reshape(-1, output.shape[dim]), labels.reshape(-1))
        return functional.cross_entropy(output, labels)


def class_dimension(output: torch.Tensor) -> int:
    """The dimension of classes; ``CAPTURE_FAILED`` for an output that has none."""
    dim = output.dim() - 1 if output.dim() <= SEQUENCE_DIMENSIONS else 1
    if output.dim() == 0 or output.shape[dim] < 2:
        shape = ", ".join(map(str, output.shape))
        raise CaptureFailed(f"cross_entropy needs two classes or more, and the output is [{shape}]", fix=_FIX)
    return dim


def _mean_square(output: torch.Tensor, keeper: SupervisionKeeper) -> torch.Tensor:
    # What a loader gives is no half precision because a region of autocast makes the output so.
    dtype = torch.float32 if torch.is_autocast_enabled(output.device.type) else output.dtype
    make = partial(torch.zeros, output.shape, dtype=dtype, device=output.device)
    target = keeper.keep_supervision(make, name="target")
    with keeper.in_stage("forward", module=f"{LOSS_MODULE}mse"):
        return functional.mse_loss(output, target)


def _sum(output: torch.Tensor, keeper: SupervisionKeeper) -> torch.Tensor:
    with keeper.in_stage("forward", module=f"{LOSS_MODULE}sum"):
        return output.sum()


_LOSSES: Final[Mapping[str, Callable[[torch.Tensor, SupervisionKeeper], torch.Tensor]]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mean_square,
    "sum": _sum,
}
