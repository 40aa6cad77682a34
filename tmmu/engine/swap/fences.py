"""The fences of swapping: which access each one protects from which other, and what happens without it.

Each is asked for by name where it is set, so that a test can remove it and see an oracle notice.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class SwapFence(StrEnum):
    """Each is needed: without it there is an interleaving in which an oracle finds a fault."""

    STEP_BEFORE_OUT = "step_before_out"
    """RAW. A copy to the host waits for the last step of its session.

    Without it the host has bytes from before the step, or half of each.
    """
    OUT_LANDED = "out_landed"
    """WAR and RAW. A copy to the host is over when the host has waited for it, not when it was issued.

    Without it the next step writes what is still read, and a copy back reads what is not there yet.
    """
    IN_LANDED = "in_landed"
    """RAW. A copy to the device is over when the host has waited for it.

    Without it a step reads what was there before.
    """
    STEP_BEFORE_CLEAR = "step_before_clear"
    """WAR. A room is cleared after the last step of the session that leaves it.

    Without it the step reads zeros, or leaves its writes to whoever comes next.
    """
    CLEARED = "cleared"
    """WAW. A room is free when the host has waited until it was cleared.

    Without it zeros land on the bytes of whoever comes next.
    """
    DRAIN = "drain"
    """Use after free. The host waits for all copies before the memory is released.

    Without it a copy lands in memory that belongs to someone else.
    """


SwapFenceFilter: TypeAlias = Callable[[SwapFence], bool]
"""Whether a fence is set. Only tests use another than ``all_fences``."""


def all_fences(fence: SwapFence) -> bool:
    """Every fence is set."""
    del fence
    return True
