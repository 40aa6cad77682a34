"""What a kernel is called with, read off the function that Inductor writes to call it, by running that on stand-ins.

Each tensor of such a call is an argument of the group, a result, or scratch that the kernel wants beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, TypeAlias

import torch

from tmmu.fusion.group import FusionGroup, dtype_of
from tmmu.fusion.window_views import memory_order
from tmmu.runtime.kernels.kernel_calls import CHANGED_POINTER, READ_POINTER, RESULT_POINTER, SCRATCH_POINTER

Pointer: TypeAlias = tuple[str, int]
"""What an argument of a kernel points to: (kind, which of that kind)."""
MAX_POINTERS: Final = 400
SCRATCH_ALIGNMENT: Final = 64


class NotOneKernel(Exception):
    """Inductor makes something else of the group than one kernel; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelForm:
    """What a kernel is called with, in the order of its arguments; ``scratch``: bytes of each piece beside them."""

    pointers: tuple[Pointer, ...]
    scratch: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StandIn:
    """A tensor where the generated function is run: what it points to, and how it lies there."""

    pointer: Pointer
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """From its first element to the end of its last."""
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return (reach + 1) * self.dtype.itemsize if 0 not in self.shape else 0


def scratch_places(form: KernelForm) -> tuple[tuple[tuple[int, int], ...], int]:
    """(offset, bytes) of each piece in one tensor of scratch, and the bytes of all."""
    places, end = [], 0
    for size in form.scratch:
        places.append((end, size))
        end += -(-size // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    return tuple(places), end


@dataclass(frozen=True, slots=True)
class Scratch:
    """The tensors that a calling function makes, of which some are its results."""

    pieces: list[StandIn] = field(default_factory=list)

    def empty(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> StandIn:
        """One more of them: what ``empty_strided`` is there."""
        self.pieces.append(StandIn((SCRATCH_POINTER, len(self.pieces)), tuple(shape), tuple(stride), dtype))
        return self.pieces[-1]


def reinterpret(tensor: StandIn, shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> StandIn:
    """The same memory seen otherwise. Errors: ``NotOneKernel`` where it begins inside that."""
    if offset:
        raise NotOneKernel("a tensor that begins inside another")
    return StandIn(tensor.pointer, tuple(shape), tuple(stride), tensor.dtype)


def argument_stand_ins(group: FusionGroup) -> list[StandIn]:
    """What the calling function is given: what the group reads, then what it changes."""
    rows = [(READ_POINTER, group.reads), (CHANGED_POINTER, group.changed)]
    return [
        StandIn((kind, place), group.bases[base].window.shape, group.bases[base].window.stride, torch.float32)
        for kind, bases in rows
        for place, base in enumerate(bases)
    ]


def form_of(
    group: FusionGroup, arguments: Sequence[StandIn], returned: Sequence[StandIn], scratch: Scratch
) -> KernelForm:
    """The form of what was called with ``arguments`` and returned so. Errors: ``NotOneKernel``."""
    results = _result_pointers(group, returned)
    pieces = [tensor for tensor in scratch.pieces if tensor.pointer not in results]
    number = {tensor.pointer: place for place, tensor in enumerate(pieces)}
    pointers: list[Pointer] = []
    for tensor in arguments:
        kind, place = tensor.pointer
        if kind == SCRATCH_POINTER:
            pointers.append(results.get(tensor.pointer) or (SCRATCH_POINTER, number[tensor.pointer]))
        else:
            pointers.append((kind, place))
    if len(pointers) > MAX_POINTERS:
        raise NotOneKernel(f"{len(pointers)} pointers")
    missing = {(RESULT_POINTER, place) for place in range(len(group.results))} - set(pointers)
    if missing:
        raise NotOneKernel("a result that the kernel does not write")
    return KernelForm(pointers=tuple(pointers), scratch=tuple(tensor.bytes for tensor in pieces))


def _result_pointers(group: FusionGroup, returned: Sequence[StandIn]) -> dict[Pointer, Pointer]:
    """By pointer of what was made, which result it is."""
    results: dict[Pointer, Pointer] = {}
    if len(returned) != len(group.results) or any(not isinstance(tensor, StandIn) for tensor in returned):
        raise NotOneKernel("other results than the group's")
    for place, (tensor, base) in enumerate(zip(returned, group.results, strict=True)):
        window = group.bases[base].result
        shape = tuple(window.shape[axis] for axis in memory_order(window.shape, window.stride))
        if tensor.pointer[0] != SCRATCH_POINTER or tensor.pointer in results or tensor.dtype != dtype_of(window):
            raise NotOneKernel("a result that is an argument, or another result")
        if tensor.shape != shape or not _is_contiguous(tensor):
            raise NotOneKernel("a result that lies otherwise than planned")
        results[tensor.pointer] = (RESULT_POINTER, place)
    return results


def _is_contiguous(tensor: StandIn) -> bool:
    steps = [prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
    rows = zip(tensor.shape, tensor.stride, steps, strict=True)
    return all(n == 1 or stride == step for n, stride, step in rows)
