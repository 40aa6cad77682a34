"""A step's results in memory of their own: side by side on one storage, as in a slab, with canaries around each.

There an operator may do what it likes, and what it does beyond its results is seen: some ``out=`` kernels resize a
result, write more there than it has room for, or mind that two results share a storage.
"""

from itertools import pairwise
from typing import Any, Final, TypeAlias

import torch

from tmmu.ir.calls import Call, Ref
from tmmu.runtime.memory.slab import Slab, same_place
from tmmu.runtime.memory.usage import round_up
from tmmu.runtime.steps.build import Step, View, extent

CANARY: Final = 256
BYTE: Final = 0xA5
Form: TypeAlias = tuple[Any, ...]


class Apart:
    """Places for a call's results, and for arguments that lie exactly on them, apart from all else."""

    def __init__(self, call: Call, view: View) -> None:
        self._elsewhere = view
        values = [value for value in dict.fromkeys(call.results) if value is not None]
        ends = [CANARY]
        for value in values:
            ends.append(round_up(ends[-1] + _size(view(value)), CANARY) + CANARY)
        self._slab = Slab(ends[-1], CANARY, view(values[0]).device)
        self._memory = self._slab.bytes(0, ends[-1])
        self._memory.fill_(BYTE)
        self._held = self._slab.storage.nbytes()
        self._gaps = [(0, CANARY)]
        self._places: dict[int, torch.Tensor] = {}
        for value, (begin, end) in zip(values, pairwise(ends), strict=True):
            like = view(value)
            self._places[value] = self._slab.view(begin, like.shape, like.stride(), like.dtype)
            self._gaps.append((begin + _size(like), end))
        for argument, value in lying_on(call, view).items():
            self._places[value].copy_(view(argument))
            self._places[argument] = self._places[value]
        self._before = {value: place.detach() for value, place in self._places.items()}

    def view(self, value: int) -> torch.Tensor:
        """The tensor of a value, always the same one."""
        found = self._places.get(value)
        return self._elsewhere(value) if found is None else found

    def untouched(self) -> bool:
        """Whether every canary is whole, and every place where it was."""
        whole = all(bool((self._memory[low:high] == BYTE).all()) for low, high in self._gaps)
        kept = all(same_place(place, self._before[value]) for value, place in self._places.items())
        return whole and kept and self._slab.storage.nbytes() == self._held


def form_of(call: Call, view: View, step: Step) -> Form:
    """All that decides how a call is run, but where it lies: also in how many parts, and which results anyone reads."""
    on = lying_on(call, view)
    results = list(call.results)

    def token(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return (*_form(view(argument.value)), results.index(on[argument.value]) if argument.value in on else -1)
        if isinstance(argument, (list, tuple)):
            return tuple(map(token, argument))
        return type(argument), repr(argument)

    made = tuple(None if value is None else _form(view(value)) for value in results)
    named = tuple((name, token(argument)) for name, argument in call.kwargs)
    read = tuple(place is not None for place in step.copying[0].into)
    return str(call.operator), tuple(map(token, call.args)), named, made, read, len(step.code)


def lying_on(call: Call, view: View) -> dict[int, int]:
    """The result that an argument shares its window with, by argument."""
    values = [value for value in call.results if value is not None]
    found = {}
    for argument in _refs([*call.args, *(argument for _, argument in call.kwargs)]):
        for value in values:
            if argument not in values and same_place(view(argument), view(value)):
                found[argument] = value
    return found


def _refs(argument: Any) -> list[int]:
    if isinstance(argument, Ref):
        return [argument.value]
    if isinstance(argument, (list, tuple)):
        return [value for item in argument for value in _refs(item)]
    return []


def _form(tensor: torch.Tensor) -> Form:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _size(tensor: torch.Tensor) -> int:
    low, high = extent(tensor)
    return high - low
