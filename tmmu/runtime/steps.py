"""From a call to a step: one thing to run, without arguments, that leaves the results where the plan puts them.

The best of four ways that is right for the call: as it is, for an operator that changes its arguments; a lowering of
ours; the ``out=`` overload; else run, and copy out of what the operator allocated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tmmu.errors import InternalError
from tmmu.ir.calls import Call, Ref
from tmmu.runtime.lowerings import LOWERINGS, SINGLE_PASS, Run
from tmmu.runtime.overloads import arguments_by_name, out_overload
from tmmu.runtime.slab import is_dense, same_place

View = Callable[[int], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """``run`` does it; ``copying`` does the same the slow way that is always right, where ``run`` is another."""

    name: str
    run: Run
    copying: Run
    results: tuple[torch.Tensor, ...]


def compile_step(call: Call, view: View) -> Step:
    """The step of one call; ``view`` gives the tensor of a value, always the same one."""
    args = tuple(_bound(argument, view) for argument in call.args)
    kwargs = {name: _bound(argument, view) for name, argument in call.kwargs}
    name = str(call.operator)
    targets = [None if value is None else view(value) for value in call.results]
    copying = _copying(call.operator, args, kwargs, targets)
    run = _direct(call, args, kwargs, targets) or copying
    return Step(name=name, run=run, copying=copying, results=tuple(t for t in targets if t is not None))


def _bound(argument: Any, view: View) -> Any:
    if isinstance(argument, Ref):
        return view(argument.value)
    if isinstance(argument, (list, tuple)) and not isinstance(argument, torch.Size):
        items = [_bound(item, view) for item in argument]
        return items if isinstance(argument, list) else tuple(items)
    return argument


def _direct(
    call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], targets: Sequence[torch.Tensor | None]
) -> Run | None:
    """The call without copying its results, where there is a way that is right for these tensors."""
    operator = call.operator
    if all(r.alias_info is not None and r.alias_info.is_write for r in operator._schema.returns):
        return partial(operator._op, *args, **kwargs)
    results = [target for target in targets if target is not None]
    if len(results) != len(targets) or not all(map(is_dense, results)):
        return None
    given = arguments_by_name(operator, args, kwargs)
    shared = [t for t in _tensors(args, kwargs) if any(_meet(t, result) for result in results)]
    in_place = all(same_place(t, result) for t in shared for result in results)
    lowering = LOWERINGS.get(str(operator))
    if lowering is not None and len(results) == 1 and (not shared or (in_place and str(operator) in SINGLE_PASS)):
        lowered = lowering(given, results[0])
        if lowered is not None:
            return lowered
    out = out_overload(operator)
    if (
        out is None
        or len(out.results) != len(results)
        or (shared and not (in_place and torch.Tag.pointwise in operator.tags))
    ):
        return None
    positional, named = out.arguments(given, results)
    return partial(out.operator._op, *positional, **named)


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors may have bytes in common: their extents on one storage meet."""
    if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    (low, high), (begin, end) = _extent(one), _extent(other)
    return low < end and begin < high


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    low = int(tensor.storage_offset()) * tensor.element_size()
    if tensor.numel() == 0:
        return low, low
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return low, low + (last + 1) * tensor.element_size()


def _copying(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], targets: Sequence[torch.Tensor | None]
) -> Run:
    """Run the operator, then copy what it returns into place; what it returns in place already is left alone."""
    call = partial(operator._op, *args, **kwargs)
    picks = [() if t is None else _moving_axes(t) for t in targets]
    places = [None if t is None else t[pick] if pick else t for t, pick in zip(targets, picks, strict=True)]

    def run() -> None:
        leaves = _leaves(call())
        if len(leaves) != len(places):
            raise InternalError(f"{operator} returns {len(leaves)} results, not {len(places)}")
        for leaf, place, pick in zip(leaves, places, picks, strict=True):
            if place is not None and leaf is not None:  # a real kernel may leave out what nobody asked for
                found = leaf[pick] if pick else leaf
                if not same_place(found, place):
                    place.copy_(found)

    return run


def _moving_axes(tensor: torch.Tensor) -> tuple[slice, ...]:
    """What selects each element of the tensor's memory once: of an axis that stands still, the first."""
    still = [n > 1 and not stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tuple(slice(0, 1) if stays else slice(None) for stays in still) if any(still) else ()


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    return [leaf for leaf in _leaves([*args, *kwargs.values()]) if isinstance(leaf, torch.Tensor)]
