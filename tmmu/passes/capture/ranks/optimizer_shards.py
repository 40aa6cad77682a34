"""Optimizers each of whose ranks has the states of other parameters (``ZeroRedundancyOptimizer``)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Final

from tmmu.passes.capture.imports import from_import_on
from tmmu.passes.capture.ranks.layouts import Layouts
from tmmu.passes.capture.replace import replace_attribute

_MODULE: Final = "torch.distributed.optim.zero_redundancy_optimizer"


@contextmanager
def optimizer_shards_noted(layouts: Layouts, source: Callable[[], str]) -> Iterator[None]:
    """Block in which ``layouts`` note the groups whose ranks have unlike states: whole parameters are shared out."""

    def watch(module: Any) -> AbstractContextManager[None]:
        kind = module.ZeroRedundancyOptimizer
        make = kind.__init__

        @wraps(make)
        def make_and_note(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            layouts.note_group(optimizer.process_group, source())

        return replace_attribute(kind, "__init__", make_and_note)

    with from_import_on(_MODULE, watch):
        yield
