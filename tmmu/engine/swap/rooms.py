"""Rooms of sessions as arenas of the data segment, and copies as ranges of the host tier, for the swapper."""

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from tmmu.engine.swap.host_tier import HostTier
from tmmu.engine.swap.link import SwapLink
from tmmu.engine.swap.states import SwapState
from tmmu.errors import SegmentFull
from tmmu.runtime.memory.data import DataSegment

if TYPE_CHECKING:
    from tmmu.engine.policies.swapper import Swapper


class ArenaRooms:
    """What a ``Swapper`` tells of rooms, by the numbers of sessions. The swapper is set before its first call.

    Invariant: an arena is all zeros when it is reserved, and reclaimed when it was cleared and the host knows.
    """

    swapper: "Swapper"

    def __init__(self, data: DataSegment, host: HostTier, link: SwapLink) -> None:
        self._data, self._host, self._link = data, host, link
        self._names = count()
        self.states: dict[int, SwapState] = {}

    @property
    def largest_free(self) -> int:
        """Bytes of the longest gap of the data segment."""
        return self._data.usage.largest_free

    def take(self, session: int) -> bool:
        """Reserves an arena."""
        state = self.states[session]
        name = f"session {session}, place {next(self._names)}"
        try:
            state.owner.base = self._data.reserve(name, state.owner.arena_bytes)
        except SegmentFull:
            return False
        state.arena, state.arrived, state.has_moved = name, 0, True
        self._host.counts.sessions_in += state.has_left
        state.has_left = False
        return True

    def clear(self, session: int) -> None:
        """Zeroes the arena behind all that uses it; it is free when that has landed."""
        state = self.states[session]
        self._link.clear(state, partial(self._reclaim, state.arena, state.room))
        state.arena, state.is_ready = "", False
        if not state.is_closed:
            self._host.counts.sessions_out += 1
            state.has_left = True

    def drop_copy(self, session: int) -> None:
        """Frees and wipes the ranges of the image; a closed session is forgotten."""
        state = self.states[session]
        ranges = state.image.forget()
        self._host.free(ranges)
        self._link.wipe(ranges)
        if state.is_closed:
            self._link.forget_step(state)
            del self.states[session]

    def _reclaim(self, arena: str, room: int) -> bool:
        self._data.reclaim(arena)
        self.swapper.end_clearing(room)
        return True
