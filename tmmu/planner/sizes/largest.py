"""The largest size whose need is within a limit, from as few measurements as may be."""

from collections.abc import Callable, Mapping
from typing import Final

MOST: Final = 2**31
"""Sizes end here."""
PATIENCE: Final = 3
"""Lines that may leave more than half of a range before it is cut in the middle."""


def largest_size(needs: Callable[[int], int | None], limit: int, *, guess: int, most: int = MOST) -> int:
    """The largest size of at least 1 that fits; 0 where 1 does not.

    ``needs``: bytes at a size, rising with it; ``None`` where there is no such size. The answer and the size after it
    were both measured, each size once: where a line through the two needs nearest to the limit meets it, and in the
    middle where lines do not help; about (``PATIENCE`` + 1) log2(``most``) measurements at the very most.
    """
    found: dict[int, int] = {}
    low, high, size, lines, width = 0, most + 1, max(1, min(guess, most)), 0, most + 1
    while high - low > 1:
        need = needs(size)
        if need is not None:
            found[size] = need
        low, high = (size, high) if need is not None and need <= limit else (low, size)
        lines, width = (0, high - low) if 2 * (high - low) <= width else (lines + 1, width)
        target = _meet_limit(found, limit) if lines < PATIENCE else None
        size = max(low + 1, min(high - 1, _middle(low, high) if target is None else target))
    return low


def _middle(low: int, high: int) -> int:
    """Twice the lower end while the upper one is far, as needs grow in proportion."""
    return min(2 * low, (low + high) // 2) if low else high // 2


def _meet_limit(found: Mapping[int, int], limit: int) -> int | None:
    """Where the line through the two needs nearest to the limit meets it, rounded down; ``None`` where it does not.

    Two needs that are the same may be so at every size, which is tried once.
    """
    nearest = sorted(found.items(), key=lambda at: (abs(at[1] - limit), at[0]))[:2]
    if len(nearest) < 2:
        return None
    (first, few), (second, many) = sorted(nearest)
    if many == few <= limit and len(found) == 2:
        return MOST
    return first + (limit - few) * (second - first) // (many - few) if many > few else None
