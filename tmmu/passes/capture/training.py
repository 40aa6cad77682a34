"""One training step, as eager PyTorch takes it: loss, backward, and the optimizer's fused update."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.capture.workload import Workload


class StepRecorder(Protocol):
    """What a training step tells its recorder."""

    def in_stage(self, stage: str, /) -> AbstractContextManager[None]:
        """Block whose calls belong to this stage."""

    def pause(self) -> AbstractContextManager[None]:
        """Block whose calls are no part of the program."""

    def keep_state(self, tensor: torch.Tensor, /, *, name: str) -> torch.Tensor:
        """The tensor that outlives the step under this name: the one of an earlier step, or else this one."""


def train_step(workload: Workload, recorder: StepRecorder, *, optimizer: str | None) -> list[torch.Tensor]:
    """The loss and the gradients after one step; the loss alone where an optimizer has consumed the gradients."""
    loss = _loss(workload)
    with recorder.in_stage("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    trained = _trained_parameters(workload)
    if optimizer is None:
        return [loss.detach(), *(grad for _, _, grad in trained), *_input_gradients(workload)]
    with recorder.in_stage("update"):
        _OPTIMIZERS[optimizer](trained, recorder)
    for _, parameter, _ in trained:
        parameter.grad = None
    return [loss.detach()]


def _loss(workload: Workload) -> torch.Tensor:
    if workload.loss is not None:
        loss = workload.loss(workload.run, *workload.args, **workload.kwargs)
    else:
        loss = _own_loss(workload.run(*workload.args, **workload.kwargs))
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise CaptureFailed(
            "the model has no scalar loss to train on", fix="define loss(model, *args, **kwargs), or return .loss"
        )
    if not loss.requires_grad:
        raise CaptureFailed("the loss depends on no trainable parameter", fix="unfreeze a parameter, or plan inference")
    return loss


def _own_loss(out: Any) -> Any:
    """The loss in what a model returns: named so, or the only scalar that can be trained among several results."""
    if isinstance(out, Mapping):
        return out.get("loss")
    if isinstance(out, (tuple, list)) and not hasattr(out, "loss"):
        scalars = [t for t in out if isinstance(t, torch.Tensor) and t.numel() == 1 and t.requires_grad]
        return scalars[0] if len(scalars) == 1 else None
    return getattr(out, "loss", out)


Trained = list[tuple[str, torch.Tensor, torch.Tensor]]


def _trained_parameters(workload: Workload) -> Trained:
    """(name, parameter, gradient) for each parameter that got one."""
    module = workload.module
    parameters = module.named_parameters() if module is not None else ()
    return [(name, p, p.grad) for name, p in parameters if p.grad is not None]


def _input_gradients(workload: Workload) -> list[torch.Tensor]:
    """Gradients of inputs that ask for one."""
    inputs = named_tensors((list(workload.args), dict(workload.kwargs)))
    return [tensor.grad for _, tensor in inputs if tensor.is_leaf and tensor.grad is not None]


def _by_dtype(trained: Trained) -> list[Trained]:
    groups: dict[torch.dtype, Trained] = {}
    for entry in trained:
        groups.setdefault(entry[1].dtype, []).append(entry)
    return list(groups.values())


def _adamw(trained: Trained, recorder: StepRecorder) -> None:
    for group in _by_dtype(trained):
        names = [name for name, _, _ in group]
        parameters = [p.detach() for _, p, _ in group]
        averages = _moments("exp_avg", names, parameters, recorder)
        squares = _moments("exp_avg_sq", names, parameters, recorder)
        with recorder.pause():
            counts = [torch.empty((), dtype=torch.float32) for _ in group]
        steps = _states("step", names, counts, recorder)
        torch.ops.aten._foreach_add_.Scalar(steps, 1)
        torch.ops.aten._fused_adamw_.default(
            parameters, [g for _, _, g in group], averages, squares, [], steps,
            amsgrad=False, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=1e-2, eps=1e-8, maximize=False,
        )  # fmt: skip


def _sgd(trained: Trained, recorder: StepRecorder) -> None:
    del recorder
    for group in _by_dtype(trained):
        torch.ops.aten._fused_sgd_.default(
            [p.detach() for _, p, _ in group], [g for _, _, g in group], [],
            weight_decay=0.0, momentum=0.0, lr=1e-3, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip


def _moments(kind: str, names: list[str], like: list[torch.Tensor], recorder: StepRecorder) -> list[torch.Tensor]:
    with recorder.pause():
        tensors = [torch.empty_like(p) for p in like]
    return _states(kind, names, tensors, recorder)


def _states(kind: str, names: list[str], tensors: list[torch.Tensor], recorder: StepRecorder) -> list[torch.Tensor]:
    pairs = zip(names, tensors, strict=True)
    return [recorder.keep_state(tensor, name=f"optimizer.{kind}.{name}") for name, tensor in pairs]


_OPTIMIZERS: Mapping[str, Callable[[Trained, StepRecorder], None]] = {"adamw": _adamw, "sgd": _sgd}


def check_optimizer(name: str | None) -> None:
    """An optimizer that we know, or none."""
    if name is not None and name not in _OPTIMIZERS:
        raise InvalidConfig(f"no optimizer {name!r}", fix=f"choose one of {', '.join(_OPTIMIZERS)}")
