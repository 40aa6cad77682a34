"""Whether a trainer's step fits its device: planned before the first step, told or refused."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from tmmu.api.memory_plan import MemoryPlan
from tmmu.api.plan import plan
from tmmu.errors import DeviceMemory, InvalidConfig, TmmuError
from tmmu.planner.arenas import parse_size, readable_size
from tmmu.summary.plan_summary import DEFAULT_RESERVE

SILENT: Final = logging.Logger("tmmu", logging.CRITICAL + 1)
"""For the processes of a distributed run that do not speak."""
MISFIT_CHOICES: Final = ("refuse", "warn")
_FIX: Final = 'a smaller batch, a lower precision, activation checkpointing, or on_misfit="warn"'


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheck:
    """What a step may take, and what becomes of one that takes more.

    ``memory``: a size such as ``"24GB"`` or bytes; ``None`` is that of the device where the weights are, and no limit
    on a CPU. ``reserve``: kept free of it for what is not planned. ``device``: whose kernels; ``None`` is where the
    weights are. ``on_misfit``: ``refuse`` raises ``DEVICE_MEMORY``, ``warn`` logs it.
    """

    memory: str | int | None = None
    reserve: str | int = DEFAULT_RESERVE
    device: Literal["cuda", "cpu"] | None = None
    on_misfit: Literal["refuse", "warn"] = "refuse"

    def __post_init__(self) -> None:
        """``INVALID_CONFIG`` where the trainer is made, not at its first step."""
        if self.on_misfit not in MISFIT_CHOICES:
            raise InvalidConfig(
                f"on_misfit={self.on_misfit!r} is no choice", fix=f"name one of {', '.join(MISFIT_CHOICES)}"
            )
        for size in (self.memory, self.reserve):
            _size_in_bytes(size)


def check_step(
    step: Callable[..., object],
    inputs: Any,
    check: MemoryCheck,
    weights: Iterable[torch.Tensor],
    log: logging.Logger,
) -> MemoryPlan | None:
    """Plan ``step`` and log both figures; ``DEVICE_MEMORY`` where it does not fit and ``check`` refuses.

    A step that cannot be planned is logged as a warning: ``None``. Nothing that the step reaches is changed.
    """
    place = next((weight.device for weight in weights), torch.device("cpu"))
    device = check.device or ("cpu" if place.type == "cpu" else "cuda")
    try:
        memory_plan = plan(step, inputs, device=device)
    except TmmuError as error:
        log.warning("tmmu: the training step is not planned: %s", error)
        return None
    log.info("tmmu: %s", step_figures(memory_plan))
    limit = _device_bytes(place) if check.memory is None else _size_in_bytes(check.memory)
    if limit is not None:
        _require_fit(memory_plan, limit, check, log)
    return memory_plan


def step_figures(memory_plan: MemoryPlan) -> str:
    """Both figures of a step in a sentence, and the first step where it takes more."""
    eager, first = memory_plan.eager, memory_plan.first_step
    whole, stack, planned = map(readable_size, (eager.total_bytes, eager.stack_bytes, memory_plan.total))
    text = (
        f"the training step needs {whole} as it is, {stack} of it beside weights, state and inputs, and {planned} "
        "inside its plan"
    )
    if first is not None and first.total_bytes > eager.total_bytes:
        text += f"; the first step {readable_size(first.total_bytes)}"
    return text


def _require_fit(memory_plan: MemoryPlan, limit: int, check: MemoryCheck, log: logging.Logger) -> None:
    needed, reserve = memory_plan.needed_bytes, _size_in_bytes(check.reserve) or 0
    if needed + reserve <= limit:
        return
    eager = memory_plan.eager
    error = DeviceMemory(
        f"{step_figures(memory_plan)}; with {readable_size(reserve)} in reserve that is "
        f"{readable_size(needed + reserve - limit)} more than {readable_size(limit)}, and fullest at "
        f"{eager.maker} ({eager.source})",
        fix=_FIX,
        needed=needed,
        reserve=reserve,
        capacity=limit,
    )
    if check.on_misfit == "refuse":
        raise error
    log.warning("tmmu: %s", error)


def _device_bytes(place: torch.device) -> int | None:
    """All memory of a GPU; ``None`` for other devices, whose size says nothing."""
    return torch.cuda.get_device_properties(place).total_memory if place.type == "cuda" else None


def _size_in_bytes(size: str | int | None) -> int | None:
    if isinstance(size, str):
        return parse_size(size)
    if size is not None and (type(size) is not int or size < 0):
        raise InvalidConfig(f"{size!r:.80} is not a size", fix='write bytes, or a text such as "24GB"')
    return size
