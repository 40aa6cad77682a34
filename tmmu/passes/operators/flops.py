"""Floating-point operations by torch's own formulas; operators without one count 0."""

from functools import cache
from typing import Any

from torch import fx
from torch.utils.flop_counter import flop_registry


def count_flops(node: fx.Node) -> int:
    """Multiply-adds counted as two, for matrix products, convolutions and attention."""
    target: Any = node.target
    formula = flop_registry.get(target.overloadpacket)
    if formula is None:
        return 0
    args = fx.node.map_arg(node.args, _shape_of)
    kwargs = fx.node.map_arg(node.kwargs, _shape_of)
    results = tuple(w.shape if w is not None else None for w in node.meta["windows"])
    out = results[0] if len(results) == 1 else results
    key = repr((args, kwargs, out))
    return _count(target, key, _Call(args, kwargs, out))


class _Call:
    """A call's arguments, all equal to each other: the key of the cache is the text of the shapes alone."""

    def __init__(self, args: Any, kwargs: Any, out: Any) -> None:
        self.args, self.kwargs, self.out = args, kwargs, out

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call)

    def __hash__(self) -> int:
        return 0


def _shape_of(node: fx.Node) -> tuple[int, ...]:
    """Of the first tensor that the node yields: what torch's formulas take in place of a tensor."""
    windows = node.meta["windows"]
    return tuple(windows[0].shape) if windows and windows[0] is not None else ()


@cache
def _count(target: Any, key: str, call: _Call) -> int:
    del key
    try:
        return int(flop_registry[target.overloadpacket](*call.args, **call.kwargs, out_val=call.out))
    except (TypeError, ValueError, IndexError, AssertionError):
        return 0
