"""Shares in parts per million as per cent: rounded for reading, so that what is told apart is apart in print too."""

from typing import Final

SMALL: Final = 500
"""Below it a share to a tenth of a per cent would be 0."""


def exact_percent(ppm: int) -> str:
    """All digits: ``10``, ``0.04``."""
    whole, rest = divmod(abs(ppm), 10_000)
    return "-" * (ppm < 0) + f"{whole}.{rest:04d}".rstrip("0").rstrip(".")


def about_percent(ppm: int) -> str:
    """To a tenth, ``10.0``; all digits of what would be 0 then, ``0.04``."""
    return exact_percent(ppm) if abs(ppm) < SMALL else f"{ppm / 10_000:.1f}"


def tenths_above(ppm: int) -> str:
    """The least tenth that is no less, so that who allows as much as is said allows enough: ``10.1``. Not negative."""
    whole, tenth = divmod(-(-ppm // 1_000), 10)
    return f"{whole}.{tenth}"
