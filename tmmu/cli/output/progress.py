"""Progress at a terminal: one line on stderr that is erased at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tmmu.cli.output import render

if TYPE_CHECKING:
    from tmmu.passes.capture.request import Progress


@contextmanager
def progress_bar() -> Iterator["Progress"]:
    """A status line on stderr; a no-op if stderr is not a terminal."""
    err = render.console(stderr=True)
    if not err.is_terminal:
        yield _say_nothing
        return
    with err.status("") as status:
        yield lambda stage, ops: status.update(f"{stage}: {ops} ops" if ops else stage)


def _say_nothing(stage: str, ops: int) -> None:
    """The progress callback for a pipe or a log."""
