"""A state that a search begins with."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """``available``: cells that are kept after their last use, for what runs again; ``dropped``: gaps, by their places
    in ``StepFacts.touch``, in whatever order the step runs."""

    available: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


NOTHING: Final = Seed()
"""Nothing is dropped, and nothing kept after its last use."""
