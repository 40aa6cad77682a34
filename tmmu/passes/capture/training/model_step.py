"""One training step, as eager PyTorch takes it: loss, backward, and the optimizer's update."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

import torch

from tmmu.errors import CaptureFailed
from tmmu.ir.graph import PARAMETER, UPDATE_MODULE
from tmmu.passes.capture.activities import Activity, in_activity
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.training.losses import SupervisionKeeper, loss_of_output
from tmmu.passes.capture.training.optimizers import FileOptimizer, StateKeeper, Update, parse_optimizer, update
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.capture.workload import Workload

NO_OPTIMIZER: Final = "none"
"""Asks for gradients alone where the file has an optimizer."""
_AUTOCAST: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


class StepRecorder(StateKeeper, SupervisionKeeper, Protocol):
    """What a training step tells its recorder."""


def evaluate(workload: Workload, request: CaptureRequest) -> Any:
    """What the model returns, without gradients."""
    with torch.no_grad(), autocast_region(request):
        return workload.run(*workload.args, **workload.kwargs)


def autocast_region(request: CaptureRequest) -> AbstractContextManager[Any]:
    """The region of ``--autocast`` on the request's device, which ends before the backward pass."""
    if request.autocast is None:
        return nullcontext()
    return torch.autocast(request.device, dtype=_AUTOCAST[request.autocast])


def train_step(workload: Workload, recorder: StepRecorder, request: CaptureRequest) -> list[torch.Tensor]:
    """The loss and the gradients after one step; the loss alone where an optimizer has consumed the gradients.

    The request's device decides the form of an optimizer that names none.
    """
    spec = _update_of(workload, request)
    with autocast_region(request):
        loss = _loss(workload, request.loss, recorder)
    _require_trainable(loss)
    with recorder.in_stage("backward"), in_activity(Activity.BACKWARD):
        loss.backward()
    trained = _trained_parameters(workload)
    if spec is None:
        return [loss.detach(), *(grad for _, _, grad in trained), *_input_gradients(workload)]
    with recorder.in_stage("update", module=f"{UPDATE_MODULE}{spec.text}"), in_activity(Activity.OPTIMIZER):
        update(spec, trained, recorder)
    for _, parameter, _ in trained:
        parameter.grad = None
    return [loss.detach()]


def _update_of(workload: Workload, request: CaptureRequest) -> Update | None:
    """What updates: the class that is asked for, else what the file makes; ``None`` for gradients alone."""
    if request.optimizer == NO_OPTIMIZER:
        return None
    if request.optimizer is not None:
        return parse_optimizer(request.optimizer, request.device)
    return None if workload.optimizer is None else FileOptimizer(workload.optimizer)


def _loss(workload: Workload, loss_name: str | None, recorder: StepRecorder) -> Any:
    if loss_name is not None:
        output = workload.run(*workload.args, **workload.kwargs)
        with in_activity(Activity.LOSS):
            return loss_of_output(loss_name, output, recorder)
    if workload.loss is not None:
        with in_activity(Activity.LOSS):
            return workload.loss(workload.run, *workload.args, **workload.kwargs)
    return _own_loss(workload.run(*workload.args, **workload.kwargs))


def _require_trainable(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise CaptureFailed(
            "the model has no scalar loss to train on",
            fix="define loss(model, *args, **kwargs), return .loss, or give --loss",
        )
    if not torch.is_grad_enabled():
        raise CaptureFailed("gradients are off", fix="leave out torch.set_grad_enabled(False) in the model's file")
    if not loss.requires_grad:
        raise CaptureFailed("the loss depends on no trainable parameter", fix="unfreeze a parameter, or plan inference")


def _own_loss(out: Any) -> Any:
    """The loss in what a model returns: named so, or the only scalar that can be trained among several results."""
    if isinstance(out, Mapping):
        return out.get("loss")
    if isinstance(out, (tuple, list)) and not hasattr(out, "loss"):
        scalars = [t for t in out if isinstance(t, torch.Tensor) and t.numel() == 1 and t.requires_grad]
        return scalars[0] if len(scalars) == 1 else None
    return getattr(out, "loss", out)


def _trained_parameters(workload: Workload) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, parameter, gradient) for each parameter that got one: those that the workload owns, else its module's."""
    module = workload.module
    owned = [(entry.name, entry.tensor) for entry in workload.owned if entry.role == PARAMETER]
    parameters = owned or ([] if module is None else list(module.named_parameters()))
    distinct = {id(parameter): (name, parameter) for name, parameter in reversed(parameters)}
    return [(name, p, p.grad) for name, p in reversed(distinct.values()) if p.grad is not None]


def _input_gradients(workload: Workload) -> list[torch.Tensor]:
    """Gradients of inputs that ask for one."""
    inputs = named_tensors((list(workload.args), dict(workload.kwargs)))
    return [tensor.grad for _, tensor in inputs if tensor.is_leaf and tensor.grad is not None]
