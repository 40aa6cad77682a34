"""The process groups that calls between ranks name, by their members: another process has groups of its own."""

from collections.abc import Mapping
from typing import Any

import torch

from tmmu.ir.program import RankGroup
from tmmu.passes.operators.schema import argument_schema
from tmmu.torch_private import OpOverload, group_of_argument, takes_group


def with_rank_groups(
    func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call between ranks, a ``RankGroup`` in place of its process group, which is there now."""
    kinds = {name: takes_group(name, kind) for name, kind, _ in argument_schema(func)}
    positional = zip(args, kinds, strict=False)
    return (
        tuple(_rank_group(value) if kinds[name] else value for value, name in positional),
        {name: _rank_group(value) if kinds[name] else value for name, value in kwargs.items()},
    )


def _rank_group(argument: Any) -> RankGroup:
    group = group_of_argument(argument)
    distributed = torch.distributed
    return RankGroup(
        name=group.group_name,
        members=tuple(distributed.get_process_group_ranks(group)),
        rank=distributed.distributed_c10d.get_rank(),
        world=distributed.get_world_size(),
    )
