"""Blocks without cycle collection: in a trace, garbage would go at moments that depend on all that ran before."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

_KEPT: Final = Event()


def keep_what_is_there() -> None:
    """From now on no collection of this process looks at what it has made so far: models and code stay to the end."""
    gc.collect()
    gc.freeze()
    _KEPT.set()


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Block without cycle collection: a trace frees little before its end, and collecting costs a quarter of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def collections_of_new_objects() -> Iterator[None]:
    """Block in which a collection looks at what the block made alone: what was there before may be large.

    Where the process keeps what it began with, it looks at what has come since. To ask Python whether anything is
    frozen takes as long as there are frozen objects: tens of milliseconds of each plan that a server makes.
    """
    freezes = not _KEPT.is_set() and gc.get_freeze_count() == 0
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()


@contextmanager
def garbage_collected_after() -> Iterator[None]:
    """Block whose garbage is gone at its end, cycles too; garbage of earlier is not looked for."""
    with collections_of_new_objects():
        yield
        gc.collect()
