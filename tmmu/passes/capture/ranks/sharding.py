"""What sharded models do beside the work of a step: shapes of whole tensors, and what a first step does once."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import (
    FULLY_SHARD_MODULE,
    LIST_STRATEGY,
    SHARDING_MODULE,
    SHARDING_PROPAGATION,
    STRIDED_FLAG,
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


@contextmanager
def equal_shards_once() -> Iterator[None]:
    """Block in which torch finds out once, and not for each, how equal tensors in a list are sharded.

    A call on all weights (foreach, fused) takes each tensor by itself, by mesh, placements, shape and dtype alone, and
    looks at all others for each: with thousands of weights of some ten kinds that is most of a trace.
    """
    module = sys.modules.get(SHARDING_MODULE)
    if module is None:
        yield
        return
    expand, propagate = getattr(module, LIST_STRATEGY), getattr(module, STRIDED_FLAG)
    seen: tuple[Any, dict[int, Any]] = (None, {})

    def expand_distinct(mesh: Any, op_schema: Any, strategy: Any, metas: Any) -> Any:
        columns = distinct_columns(op_schema, metas)
        if columns is None:
            return expand(mesh, op_schema, strategy, metas)
        narrow = expand(mesh, columns.schema, strategy, columns.metas)
        return lambda op, args, kwargs: columns.spread(narrow(op, args, kwargs))

    def propagate_once(strategy: Any, op_schema: Any) -> None:
        nonlocal seen
        if seen[0] is not op_schema:
            seen = (op_schema, {})
        if id(strategy) not in seen[1]:
            seen[1][id(strategy)] = strategy
            propagate(strategy, op_schema)

    with (
        replace_attribute(module, LIST_STRATEGY, expand_distinct),
        replace_attribute(module, STRIDED_FLAG, propagate_once),
    ):
        yield


@dataclass(frozen=True, slots=True)
class DistinctColumns:
    """A call on lists, of whose columns only the first of each kind are left; ``kind_of`` each column."""

    schema: Any
    metas: Any
    kind_of: tuple[int, ...]

    def spread(self, strategies: Any) -> Any:
        """The strategies of all columns: equal ones share one."""
        return type(strategies)([strategies.children[kind] for kind in self.kind_of])


def distinct_columns(op_schema: Any, metas: Any) -> DistinctColumns | None:
    """The call with one column of each kind; ``None`` for a call on no lists, or whose columns all differ."""
    lists = [argument for argument in op_schema.args_schema if hasattr(argument, "children")]
    lengths = {len(argument.children) for argument in lists}
    if len(lengths) != 1 or not all(len(child.strategies) == 1 for argument in lists for child in argument.children):
        return None
    numbers: dict[Any, int] = {}
    firsts: list[int] = []
    kind_of: list[int] = []
    for column in range(lengths.pop()):
        meta = None if metas is None else metas[column]
        kind = (meta, *(argument.children[column].strategies[0].output_spec for argument in lists))
        if kind not in numbers:
            numbers[kind] = len(firsts)
            firsts.append(column)
        kind_of.append(numbers[kind])
    if len(firsts) == len(kind_of):
        return None
    narrow = [
        type(argument)([argument.children[column] for column in firsts]) if hasattr(argument, "children") else argument
        for argument in op_schema.args_schema
    ]
    schema = replace(op_schema, args_schema=tuple(narrow))
    return DistinctColumns(schema, None if metas is None else [metas[column] for column in firsts], tuple(kind_of))


def begin_shards(module: nn.Module) -> None:
    """Modules of ``fully_shard`` in it are as before any step but the first, which gives padded shards new memory."""
    distributed = sys.modules.get(FULLY_SHARD_MODULE)
    if distributed is not None:
        for part in module.modules():  # a root comes before what it holds, and begins that too
            if isinstance(part, distributed.FSDPModule):
                begin_fully_sharded(part)
