"""What swapping knows of one session: where its state is, who needs it, and why it cannot have its room."""

from dataclasses import dataclass
from typing import Protocol

from tmmu.engine.geometry import StateLengths
from tmmu.engine.swap.state_image import StateImage
from tmmu.errors import TmmuError
from tmmu.runtime.device.interface import Event


class StateOwner(Protocol):
    """A session, as far as swapping knows: positions that it has read and has room for, and where its arena begins."""

    capability: str
    capacities: StateLengths
    base: int
    arena_bytes: int

    @property
    def rank(self) -> int:
        """Of its class; 0 is the highest."""

    @property
    def lengths(self) -> StateLengths:
        """Positions that it has read."""


@dataclass(slots=True, kw_only=True, eq=False)
class SwapState:
    """``number``: the swapper's. ``room``: bytes of its arena, padded. ``needs``: how many wait for it or hold it."""

    owner: StateOwner
    number: int
    room: int
    image: StateImage
    needs: int = 0
    holds: int = 0
    """How many of these have no step to run: a paused step is there to be looked at."""
    arena: str = ""
    """The name of its reservation in the data segment; empty where it has none."""
    last_step: Event | None = None
    """Behind its last step; ``None`` before the first."""
    is_ready: bool = False
    """Whether a step of it may run: it is needed, whole on the device, and none of its bytes moves."""
    has_moved: bool = False
    """Whether views of its arena are out of date."""
    has_left: bool = False
    """Whether it made room for others since it was last on the device."""
    is_closed: bool = False
    arrived: int = 0
    """Bytes of its image whose copies back were issued."""
    refusal: TmmuError | None = None
    """Why whoever waits for it is refused."""

    @property
    def base(self) -> int:
        """Where its arena begins in the data segment."""
        return self.owner.base

    @property
    def lengths(self) -> StateLengths:
        """Positions that are in the state."""
        return self.owner.lengths

    @property
    def capacities(self) -> StateLengths:
        """Positions for which its arena has room."""
        return self.owner.capacities
