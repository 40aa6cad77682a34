"""What is being done, for who waits at a terminal: one line on stderr that leaves no trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tmmu.cli.output import render

if TYPE_CHECKING:
    from tmmu.passes.capture.request import Progress


@contextmanager
def progress_bar() -> Iterator["Progress"]:
    """A line on stderr that says what is being done; nothing where stderr is not a terminal."""
    err = render.console(stderr=True)
    if not err.is_terminal:
        yield _say_nothing
        return
    with err.status("") as status:
        yield lambda stage, ops: status.update(f"{stage}: {ops} ops" if ops else stage)


def _say_nothing(stage: str, ops: int) -> None:
    """Progress for a pipe or a log."""
