"""Live bytes as a picture of text: filled curves, one above the other on one scale, as wide in a pipe as on a terminal.

A column of dots shows the most bytes of its positions, so that no peak is lost. Four rows of dots and two columns share
a character of braille; where an encoding lacks these, a column of ``#`` takes their place.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from tmmu.export.live_curves import LiveCurve
from tmmu.planner.arenas import readable_size

COLUMNS: Final = 64
ROWS: Final = 8
_LEFT: Final = (0x40, 0x04, 0x02, 0x01)
_RIGHT: Final = (0x80, 0x20, 0x10, 0x08)
"""Dots of a braille character, lowest first."""
_BLANK: Final = 0x2800


def can_print_braille(encoding: str | None) -> bool:
    """Whether a stream with this encoding takes every character of braille."""
    try:
        (chr(_BLANK) + chr(_BLANK + 0xFF)).encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def plot_lines(curves: Sequence[tuple[str, LiveCurve]], *, braille: bool) -> list[str]:
    """The curves, each below its title; the highest peak of all is the height of every plot."""
    top = max((curve.peak for _, curve in curves), default=0)
    width = len(readable_size(top))
    lines: list[str] = []
    for title, curve in curves:
        lines += ["", f"{title}: at most {readable_size(curve.peak)} of {curve.end} positions"]
        lines += _plot(curve, top, width, braille=braille)
    return lines[1:]


def _plot(curve: LiveCurve, top: int, width: int, *, braille: bool) -> Iterator[str]:
    dots = (2, 4) if braille else (1, 1)
    heights = [-(-size * ROWS * dots[1] // top) if top else 0 for size in column_peaks(curve, COLUMNS * dots[0])]
    for row in reversed(range(ROWS)):
        label = {ROWS - 1: readable_size(top), 0: "0 B"}.get(row, "")
        texts = _braille_row(heights, row) if braille else ("#" if height > row else " " for height in heights)
        yield f"{label:>{width}} |{''.join(texts)}".rstrip()
    yield f"{'':>{width}} +{'-' * COLUMNS}"
    yield f"{'':>{width}}  0{max(curve.end - 1, 0):>{COLUMNS - 1}}"


def _braille_row(heights: Sequence[int], row: int) -> Iterator[str]:
    for left, right in zip(heights[::2], heights[1::2], strict=True):
        dots = _filled(_LEFT, left - 4 * row) + _filled(_RIGHT, right - 4 * row)
        yield chr(_BLANK + dots) if dots else " "


def _filled(dots: Sequence[int], height: int) -> int:
    return sum(dots[: max(height, 0)])


def column_peaks(curve: LiveCurve, columns: int) -> list[int]:
    """The most live bytes in each of ``columns`` equal parts of the positions; a part has one position or more."""
    peaks, size, step = [], 0, 0
    for column in range(columns):
        first = column * curve.end // columns
        end = max((column + 1) * curve.end // columns, first + 1)
        while step < len(curve.steps) and curve.steps[step][0] <= first:
            size, step = curve.steps[step][1], step + 1
        most = size
        while step < len(curve.steps) and curve.steps[step][0] < end:
            size, step = curve.steps[step][1], step + 1
            most = max(most, size)
        peaks.append(most)
    return peaks
