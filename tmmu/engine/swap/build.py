"""Swapping for the segments of an engine: a device for copies, the host tier, limits."""

from collections.abc import Callable, Sequence
from typing import Final

from tmmu.engine.geometry import Geometry
from tmmu.engine.policies.swapper import SwapLimits
from tmmu.engine.policies.table import policy_named
from tmmu.engine.queue.terms import CLASSES
from tmmu.engine.swap.alarm import NS_PER_SECOND
from tmmu.engine.swap.host_tier import HostTier
from tmmu.engine.swap.link import SwapLink
from tmmu.engine.swap.swapping import SessionSwapping
from tmmu.errors import InvalidConfig
from tmmu.runtime.device.choose import memory_device
from tmmu.runtime.memory.segments import Segments

CHUNK_BYTES: Final = 8 << 20
"""Bytes that are copied at once: what somebody waits for comes after as few of them."""
IN_FLIGHT_BYTES: Final = 4 * CHUNK_BYTES
TIME_TO_LIVE: Final = 60.0
"""Seconds that an idle session keeps its room, though nobody needs it."""
MOST_HEADROOM: Final = 0.4
"""Two classes keep as much from those below them."""
LONGEST_TIME: Final = 1e9
"""Seconds: beyond what threads can sleep."""


def build_swapping(  # noqa: PLR0913 - the settings of an engine, by name
    *,
    policy: str | None,
    host: int,
    time_to_live: float,
    geometry: Geometry,
    segments: Segments,
    clock: Callable[[], float],
    wake: Callable[[], object],
    headroom: float | Sequence[float] = 0.0,
) -> SessionSwapping | None:
    """Streams beside the steps of ``segments``, whose data segment sessions share. ``INVALID_CONFIG`` for settings.

    Nothing where nobody is to make room for others: without a policy and a host tier of 0 bytes.
    """
    if headroom and policy != "hold":
        raise InvalidConfig(f"policy {policy} keeps no room for classes", fix="leave headroom= out, or choose hold")
    time_to_live_ns = int(seconds_of("time_to_live", time_to_live) * NS_PER_SECOND) or 1
    if policy is None and not host:
        return None
    chosen = policy_named("lru" if policy is None else policy)
    if not host and chosen.evicts:
        raise InvalidConfig(
            f"policy {policy} moves sessions to the host, and there is no host tier", fix="give host=, such as 4GB"
        )
    limits = SwapLimits(
        device=segments.data.capacity,
        host=host,
        chunk=CHUNK_BYTES,
        in_flight=IN_FLIGHT_BYTES,
        time_to_live_ns=time_to_live_ns,
        headroom=headroom_bytes(segments.data.capacity, headroom),
    )
    device = memory_device(segments.device)
    tier = HostTier(host, device.registrar)
    link = SwapLink(device, geometry, data=device.adopt(segments.slabs["data"]), host=device.adopt(tier.slab))
    return SessionSwapping(
        chosen, limits, geometry=geometry, data=segments.data, host=tier, link=link, clock=clock, wake=wake
    )


def seconds_of(name: str, value: float) -> float:
    """A number of seconds from 0 on; ``INVALID_CONFIG`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LONGEST_TIME:
        raise InvalidConfig(f"{name} is {value!r:.40}", fix="give a number of seconds from 0 on", name=name)
    return float(value)


def headroom_bytes(capacity: int, headroom: float | Sequence[float]) -> tuple[int, ...]:
    """By class but the last, bytes that it keeps of the sessions' room. ``INVALID_CONFIG`` for what are no parts of it.

    ``headroom``: parts of it, or one for each class.
    """
    parts = headroom if isinstance(headroom, Sequence) else [headroom] * (len(CLASSES) - 1)
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (int, float)) or not 0 <= part <= MOST_HEADROOM:
            raise InvalidConfig(f"headroom is {headroom!r:.40}", fix=f"give a number from 0 to {MOST_HEADROOM}")
    if len(parts) != len(CLASSES) - 1:
        raise InvalidConfig(f"headroom is {headroom!r:.40}", fix="give a number, or one for each class but the last")
    return tuple(int(capacity * part) for part in parts)
