"""The fences of the streaming loop: which read each one protects from which write, and what is read without it.

Each is asked for by name where the loop sets it, so that a test can remove it and see an oracle notice. The hazards
are those of any pipeline: read after write (RAW), write after read (WAR), write after write (WAW), use after free.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class Fence(StrEnum):
    """Each is needed: without it there is a schedule in which an oracle finds a fault."""

    ARENA_CLEARED = "arena_cleared"
    """WAW. The copy stream waits until the arena was cleared on the caller's stream.

    Without it the clear lands on blocks that were copied already, and the first pass reads 255s.
    """
    RESIDENT_LOADED = "resident_loaded"
    """RAW. The caller's stream waits until the resident blocks have landed.

    Without it the first pass reads what was there before.
    """
    COPY_LANDED = "copy_landed"
    """RAW. The caller's stream waits for the copy of a visit before the visit.

    Without it the visit reads the block that had these bytes before, or half of each.
    """
    LAST_PIECE = "last_piece"
    """RAW. The event of a copy in several pieces is recorded after the last piece, not the first.

    Without it the visit reads a block whose end has not landed.
    """
    READERS_DONE = "readers_done"
    """WAR. A copy waits for the end of a visit whose bytes it overwrites.

    Without it the copy lands on a block that is still read.
    """
    NEWEST_READER = "newest_reader"
    """WAR. Of several such visits a copy waits for the newest. The compute stream is in order, so that covers them all.

    Without it the copy waits for the oldest and lands on blocks of later visits.
    """
    READERS_ISSUED = "readers_issued"
    """WAR. The host holds a copy back until all visits whose bytes it overwrites were left, and their ends recorded.

    Without it the copy waits for the event's record of the pass before, which is no wait: an event stands for its
    latest record at the moment when the wait is issued.
    """
    CALLER_SWITCH = "caller_switch"
    """RAW and WAR. When the caller goes on computing on another stream, that stream waits for the one before.

    Without it the ends that copies wait for cover only a part of the visit.
    """
    DRAIN = "drain"
    """Use after free. The host waits for all streams before the arena is released.

    Without it a copy lands in memory that belongs to someone else.
    """


FenceFilter: TypeAlias = Callable[[Fence, int, int], bool]
"""Whether a fence is set, for a visit (-1: for none) and a pass. Only tests use another than ``all_fences``."""


def all_fences(fence: Fence, visit: int, pass_index: int) -> bool:
    """Every fence is set."""
    del fence, visit, pass_index
    return True
