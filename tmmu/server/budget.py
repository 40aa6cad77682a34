"""Which bytes each model of a server may take."""

from collections.abc import Sequence

from tmmu.errors import DeviceMemory
from tmmu.server.settings import ServerSettings


def share_budget(budget: int | None, weights: Sequence[int]) -> list[int | None]:
    """The bytes of each model: those of its weights, and an equal share of what all weights leave of the budget.

    ``None`` for each without a budget. ``DEVICE_MEMORY`` where the weights alone are more.
    """
    if budget is None:
        return [None] * len(weights)
    left = budget - sum(weights)
    if left < 0:
        raise DeviceMemory(
            f"the weights of {len(weights)} models take {sum(weights)} bytes, and the budget is {budget}",
            fix="give a larger --budget, or fewer models",
            budget=budget,
            weights=sum(weights),
        )
    return [size + left // len(weights) for size in weights]


def require_minimum(settings: ServerSettings) -> None:
    """``DEVICE_MEMORY`` where a server without a budget would begin with less than the least."""
    from tmmu.runtime.memory.sizing import Sizing, device_memory, device_of, segment_sizes  # noqa: PLC0415 - torch

    if settings.budget is None:
        free, total = device_memory(device_of(settings.device))
        rules = Sizing(os_reserve=settings.os_reserve, margin=settings.safety_margin, minimum=settings.minimum)
        segment_sizes(free, total, rules)
