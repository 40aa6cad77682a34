"""Shares as text: what is apart is apart in print, and what is allowed as it is said is enough."""

import pytest

from tmmu.codec.percents import about_percent, exact_percent, tenths_above


@pytest.mark.parametrize(
    ("ppm", "exact", "about"),
    [
        (0, "0", "0"),
        (1, "0.0001", "0.0001"),
        (400, "0.04", "0.04"),
        (499, "0.0499", "0.0499"),
        (500, "0.05", "0.1"),
        (100_000, "10", "10.0"),
        (123_456, "12.3456", "12.3"),
        (-70, "-0.007", "-0.007"),
        (10_000_000, "1000", "1000.0"),
    ],
)
def test_shares(ppm: int, exact: str, about: str) -> None:
    assert (exact_percent(ppm), about_percent(ppm)) == (exact, about)


def test_what_is_said_to_be_enough_is() -> None:
    for ppm in (*range(3_000), 99_999, 100_000, 100_001):
        tenths = round(float(tenths_above(ppm)) * 10)
        assert tenths * 1_000 - 1_000 < ppm <= tenths * 1_000
