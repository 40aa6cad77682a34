"""A callback of Lightning's ``Trainer``: plans the training step on its first batch, before it runs.

    Trainer(..., callbacks=[MemoryPlanCheck("24GB")])

For ``lightning.pytorch``, and for ``pytorch_lightning`` where that alone is installed or used.
"""

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal

from tmmu.api.memory_plan import MemoryPlan
from tmmu.integrations.lightning_step import training_step
from tmmu.integrations.memory_check import SILENT, MemoryCheck, check_step
from tmmu.summary.plan_summary import DEFAULT_RESERVE

if TYPE_CHECKING or find_spec("lightning"):
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback

LOG: Final = logging.getLogger(f"{Callback.__module__.partition('.callbacks')[0]}.tmmu")  # beside the trainer's own


class MemoryPlanCheck(Callback):
    """Says what a training step needs before the first one runs, and refuses one that does not fit.

    ``memory`` (default: the device's own), ``reserve``, ``device``, ``on_misfit``: as ``MemoryCheck``. Afterwards
    ``memory_plan`` is the plan, ``None`` where there is none yet.

    Planned are ``training_step`` with the first batch under the trainer's precision, backward, clipping, and the
    optimizer; with accumulation, two batches; with manual optimization, ``training_step`` alone. It runs three times on
    a twin of the module, which logs nothing. Nothing of the trainer is changed. Errors: ``DEVICE_MEMORY``; a step that
    cannot be planned is a warning.
    """

    def __init__(
        self,
        memory: str | int | None = None,
        *,
        reserve: str | int = DEFAULT_RESERVE,
        device: Literal["cuda", "cpu"] | None = None,
        on_misfit: Literal["refuse", "warn"] = "refuse",
    ) -> None:
        self.check = MemoryCheck(memory=memory, reserve=reserve, device=device, on_misfit=on_misfit)
        self.memory_plan: MemoryPlan | None = None
        self._is_planned = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """A new fit is planned anew."""
        self._is_planned = False

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Plan the step with the first batch."""
        if self._is_planned:
            return
        self._is_planned = True
        step = training_step(trainer, pl_module, batch_idx)
        log = LOG if trainer.is_global_zero else SILENT
        self.memory_plan = check_step(step, {"batch": batch}, self.check, pl_module.parameters(), log)
