"""What a policy sees of sessions, memory and link, and what it answers: frozen values. Times are ns, sizes bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

NS_PER_SECOND: Final = 10**9

Location: TypeAlias = Literal["device", "leaving", "host", "arriving"]
"""Where a session's live bytes are. ``leaving``: on the device until the host has all of them; ``arriving``: on the
host until the device has. A session takes its room on the device everywhere but on the ``host``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """One session. It is *needed* from when its client asks for a step until the client has no more; else it is idle.

    ``room``: bytes that it takes of the device. ``live``: bytes of its state, at most ``room``. ``copied``: how many
    of these the host has as they are now. ``landed``: of an arriving session, how many the device has. ``last_op_ns``:
    when its latest step ended. ``expected_ns``: when its client said that it goes on. ``rank``: of its class, 0 the
    highest.
    """

    id: int
    room: int
    rank: int = 1
    live: int = 0
    copied: int = 0
    landed: int = 0
    location: Location = "host"
    needed_since_ns: int | None = None
    last_op_ns: int = 0
    wait_kind: str = ""
    expected_ns: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for it."""
        return self.needed_since_ns is None

    @property
    def dirty(self) -> int:
        """Bytes that the host does not have as they are."""
        return self.live - self.copied


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """The link: its rate, and the bytes of swap-ins that have not landed."""

    bytes_per_second: int
    arriving: int = 0

    def copy_ns(self, size: int) -> int:
        """Nanoseconds of ``size`` bytes, rounded up."""
        return -(-size * NS_PER_SECOND // self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a decision depends on.

    ``free``: bytes of the device that no session takes. ``clearing``: bytes that will be free without anybody's doing,
    when what was there is overwritten. ``host_room``: bytes of which the host could become the only
    owner; ``None`` where the host tier has no budget. ``history``: per kind of wait the latest lengths, ascending.
    ``bounds``: by rank, bytes of the device that sessions of this rank and lower classes may have together; empty: all.
    """

    now_ns: int
    budget: int
    free: int
    sessions: tuple[SessionView, ...]
    link: LinkView
    host_room: int | None = None
    history: Mapping[str, tuple[int, ...]]
    time_to_live_ns: int
    clearing: int = 0
    bounds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Ids in the order in which to act: evictions first, then fetches, into room that is free by then.

    ``ask_again_ns``: when to ask though nothing has happened; ``None``: not before something does.
    """

    evict: tuple[int, ...] = ()
    fetch: tuple[int, ...] = ()
    ask_again_ns: int | None = None
