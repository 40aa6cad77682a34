"""What the collectives of one rank move: what a ring of ranks sends, the least of any way for large tensors."""

from collections.abc import Iterator
from math import prod
from typing import Any, Final

import torch
from torch import fx

from tmmu.ir.program import RankGroup
from tmmu.passes.capture.program import Traffic
from tmmu.passes.operators.schema import signature

_REDUCED_FOR_ALL: Final = ("all_reduce", "allreduce")
"""Operators that reduce a tensor in parts, and then gather the parts."""
_EXCHANGED: Final = "all_to_all_single"
"""The operator that names how many rows go to each rank: to one of them all, where keys go round in a ring."""
_SENT: Final = ("send", "isend")
_RECEIVED: Final = ("recv_", "recv_any_source_", "irecv")


def traffic_of(graph: fx.Graph) -> Traffic:
    """The traffic of a trace. Of n ranks each sends (n - 1) / n of a tensor, and twice that to reduce it for all."""
    calls = [(node, group) for node in graph.nodes if (group := _group_of(node)) is not None]
    return Traffic(calls=len(calls), bytes=sum(_bytes_sent(node, group) for node, group in calls))


def _group_of(node: fx.Node) -> RankGroup | None:
    arguments: tuple[Any, ...] = (*node.args, *node.kwargs.values())
    return next((argument for argument in arguments if isinstance(argument, RankGroup)), None)


def _bytes_sent(node: fx.Node, group: RankGroup) -> int:
    """What this rank sends in a call of its group; of shards and the whole that they are parts of, the whole counts."""
    operator: Any = node.target
    name = signature(operator).name.split(".")[1]
    if name == _EXCHANGED:
        return _bytes_to_others(node, group)
    ranks = len(group.members)
    tensors = [sum(_bytes_of(argument)) for argument in (*node.args, *node.kwargs.values())]
    whole = max((*tensors, sum(map(_window_bytes, node.meta["windows"]))))
    if name in _SENT or name in _RECEIVED:
        return whole if name in _SENT else 0
    return whole * (ranks - 1) * (2 if name.startswith(_REDUCED_FOR_ALL) else 1) // ranks


def _bytes_to_others(node: fx.Node, group: RankGroup) -> int:
    """What it sends of a tensor whose rows it parts, by the number of rows that each rank gets of them."""
    rows: Any = node.args[2]
    total, own = sum(rows), rows[group.members.index(group.rank)]
    return 0 if not total else sum(_bytes_of(node.args[0])) * (total - own) // total


def _bytes_of(argument: Any) -> Iterator[int]:
    """Bytes of each tensor in an argument."""
    if isinstance(argument, fx.Node):
        yield _window_bytes(argument.meta["windows"][0])
    elif isinstance(argument, (list, tuple)):
        for item in argument:
            yield from _bytes_of(item)


def _window_bytes(window: Any) -> int:
    return 0 if window is None else prod(window.shape) * getattr(torch, window.dtype).itemsize
