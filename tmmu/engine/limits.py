"""What an engine is for: how long and how many its sessions are, and what of a device is its own."""

from dataclasses import dataclass
from typing import Final

from tmmu.engine.arguments import bytes_of, whole_of
from tmmu.engine.geometry import Geometry
from tmmu.engine.source import longest_source
from tmmu.errors import InvalidConfig

DEFAULT_SESSIONS: Final = 8
"""Sessions of the longest text for which there is room without a budget."""
DEFAULT_LONGEST: Final = 2048
"""Tokens of the longest text of a model without a limit of its own."""
DEFAULT_SOURCE: Final = 512
"""Tokens of the longest source of an encoder-decoder."""
MOST_STACKS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine is for. ``budget``: bytes of all segments; ``None``: room for ``max_sessions`` of the longest.

    ``heap``: bytes of the data segment, in place of what is left. ``ring``: bytes through which weights stream.
    ``max_source``: positions of the longest source; 0 of a model without an encoder. ``reserve``: bytes of the device
    that others keep. ``stacks``: how many steps may run at once, each in a stack of its own, where there is room.
    """

    max_tokens: int
    max_source: int
    max_batch: int
    max_sessions: int
    budget: int | None
    heap: int | None = None
    ring: int | None = None
    reserve: int = 0
    stacks: int = 1


def engine_limits(  # noqa: PLR0913 - the options of an engine, by name
    geometry: Geometry,
    *,
    max_tokens: int | None,
    max_source: int | None,
    max_batch: int,
    max_sessions: int,
    budget: int | str | None,
    heap: int | str | None,
    ring: int | str | None,
    reserve: int | str,
    stacks: int,
) -> EngineLimits:
    """The limits of an engine of that geometry, as they were given; ``INVALID_CONFIG`` for what is no limit."""
    longest = geometry.longest or DEFAULT_LONGEST
    source = None if max_source is None else whole_of("max_source", max_source)
    return EngineLimits(
        max_tokens=whole_of("max_tokens", longest if max_tokens is None else max_tokens),
        max_source=longest_source(geometry, source, DEFAULT_SOURCE),
        max_batch=whole_of("max_batch", max_batch),
        max_sessions=whole_of("max_sessions", max_sessions),
        budget=None if budget is None else bytes_of("budget", budget),
        heap=None if heap is None else bytes_of("heap", heap),
        ring=None if ring is None else bytes_of("ring", ring),
        reserve=bytes_of("reserve", reserve),
        stacks=_stacks_of(stacks, streams=ring is not None),
    )


def _stacks_of(stacks: int, *, streams: bool) -> int:
    count = whole_of("stacks", stacks)
    if count > MOST_STACKS:
        raise InvalidConfig(f"stacks is {count}", fix=f"give 1 to {MOST_STACKS}")
    if streams and count > 1:
        raise InvalidConfig(
            f"{count} stacks, where weights stream past one step at a time", fix="leave stacks= out, or ring="
        )
    return count
