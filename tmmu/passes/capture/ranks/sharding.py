"""What a distributed tensor computes of whole tensors to know their shapes, which is no work of a rank."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import SHARDING_MODULE, SHARDING_PROPAGATION


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
