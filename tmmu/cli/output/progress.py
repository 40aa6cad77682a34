"""Progress at a terminal: one line on stderr that is erased at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tmmu.cli.output import render

if TYPE_CHECKING:
    from tmmu.passes.capture.request import Progress
    from tmmu.planner.pack.skyline.progress import Report, SearchProgress


@contextmanager
def progress_bar() -> Iterator["Progress"]:
    """A status line on stderr; a no-op if stderr is not a terminal."""
    err = render.console(stderr=True)
    if not err.is_terminal:
        yield _say_nothing
        return
    with err.status("") as status:
        yield lambda stage, ops: status.update(f"{stage}: {ops} ops" if ops else stage)


@contextmanager
def packing_progress() -> Iterator["Report | None"]:
    """A status line on stderr for a search of packings; None if stderr is not a terminal."""
    err = render.console(stderr=True)
    if not err.is_terminal:
        yield None
        return
    with err.status("packing") as status:
        yield lambda at: status.update(search_line(at))


def search_line(at: "SearchProgress") -> str:
    """What a search of packings has reached."""
    step = f"beams of {at.width}" if at.width else "windows"
    return f"{step}: peak {at.peak}, {at.permille / 10:.1f} % of the search"


def _say_nothing(stage: str, ops: int) -> None:
    """The progress callback for a pipe or a log."""
