"""What a run of real tensors touches, operator by operator, and how many bytes that keeps alive at once.

Nothing here is tmmu's: a dispatch mode below autograd sees each call of a run on real tensors, with their real
storages. A storage lives from the operator that first writes it to the last that reads or writes it, results to the
end. That is what a planned run holds; Python frames may keep tensors for longer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOM_ONLY: Final = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")
"""Operators that make room and write nothing."""


@dataclass(frozen=True, slots=True)
class Event:
    """One call of an operator: the numbers of the storages that it reads and writes."""

    operator: str
    reads: frozenset[int]
    writes: frozenset[int]
    draws: bool


@dataclass(slots=True)
class Interceptor(TorchDispatchMode):
    """Block in which every operator is written down. Storages are kept, so that no address is used twice."""

    events: list[Event] = field(default_factory=list)
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TorchDispatchMode.__init__(self)

    def number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        return self.storages.setdefault(storage._cdata, storage)._cdata

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        self._write_down(func, args, kwargs or {}, out)
        return out

    def _write_down(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        schema = func._schema
        read = {self.number(tensor) for tensor in _tensors((args, kwargs))}
        changed: set[int] = set()
        for position, argument in enumerate(schema.arguments):
            if argument.is_write:
                value = kwargs.get(argument.name, args[position] if position < len(args) else None)
                changed |= {self.number(tensor) for tensor in _tensors(value)}
        made = {self.number(tensor) for tensor in _tensors(out)} - read
        if not (made or changed) or schema.name.partition("::")[2] in ROOM_ONLY:
            return
        draws = torch.Tag.nondeterministic_seeded in func.tags
        self.events.append(Event(str(func), frozenset(read), frozenset(made | changed), draws))


def live_peak(seen: Interceptor, persistent: Iterable[torch.Tensor], results: Iterable[torch.Tensor]) -> int:
    """Bytes of storages that operators make, at the fullest operator. What nothing comes of is not counted."""
    kept = {seen.number(tensor) for tensor in persistent}
    ends = {seen.number(tensor) for tensor in results}
    events = _useful(seen.events, kept | ends)
    birth: dict[int, int] = {}
    death: dict[int, int] = {}
    for place, event in enumerate(events):
        for storage in event.writes:
            birth.setdefault(storage, place)
        for storage in event.reads | event.writes:
            death[storage] = len(events) if storage in ends else place + 1
    change = [0] * (len(events) + 1)
    for storage, first in birth.items():
        if storage not in kept:
            change[first] += seen.storages[storage].nbytes()
            change[death[storage]] -= seen.storages[storage].nbytes()
    peak = live = 0
    for step in change:
        live += step
        peak = max(peak, live)
    return peak


def _useful(events: list[Event], needed: set[int]) -> list[Event]:
    """Those that write what is read later, given back or kept; and all that draw random numbers."""
    needed = set(needed)
    useful: list[Event] = []
    for event in reversed(events):
        if event.draws or event.writes & needed:
            useful.append(event)
            needed |= event.reads
    return useful[::-1]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
