"""Operators without an ``out=`` overload of their own, done where the result belongs by other ones: the same bits.

A row gets the call's arguments by name and the tensor to write, and gives what to run, or ``None`` where it cannot.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import torch

Run: TypeAlias = Callable[[], object]
Arguments: TypeAlias = Mapping[str, Any]
Lowering: TypeAlias = Callable[[Arguments, torch.Tensor], Run | None]

aten = torch.ops.aten


def nothing() -> None:
    """What an operator does that promises no contents."""


def _leave(given: Arguments, view: torch.Tensor) -> Run:  # noqa: ARG001
    return nothing


def _zero(given: Arguments, view: torch.Tensor) -> Run:  # noqa: ARG001
    return partial(aten.zero_.default._op, view)


def _one(given: Arguments, view: torch.Tensor) -> Run:  # noqa: ARG001
    return partial(aten.fill_.Scalar._op, view, 1)


def _fill(name: str) -> Lowering:
    def fill(given: Arguments, view: torch.Tensor) -> Run:
        return partial(aten.fill_.Scalar._op, view, given[name])

    return fill


def _copy(given: Arguments, view: torch.Tensor) -> Run:
    return partial(aten.copy_.default._op, view, given["self"])


def _relu(given: Arguments, view: torch.Tensor) -> Run:
    return partial(aten.clamp_min.out._op, given["self"], 0, out=view)


def _scalar(operator: Any) -> Lowering:
    """An operator with a number, as the same one with a tensor, which is what it is made of."""

    def run(given: Arguments, view: torch.Tensor) -> Run:
        rest = {name: value for name, value in given.items() if name not in ("self", "other")}
        return partial(operator._op, given["self"], given["other"], **rest, out=view)

    return run


def _embedding(given: Arguments, view: torch.Tensor) -> Run | None:
    """Rows picked by flat indices, as the operator itself does it."""
    weight, indices = given["weight"], given["indices"]
    if not (indices.is_contiguous() and view.is_contiguous() and weight.dim() == 2):
        return None
    rows = view.view(indices.numel(), weight.shape[1])
    return partial(aten.index_select.out._op, weight, 0, indices.view(-1), out=rows)


def _masked_fill(given: Arguments, view: torch.Tensor) -> Run:
    value = given["value"]
    change = aten.masked_fill_.Tensor if isinstance(value, torch.Tensor) else aten.masked_fill_.Scalar
    return partial(_copy_then, view, given["self"], partial(change._op, view, given["mask"], value))


def _index_put(given: Arguments, view: torch.Tensor) -> Run:
    accumulate = given.get("accumulate", False)
    change = partial(aten.index_put_.default._op, view, given["indices"], given["values"], accumulate)
    return partial(_copy_then, view, given["self"], change)


def _copy_then(view: torch.Tensor, source: torch.Tensor, change: Run) -> None:
    view.copy_(source)
    change()


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "aten.empty.memory_format": _leave,
    "aten.empty_strided.default": _leave,
    "aten.empty_like.default": _leave,
    "aten.new_empty.default": _leave,
    "aten.new_empty_strided.default": _leave,
    "aten.zeros.default": _zero,
    "aten.zeros_like.default": _zero,
    "aten.new_zeros.default": _zero,
    "aten.ones.default": _one,
    "aten.ones_like.default": _one,
    "aten.new_ones.default": _one,
    "aten.full.default": _fill("fill_value"),
    "aten.full_like.default": _fill("fill_value"),
    "aten.new_full.default": _fill("fill_value"),
    "aten.scalar_tensor.default": _fill("s"),
    "aten._to_copy.default": _copy,
    "aten.clone.default": _copy,
    "aten.lift_fresh_copy.default": _copy,
    "aten.relu.default": _relu,
    "aten.add.Scalar": _scalar(aten.add.out),
    "aten.sub.Scalar": _scalar(aten.sub.out),
    "aten.mul.Scalar": _scalar(aten.mul.out),
    "aten.div.Scalar": _scalar(aten.div.out),
    "aten.embedding.default": _embedding,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.index_put.default": _index_put,
}
SINGLE_PASS: Final = frozenset(
    {"aten._to_copy.default", "aten.clone.default", "aten.relu.default"}
    | {f"aten.{name}.Scalar" for name in ("add", "sub", "mul", "div")}
)
"""Lowerings that may write over what they read, where both are one window."""
