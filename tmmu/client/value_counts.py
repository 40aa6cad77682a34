"""What looking at values from afar has moved, and what it has not."""

from dataclasses import dataclass
from typing import Final

LARGE_BYTES: Final = 1 << 20
SMALLER_TIMES: Final = 100


@dataclass(slots=True)
class ValueCounts:
    """``looks`` at values; ``local``: those of which the last step ran here, on fewer bytes than it makes.

    ``value_bytes``: of what was looked at, ``moved_bytes`` of what came. ``by_rule``: looks at a value of 1 MiB or more
    of which a hundredth or less came, the sources' rule.
    """

    looks: int = 0
    local: int = 0
    value_bytes: int = 0
    moved_bytes: int = 0
    by_rule: int = 0

    def note(self, value_bytes: int, moved_bytes: int, *, is_local: bool) -> None:
        """One look."""
        self.looks += 1
        self.local += is_local
        self.value_bytes += value_bytes
        self.moved_bytes += moved_bytes
        self.by_rule += value_bytes >= LARGE_BYTES and moved_bytes * SMALLER_TIMES <= value_bytes
