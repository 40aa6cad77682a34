"""Capacity factors: how many times its even share of tokens an expert gets at most. Needs no torch."""

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final

from tmmu.errors import InvalidConfig

_MAX: Final = 2**20
_DIGITS: Final = 6
"""Behind the point: what a plan says of a factor is the factor."""


def parse_factor(text: object, option: str) -> Fraction:
    """The factor of a number such as ``1.25``; ``INVALID_CONFIG`` for no number, and below 1, which drops tokens."""
    try:
        number = Decimal(str(text)) if isinstance(text, (str, int, float)) and not isinstance(text, bool) else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite():
        raise InvalidConfig(f"{option}: {text!r:.40} is no factor", fix="give a number such as 1.25")
    if not 1 <= number <= _MAX:
        raise InvalidConfig(
            f"{option}: {text!s:.40} is not in 1..{_MAX}: an expert that gets less than its even share drops tokens",
            fix="give 1 where all experts get as many tokens, and more for what a router may give one of them",
        )
    if number != round(number, _DIGITS):
        raise InvalidConfig(f"{option}: {text!s:.40} has more than {_DIGITS} digits", fix="round it up")
    return Fraction(number)
