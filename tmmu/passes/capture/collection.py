"""Blocks without cycle collection: in a trace, garbage would go at moments that depend on all that ran before."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
    """Block in which a collection looks at what the block made alone: what was there before may be large."""
    freezes = gc.get_freeze_count() == 0
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
