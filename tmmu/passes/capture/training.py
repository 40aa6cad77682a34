"""One training step, as eager PyTorch takes it: loss, backward, and the optimizer's fused update."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.capture.workload import Workload


class Recording(Protocol):
    """What a training step tells whoever records it."""

    def in_stage(self, stage: str, /) -> AbstractContextManager[None]:
        """What runs inside belongs to this stage."""

    def paused(self) -> AbstractContextManager[None]:
        """What runs inside is no part of the program."""

    def kept(self, tensor: torch.Tensor, /, *, name: str) -> torch.Tensor:
        """The tensor that outlives the step under this name: this one, or the one of an earlier step."""


def train_step(workload: Workload, recorder: Recording, *, optimizer: str | None) -> list[torch.Tensor]:
    """The loss and the gradients after one step; the loss alone where an optimizer has consumed the gradients."""
    loss = _loss(workload)
    with recorder.in_stage("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    trained = _trained(workload)
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


def _trained(workload: Workload) -> Trained:
    """(name, parameter, gradient) for each parameter that got one."""
    module = workload.module
    named = module.named_parameters() if module is not None else ()
    return [(name, p, p.grad) for name, p in named if p.grad is not None]


def _input_gradients(workload: Workload) -> list[torch.Tensor]:
    """Gradients of inputs that ask for one."""
    given = named_tensors((list(workload.args), dict(workload.kwargs)))
    return [tensor.grad for _, tensor in given if tensor.is_leaf and tensor.grad is not None]


def _by_dtype(trained: Trained) -> list[Trained]:
    groups: dict[torch.dtype, Trained] = {}
    for entry in trained:
        groups.setdefault(entry[1].dtype, []).append(entry)
    return list(groups.values())


def _adamw(trained: Trained, recorder: Recording) -> None:
    for group in _by_dtype(trained):
        names = [name for name, _, _ in group]
        parameters = [p.detach() for _, p, _ in group]
        averages = _moments("exp_avg", names, parameters, recorder)
        squares = _moments("exp_avg_sq", names, parameters, recorder)
        with recorder.paused():
            counts = [torch.empty((), dtype=torch.float32) for _ in group]
        steps = _states("step", names, counts, recorder)
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            parameters, [g for _, _, g in group], averages, squares, [], steps,
            amsgrad=False, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=1e-2, eps=1e-8, maximize=False,
        )  # fmt: skip


def _sgd(trained: Trained, recorder: Recording) -> None:
    del recorder
    for group in _by_dtype(trained):
        torch._fused_sgd_(
            [p.detach() for _, p, _ in group], [g for _, _, g in group], [],
            weight_decay=0.0, momentum=0.0, lr=1e-3, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip


def _moments(kind: str, names: list[str], like: list[torch.Tensor], recorder: Recording) -> list[torch.Tensor]:
    with recorder.paused():
        tensors = [torch.empty_like(p) for p in like]
    return _states(kind, names, tensors, recorder)


def _states(kind: str, names: list[str], tensors: list[torch.Tensor], recorder: Recording) -> list[torch.Tensor]:
    named = zip(names, tensors, strict=True)
    return [recorder.kept(tensor, name=f"optimizer.{kind}.{name}") for name, tensor in named]


_OPTIMIZERS: Mapping[str, Callable[[Trained, Recording], None]] = {"adamw": _adamw, "sgd": _sgd}


def check_optimizer(name: str | None) -> None:
    """An optimizer that we know, or none."""
    if name is not None and name not in _OPTIMIZERS:
        raise InvalidConfig(f"no optimizer {name!r}", fix=f"choose one of {', '.join(_OPTIMIZERS)}")
