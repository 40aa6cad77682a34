"""Arenas of sessions that stay on the device from when they are opened until they are closed."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from tmmu.engine.session import Session
from tmmu.engine.swap.host_tier import HostTier
from tmmu.errors import SegmentFull
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.zero import zero_tensor


class FixedArenas:
    """As ``SessionSwapping``, where nobody makes room for others: whoever has an arena may run, and none moves."""

    evictions = (0, 0)
    """Sessions that left early, and late."""
    missed = 0
    """Sessions that are needed and have no room."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.host = HostTier(0)

    # -- clients

    def open(self, session: Session) -> None:
        """Gives a session its arena. ``SEGMENT_FULL`` where there is no room."""
        session.base = self._segments.data.reserve(session.arena, session.arena_bytes)

    def settle(self, session: Session) -> None:
        """Nothing is to be waited for."""

    def require_room(self, session: Session) -> None:
        """It has some."""

    def need(self, session: Session) -> None:
        """Nothing changes, as in what follows."""

    def rest(self, session: Session) -> None:
        """The end of ``need``."""

    def hold(self, session: Session) -> None:
        """It stays anyway."""

    def release(self, session: Session) -> None:
        """The end of ``hold``."""

    def wait(self, session: Session, *, kind: str, expected: float | None) -> None:
        """No policy is told."""

    def expect(self, session: Session, seconds: float) -> None:
        """No policy is told."""

    def evict(self, session: Session) -> None:
        """``SEGMENT_FULL``: there is nowhere to go."""
        raise SegmentFull(
            "the engine has no host tier", fix="give the engine host=", segment="host", bytes=session.arena_bytes
        )

    def evict_idle(self) -> int:
        """None leaves."""
        return 0

    def keep_room(self, headroom: tuple[int, ...]) -> None:
        """No class keeps any."""

    def close(self, session: Session) -> None:
        """Zeroes its arena and frees it."""
        zero_tensor(self._segments.slabs["data"].bytes(session.base, session.arena_bytes))
        self._segments.data.reclaim(session.arena)

    # -- steps

    def may_run(self, session: Session) -> bool:  # noqa: ARG002 - one as the other
        """At any time."""
        return True

    def refusal(self, session: Session) -> None:
        """None is refused."""

    def take_moved(self, session: Session) -> bool:  # noqa: ARG002 - one as the other
        """None has another arena than before."""
        return False

    def step(
        self,
        written: Sequence[Session],  # noqa: ARG002 - the states of all are there
        read: Sequence[Session] = (),  # noqa: ARG002
        *,
        is_new: bool = False,  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """Block in which states are read and written."""
        return nullcontext()

    # -- what there is

    def is_on_device(self, session: Session) -> bool:
        """While it is open."""
        return session.is_open

    def waits_for_room(self, session: Session) -> bool:  # noqa: ARG002 - one as the other
        """None does."""
        return False

    def still(self) -> AbstractContextManager[None]:
        """Block in which no arena is taken or freed, by anybody who has no lock of the engine's."""
        return nullcontext()

    def shut_down(self) -> None:
        """Nothing is under way."""
