"""What sharded models do beside the work of a step: shapes of whole tensors, and what a first step does once."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import (
    FULLY_SHARD_MODULE,
    SHARDING_MODULE,
    SHARDING_PROPAGATION,
    begin_fully_sharded,
)


@contextmanager
def shapes_unrecorded(pause: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Block in which torch finds out shapes of whole tensors within ``pause``: once for each kind of call, by making
    the call on fake tensors of the sizes of all ranks together.
    """
    module = sys.modules.get(SHARDING_MODULE)
    if module is None:  # what makes distributed tensors has imported it
        yield
        return
    propagator = module.ShardingPropagator
    original = getattr(propagator, SHARDING_PROPAGATION)

    def propagate(self: Any, op_schema: Any) -> Any:
        with pause():
            return original(self, op_schema)

    with replace_attribute(propagator, SHARDING_PROPAGATION, propagate):
        yield


def begin_shards(module: nn.Module) -> None:
    """Modules of ``fully_shard`` in it are as before any step but the first, which gives padded shards new memory."""
    distributed = sys.modules.get(FULLY_SHARD_MODULE)
    if distributed is not None:
        for part in module.modules():  # a root comes before what it holds, and begins that too
            if isinstance(part, distributed.FSDPModule):
                begin_fully_sharded(part)
