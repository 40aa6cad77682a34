"""Live bytes as text: of one width everywhere, and no peak is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.cli.output.plot import COLUMNS, ROWS, can_print_braille, column_peaks, plot_lines
from tmmu.export.live_curves import LiveCurve

RAMP = LiveCurve(name="ramp", end=128, steps=tuple((position, position + 1) for position in range(128)))


@st.composite
def curves(draw: st.DrawFn) -> LiveCurve:
    end = draw(st.integers(1, 400))
    positions = sorted(draw(st.sets(st.integers(0, end), max_size=30)))
    return LiveCurve(name="any", end=end, steps=tuple((p, draw(st.integers(0, 1 << 66))) for p in positions))


def level(curve: LiveCurve, position: int) -> int:
    return next((size for start, size in reversed(curve.steps) if start <= position), 0)


@given(curves(), st.integers(1, 200))
def test_column_is_the_most_of_its_positions(curve: LiveCurve, columns: int) -> None:
    for column, most in enumerate(column_peaks(curve, columns)):
        first = column * curve.end // columns
        last = max((column + 1) * curve.end // columns, first + 1)
        assert most == max(level(curve, position) for position in range(first, last))


@given(curves(), st.booleans())
def test_picture_has_one_size_and_shows_the_peak(curve: LiveCurve, braille: bool) -> None:
    lines = plot_lines([("any", curve)], braille=braille)
    assert len(lines) == 1 + ROWS + 2
    width = lines[-2].index("+") + 1 + COLUMNS
    assert max(map(len, lines[1:])) == width
    inside = max((level(curve, position) for position in range(curve.end)), default=0)
    if inside and inside == curve.peak:
        assert lines[1].split("|")[1].strip(), "the highest row is reached"
    if not inside:
        assert not "".join(line.split("|")[1] for line in lines[1 : 1 + ROWS]).strip()


def test_ramp_fills_the_half_below_its_diagonal() -> None:
    lines = plot_lines([("ramp", RAMP)], braille=False)
    assert [line.count("#") for line in lines[1 : 1 + ROWS]] == [8 * row for row in range(1, 9)]
    braille = plot_lines([("ramp", RAMP)], braille=True)
    dots = sum((ord(character) - 0x2800).bit_count() for line in braille for character in line if ord(character) > 127)
    assert dots == sum(-(-(column + 1) * 4 * ROWS // 128) for column in range(128))


def test_curves_share_one_scale() -> None:
    half = LiveCurve(name="half", end=4, steps=((0, 64), (4, 0)))
    lines = plot_lines([("ramp", RAMP), ("half", half)], braille=False)
    second = lines[lines.index("half: at most 64 B of 4 positions") + 1 :]
    assert [line.count("#") for line in second[:ROWS]] == [0] * 4 + [COLUMNS] * 4


def test_nothing_at_all_is_an_empty_picture() -> None:
    lines = plot_lines([("none", LiveCurve(name="none", end=0, steps=()))], braille=True)
    assert lines[0] == "none: at most 0 B of 0 positions"
    assert len(lines) == 1 + ROWS + 2


@pytest.mark.parametrize(
    ("encoding", "possible"), [("utf-8", True), ("ascii", False), ("latin-1", False), (None, False), ("no such", False)]
)
def test_braille_needs_an_encoding_that_has_it(encoding: str | None, possible: bool) -> None:
    assert can_print_braille(encoding) is possible
