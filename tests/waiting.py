"""Waits for what another thread or process is about to do."""

import threading
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 120.0
"""Seconds that a test waits at most for what never takes so long."""


def wait_for(condition: Callable[[], object]) -> None:
    """Waits until something is so; fails where it never is."""
    clock = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        clock.wait(0.01)
    raise AssertionError("it never was so")
