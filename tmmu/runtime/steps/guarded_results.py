"""Copies of a step's results for its validation: views of one storage, as in the plan, with canaries around each.

Some ``out=`` kernels resize a result, write beyond it, or behave differently where two results share a storage; here
that shows without harm. Layout: guard, result, guard, result, …, guard, each guard of at least ``GUARD_BYTES`` bytes of
``CANARY``. Invariants, checked by ``is_intact``: every guard holds its canaries, every view is where it was made, and
the storage has its size. An argument that is the same view as a result in the plan is so here too, with its value.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, TypeAlias

import torch

from tmmu.ir.program import Call, ValueRef
from tmmu.runtime.memory.slab import Slab, byte_range, is_same_view
from tmmu.runtime.memory.usage import round_up
from tmmu.runtime.steps.build import STORAGE_OFFSET, CompiledStep, ViewOf
from tmmu.torch_private import schema_of

GUARD_BYTES: Final = 256
CANARY: Final = 0xA5
STAND_IN_BYTES: Final = 1 << 20
"""Bytes up to which a weight is replaced by draws while a step is tried; of more, no bit agrees by chance."""
CallSignature: TypeAlias = tuple[Any, ...]


class GuardedResults:
    """Guarded tensors for a call's results, and for the arguments that are the same view as one of them."""

    def __init__(self, call: Call, view: ViewOf) -> None:
        self._outer_view = view
        values = [value for value in dict.fromkeys(call.results) if value is not None]
        ends = [GUARD_BYTES]
        for value in values:
            ends.append(round_up(ends[-1] + _byte_size(view(value)), GUARD_BYTES) + GUARD_BYTES)
        self._slab = Slab(ends[-1], GUARD_BYTES, view(values[0]).device)
        self._memory = self._slab.bytes(0, ends[-1])
        self._memory.fill_(CANARY)
        self._storage_bytes = self._slab.storage.nbytes()
        self._guards = [(0, GUARD_BYTES)]
        self._places: dict[int, torch.Tensor] = {}
        for value, (begin, end) in zip(values, pairwise(ends), strict=True):
            like = view(value)
            self._places[value] = self._slab.view(begin, like.shape, like.stride(), like.dtype)
            self._guards.append((begin + _byte_size(like), end))
        for argument, value in aliased_results(call, view).items():
            self._places[value].copy_(view(argument))
            self._places[argument] = self._places[value]
        self._before = {value: place.detach() for value, place in self._places.items()}

    def view(self, value: int) -> torch.Tensor:
        """The guarded tensor of a result or an aliased argument; any other value's own."""
        place = self._places.get(value)
        return self._outer_view(value) if place is None else place

    def is_intact(self) -> bool:
        """Whether nothing but the results was written, moved or resized."""
        canaries_intact = all(bool((self._memory[low:high] == CANARY).all()) for low, high in self._guards)
        unmoved = all(is_same_view(place, self._before[value]) for value, place in self._places.items())
        return canaries_intact and unmoved and self._slab.storage.nbytes() == self._storage_bytes


def stand_ins(call: Call, view: ViewOf, may_fill: Callable[[torch.Tensor], bool]) -> ViewOf:
    """``view``, but copies, which may be filled, in place of small floating arguments that may not.

    None for an operator that counts from the start of a storage.
    """
    if any(argument.name == STORAGE_OFFSET for argument in schema_of(call.operator).arguments):
        return view
    copies: dict[int, torch.Tensor] = {}
    for value in dict.fromkeys(ref.value for ref in call.refs()):
        tensor = view(value)
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if is_number and _byte_size(tensor) <= STAND_IN_BYTES and not may_fill(tensor):
            slab = Slab(_byte_size(tensor), GUARD_BYTES, tensor.device)
            copies[value] = slab.view(0, tensor.shape, tensor.stride(), tensor.dtype)
    return lambda value: copies[value] if value in copies else view(value)


def call_signature(call: Call, view: ViewOf, step: CompiledStep) -> CallSignature:
    """All that decides how a call runs, except addresses: also which results are read, and the number of calls."""
    aliases = aliased_results(call, view)
    results = list(call.results)

    def token(argument: Any) -> Any:
        if isinstance(argument, ValueRef):
            alias = results.index(aliases[argument.value]) if argument.value in aliases else -1
            return (*_layout(view(argument.value)), argument.conj, argument.neg, alias)
        if isinstance(argument, (list, tuple)):
            return tuple(map(token, argument))
        return type(argument), repr(argument)

    results_layout = tuple(None if value is None else _layout(view(value)) for value in results)
    keywords = tuple((name, token(argument)) for name, argument in call.kwargs)
    read = tuple(place is not None for place in step.fallback[0].into)
    arguments = tuple(map(token, call.args))
    return str(call.operator), call.switches, arguments, keywords, results_layout, read, len(step.code)


def aliased_results(call: Call, view: ViewOf) -> dict[int, int]:
    """By argument, the result that is the same view."""
    values = [value for value in call.results if value is not None]
    aliases = {}
    for argument in _references([*call.args, *(argument for _, argument in call.kwargs)]):
        for value in values:
            if argument not in values and is_same_view(view(argument), view(value)):
                aliases[argument] = value
    return aliases


def _references(argument: Any) -> list[int]:
    if isinstance(argument, ValueRef):
        return [argument.value]
    if isinstance(argument, (list, tuple)):
        return [value for item in argument for value in _references(item)]
    return []


def _layout(tensor: torch.Tensor) -> CallSignature:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _byte_size(tensor: torch.Tensor) -> int:
    low, high = byte_range(tensor)
    return high - low
