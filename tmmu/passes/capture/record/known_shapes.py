"""Results that depend on values, where those values are known: ``nonzero``, masks as indices, ``torch.equal``.

A fake kernel refuses such a call, whose result has a shape that values decide, or is a number. Where constants, or
inputs and buffers that the model's file gives, decide it, the arguments that do are computed for real (``values.py``),
the operator is run on them, and its results' forms, or its number, are taken. What only fills the result (the tensor
that a mask selects from) stands in as zeros.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from tmmu.passes.capture.record.graph_builder import GraphBuilder
from tmmu.passes.capture.record.values import evaluate
from tmmu.torch_private import OpOverload, disable_current_modes, schema_of

_aten: Final = torch.ops.aten

_FILLING: Final[Mapping[OpOverload, frozenset[str]]] = {
    _aten.index.Tensor: frozenset({"self"}),
    _aten.masked_select.default: frozenset({"self"}),
}
"""Arguments whose values have no part in the shape; of other operators all have."""


def result_of_known_values(
    func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], builder: GraphBuilder
) -> Any:
    """The result of a call whose shape the values of its arguments decide; ``None`` for others and unknown values."""
    if torch.Tag.dynamic_output_shape not in func.tags or not _shape_is_open(func, args):
        return None
    result = _run_for_real(func, args, kwargs, builder)
    return None if result is _UNKNOWN else _form_of(result)


def answer_of_known_values(
    func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], builder: GraphBuilder
) -> bool | int | float | complex | None:
    """What an operator that returns a number answers (``equal``, ``allclose``); ``None`` where values are unknown."""
    answer = _run_for_real(func, args, kwargs, builder)
    return None if answer is _UNKNOWN else answer


def _run_for_real(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], builder: GraphBuilder) -> Any:
    names = [argument.name for argument in schema_of(func).arguments]
    filling = _FILLING.get(func, frozenset())
    real_args = [_real(value, builder, name in filling) for name, value in zip(names, args, strict=False)]
    real_kwargs = {name: _real(value, builder, name in filling) for name, value in kwargs.items()}
    if any(value is _UNKNOWN for value in (*real_args, *real_kwargs.values())):
        return _UNKNOWN
    with disable_current_modes(), torch.no_grad():
        return func(*real_args, **real_kwargs)


_UNKNOWN: Final = object()
"""Stands for a tensor whose value is not known."""


def _shape_is_open(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether values decide the shape of this call: of an index they do where it is a mask."""
    if func is not _aten.index.Tensor:
        return True
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _real(value: Any, builder: GraphBuilder, filling: bool) -> Any:  # noqa: FBT001 - of the argument at hand
    """The argument with real tensors in place of fake ones."""
    if isinstance(value, (list, tuple)):
        leaves = [_real(leaf, builder, filling) for leaf in value]
        return _UNKNOWN if any(leaf is _UNKNOWN for leaf in leaves) else leaves
    if not isinstance(value, torch.Tensor):
        return value
    if filling:
        with disable_current_modes():
            return torch.zeros(value.shape, dtype=value.dtype)
    known = evaluate(builder.node_of(value), builder)
    return _UNKNOWN if known is None else known


def _form_of(result: Any) -> Any:
    """The same with tensors of the current mode in place of real ones."""
    if isinstance(result, (tuple, list)):
        return type(result)(_form_of(leaf) for leaf in result)
    if isinstance(result, torch.Tensor):
        return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype)
    return result
