"""Results of the exact search: frozen values, with offsets in bytes by row of the problem."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

SearchStatus: TypeAlias = Literal["placed", "impossible", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a problem fits a capacity; ``offset`` per row if placed, else empty."""

    status: SearchStatus
    offset: tuple[int, ...]
    nodes_visited: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """The best offsets known, their ``peak``, and the best proven lower ``bound`` of any peak.

    ``proven``: peak and bound meet.
    """

    offset: tuple[int, ...]
    peak: int
    bound: int
    proven: bool
    nodes_visited: int
