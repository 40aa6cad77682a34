"""A callback of ``transformers.Trainer``: plans the training step on its first batch, before it runs.

Trainer(..., callbacks=[MemoryPlanCallback(memory="24GB")])
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tmmu.api.memory_plan import MemoryPlan
from tmmu.integrations.memory_check import SILENT, MemoryCheck, check_step
from tmmu.summary.plan_summary import DEFAULT_RESERVE

LOG: Final = logging.getLogger("transformers.tmmu")  # shown as verbosely as the trainer's own


class MemoryPlanCallback(TrainerCallback):
    """Says what a training step needs before the first one runs, and refuses one that does not fit.

    ``memory`` (default: the device's own), ``reserve``, ``device``, ``on_misfit``: as ``MemoryCheck``. ``loss``: of the
    model's outputs, where it returns none. Afterwards ``memory_plan`` is the plan, ``None`` where there is none yet.

    Planned are forward with the first batch, backward, clipping, and the optimizer; with accumulation, two batches. The
    batch is the one that the trainer gives its model: no data is read, no generator moves, nothing of the trainer is
    changed. Errors: ``DEVICE_MEMORY``; a step that cannot be planned is a warning.
    """

    def __init__(
        self,
        memory: str | int | None = None,
        *,
        reserve: str | int = DEFAULT_RESERVE,
        device: Literal["cuda", "cpu"] | None = None,
        on_misfit: Literal["refuse", "warn"] = "refuse",
        loss: Callable[[Any], torch.Tensor] | None = None,
    ) -> None:
        self.check = MemoryCheck(memory=memory, reserve=reserve, device=device, on_misfit=on_misfit)
        self.memory_plan: MemoryPlan | None = None
        self._loss = loss or model_loss
        self._hook: torch.utils.hooks.RemovableHandle | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait for the first batch: a hook on the model, which goes when the batch has come."""
        self._remove_hook()
        model, optimizer = kwargs["model"], _torch_optimizer(kwargs["optimizer"])
        if optimizer is None:
            name = type(kwargs["optimizer"]).__name__
            LOG.warning("tmmu: the training step is not planned: its optimizer is a %s, none of torch.optim", name)
            return

        def plan_first_batch(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            if module is not model or not module.training or not torch.is_grad_enabled():
                return
            self._remove_hook()
            step = training_step(model, optimizer, args, self._loss)
            log = LOG if state.is_world_process_zero else SILENT
            self.memory_plan = check_step(step, (positional, named), self.check, model.parameters(), log)

        hook = torch.compiler.disable(plan_first_batch)  # type: ignore[no-untyped-call]
        self._hook = model.register_forward_pre_hook(hook, with_kwargs=True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave nothing on a model that was never trained."""
        self._remove_hook()

    def _remove_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    args: TrainingArguments,
    loss: Callable[[Any], torch.Tensor],
) -> Callable[[tuple[tuple[Any, ...], dict[str, Any]]], torch.Tensor]:
    """What the trainer does between two updates, with what it reads from ``args`` as numbers."""
    batches = min(args.gradient_accumulation_steps, 2)
    norm = float(args.max_grad_norm or 0)

    def step(batch: tuple[tuple[Any, ...], dict[str, Any]]) -> torch.Tensor:
        positional, named = batch
        for _ in range(batches):
            value = loss(model(*positional, **named)) / batches
            value.backward()  # type: ignore[no-untyped-call]
        if norm > 0:
            nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        model.zero_grad()
        return value.detach()

    return step


def model_loss(outputs: Any) -> torch.Tensor:
    """The loss among a model's outputs, where the trainer looks for it."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(loss, torch.Tensor):
        raise TypeError("the model returns no loss; say it: MemoryPlanCallback(loss=lambda outputs: ...)")
    return loss


def _torch_optimizer(optimizer: Any) -> torch.optim.Optimizer | None:
    """Without the wrapper of accelerate, which skips updates while gradients are accumulated; none of another kind."""
    wrapped = getattr(optimizer, "optimizer", optimizer)
    return wrapped if isinstance(wrapped, torch.optim.Optimizer) else None
