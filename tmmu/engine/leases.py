"""Leases: how long somebody may keep what nobody asks for. Pure: the clock is passed in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tmmu.errors import InvalidConfig

LONGEST_LEASE: Final = 1e300
"""Seconds: whole numbers beyond it are no floats any more."""
Clock: TypeAlias = Callable[[], float]
"""Seconds since some moment, never fewer than before."""


@dataclass(slots=True)
class _Lease:
    seconds: float
    ends: float


class LeaseTable:
    """Leases by key. One that is not renewed in its time has expired; whoever asks for those takes them out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leases: dict[str, _Lease] = {}

    def grant(self, key: str, seconds: float) -> None:
        """A lease from now on. ``INVALID_CONFIG`` unless it is a number of seconds above 0."""
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST_LEASE:
            raise InvalidConfig(f"a lease of {seconds!r:.40} seconds", fix="give a number above 0, or none for no end")
        self._leases[key] = _Lease(seconds, self._clock() + seconds)

    def renew(self, key: str) -> None:
        """From now on for as long again; nothing for a key without a lease."""
        lease = self._leases.get(key)
        if lease is not None:
            lease.ends = self._clock() + lease.seconds

    def end(self, key: str) -> None:
        """Forgets a lease; nothing for a key without one."""
        self._leases.pop(key, None)

    def seconds_left(self, key: str) -> float | None:
        """Seconds until it expires, at least 0; ``None`` for a key without a lease."""
        lease = self._leases.get(key)
        return None if lease is None else max(lease.ends - self._clock(), 0.0)

    def expired_keys(self) -> tuple[str, ...]:
        """Keys whose lease has run out, that which ended first before the others."""
        now = self._clock()
        keys = [key for key, lease in self._leases.items() if lease.ends <= now]
        return tuple(sorted(keys, key=lambda key: (self._leases[key].ends, key)))
