"""The curve of a step as a picture that needs no script: bytes of its stack by extra time, and the point taken.

The picture has the colours of its page; the table below says the same in numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.codec.percents import about_percent
from tmmu.planner.arenas import readable_size

WIDTH: Final = 720
HEIGHT: Final = 260
LEFT, RIGHT, TOP, BOTTOM = 84, 14, 12, 34
"""Margins around the plot, for its labels."""
TICKS: Final = 4
PPM: Final = 1_000_000
LISTED: Final = 12
"""Rows of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFigure:
    """``points``: (extra time in ppm, bytes), rising in time and falling in bytes; ``taken``: one point like these.

    ``base``: bytes of the step as it is; ``floor``: what no order and no recomputation undercuts.
    """

    points: tuple[tuple[int, int], ...]
    taken: tuple[int, int]
    base: int
    floor: int


def curve_html(curve: CurveFigure) -> str:
    """A figure with its table."""
    time_end = max(1, curve.taken[0], *(time for time, _ in curve.points))
    byte_end = max(1, curve.base, *(size for _, size in curve.points))

    def x(time: int) -> str:
        return f"{LEFT + max(0, time) * (WIDTH - LEFT - RIGHT) / time_end:.1f}"

    def y(size: int) -> str:
        return f"{HEIGHT - BOTTOM - size * (HEIGHT - TOP - BOTTOM) / byte_end:.1f}"

    steps = [f"M{x(0)} {y(curve.points[0][1])}"]
    steps += [f"H{x(time)}V{y(size)}" for time, size in curve.points] + [f"H{x(time_end)}"]
    label = (
        f"Bytes of the stack by extra time: {readable_size(curve.base)} as it is, {readable_size(curve.taken[1])} "
        f"taken for {_percent(curve.taken[0])} more time"
    )
    parts = [
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">',
        *(_byte_tick(byte_end * tick // TICKS, y) for tick in range(TICKS + 1)),
        *(_time_tick(time_end * tick // TICKS, x) for tick in range(TICKS + 1)),
        f'<line class="floor" x1="{x(0)}" x2="{x(time_end)}" y1="{y(curve.floor)}" y2="{y(curve.floor)}"/>',
        f'<path class="line" d="{"".join(steps)}"/>',
        f'<circle class="taken" cx="{x(curve.taken[0])}" cy="{y(curve.taken[1])}" r="5"/>',
        "</svg>",
    ]
    return (
        "<figure><figcaption>The stack by extra time, as estimated; the dot is this plan, the broken line the floor"
        f"</figcaption>{''.join(parts)}{_table(curve)}</figure>"
    )


def _byte_tick(size: int, y: Callable[[int], str]) -> str:
    place = y(size)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place}" y2="{place}"/>'
        f'<text x="{LEFT - 8}" y="{place}" text-anchor="end" dominant-baseline="middle">{readable_size(size)}</text>'
    )


def _time_tick(time: int, x: Callable[[int], str]) -> str:
    return f'<text x="{x(time)}" y="{HEIGHT - 12}" text-anchor="middle">{_percent(time)}</text>'


def _percent(ppm: int) -> str:
    return f"+{about_percent(max(0, ppm))} %"


def _table(curve: CurveFigure) -> str:
    rows = _some(curve.points, LISTED)
    cells = "".join(
        f'<tr><td>{_percent(time)}</td><td><span title="{size} B">{readable_size(size)}</span></td></tr>'
        for time, size in rows
    )
    return f"<table><thead><tr><th>extra time</th><th>stack</th></tr></thead><tbody>{cells}</tbody></table>"


def _some(points: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """First and last, and others at even distances between them."""
    if len(points) <= count:
        return list(points)
    return [points[place * (len(points) - 1) // (count - 1)] for place in range(count)]
