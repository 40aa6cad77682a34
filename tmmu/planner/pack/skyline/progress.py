"""What a long search says while it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """Beams of ``width`` states are done, or some windows where that is 0.

    With the least peak so far, in bytes, and parts per thousand of the work spent.
    """

    width: int
    peak: int
    permille: int


Report: TypeAlias = Callable[[SearchProgress], None]
"""Called after each round of beams; what it does decides no offset."""
