"""The training step of a Lightning module as a function: what the trainer does with one batch.

The function closes over the module, its optimizers and the trainer's precision, never over the trainer, which holds
data, loggers and files. What a module asks its trainer for are values taken here, and logging does nothing.
"""

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from torch import nn

_TRAINER_VALUES: Final = (
    *("current_epoch", "global_step", "global_rank", "local_rank", "node_rank", "world_size", "num_devices"),
    *("is_global_zero", "max_epochs", "max_steps", "min_epochs", "min_steps", "accumulate_grad_batches", "precision"),
    *("gradient_clip_val", "gradient_clip_algorithm", "num_training_batches", "default_root_dir", "training"),
)
"""What a module may read of its trainer in a step."""


def training_step(trainer: Any, module: Any, batch_index: int) -> Callable[..., object]:
    """The step of one update, of a parameter ``batch``."""
    optimizers, precision = list(trainer.optimizers), trainer.precision_plugin
    values = {name: getattr(trainer, name) for name in _TRAINER_VALUES}
    arguments = (batch_index,) if _takes_index(module.training_step) else ()
    batches = min(trainer.accumulate_grad_batches, 2)

    def manual(batch: Any) -> object:
        stand_alone(module, optimizers, precision, values)
        with precision.train_step_context():
            return module.training_step(batch, *arguments)

    def automatic(batch: Any) -> None:
        stand_alone(module, optimizers, precision, values)
        (optimizer,) = optimizers
        outputs: list[object] = []  # held until the update is done

        def closure(*, is_first: bool = True) -> Any:
            with precision.train_step_context():
                outputs[:] = [module.training_step(batch, *arguments)]
            loss = _loss_of(outputs[0]) / batches
            if is_first:
                optimizer.zero_grad()
            module.manual_backward(loss)
            return loss

        def last_closure() -> Any:
            loss = closure(is_first=batches == 1)
            if getattr(precision, "scaler", None) is None:
                _clip(module, optimizer)
            return loss

        if batches > 1:
            closure()
        _update(module, optimizer, precision, last_closure)

    return automatic if module.automatic_optimization else manual


def stand_alone(module: Any, optimizers: list[Any], precision: Any, values: Mapping[str, Any]) -> None:
    """Make a twin of the module independent of its trainer: values for what it reads, nothing for what it logs."""
    scaler = getattr(precision, "scaler", None)

    def manual_backward(loss: Any, *args: Any, **kwargs: Any) -> None:
        (loss if scaler is None else scaler.scale(loss)).backward(*args, **kwargs)

    def clip_gradients(
        optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
        if gradient_clip_val and str(gradient_clip_algorithm or "norm") == "value":
            nn.utils.clip_grad_value_(parameters, gradient_clip_val)
        elif gradient_clip_val:
            nn.utils.clip_grad_norm_(parameters, gradient_clip_val)

    patches = {
        "_trainer": SimpleNamespace(**values, optimizers=optimizers, callbacks=[], loggers=[], logger=None),
        "log": _nothing,
        "log_dict": _nothing,
        "optimizers": lambda **_: optimizers[0] if len(optimizers) == 1 else optimizers,
        "lr_schedulers": _nothing,
        "manual_backward": manual_backward,
        "clip_gradients": clip_gradients,
    }
    for part in module.modules():
        if hasattr(part, "manual_backward"):
            part.__dict__.update(patches)


def _update(module: Any, optimizer: Any, precision: Any, closure: Callable[[], Any]) -> None:
    """One update; a scaler takes the gradients first, and clipping stands between."""
    scaler = getattr(precision, "scaler", None)
    if scaler is None:
        optimizer.step(closure)
        return
    closure()
    scaler.unscale_(optimizer)
    _clip(module, optimizer)
    scaler.step(optimizer)
    scaler.update()


def _clip(module: Any, optimizer: Any) -> None:
    """As the module says, which is by the trainer's arguments."""
    trainer = module._trainer
    module.configure_gradient_clipping(
        optimizer,
        gradient_clip_val=trainer.gradient_clip_val,
        gradient_clip_algorithm=trainer.gradient_clip_algorithm,
    )


def _loss_of(output: Any) -> Any:
    return output["loss"] if isinstance(output, Mapping) else output


def _takes_index(function: Callable[..., object]) -> bool:
    return len(inspect.signature(function).parameters) > 1


def _nothing(*_: Any, **__: Any) -> None:
    """What stands for logging, and for schedules, which take no memory."""
