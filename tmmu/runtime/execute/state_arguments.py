"""State as arguments of a bound program: one binding, run on the state of any session, wherever that lies.

When the program is bound its state lies in a slab of its own, on which steps are compiled and tried, and which is given
back afterwards. What the code reads or writes there are the *templates*; each call takes a tensor in place of each.
Invariants: no tensor of the code but a template lies in that slab; a template lies in one state buffer alone; arguments
have the template's shape, strides, dtype and lazy bits, so a call differs from the one that was tried in its addresses
and in nothing else.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from tmmu.errors import InternalError
from tmmu.runtime.kernels.code import tensors_of
from tmmu.runtime.memory.slab import Location, Slab, with_lazy_bits
from tmmu.runtime.steps.build import CompiledStep
from tmmu.torch_private import cpp_address


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWindow:
    """A template: where in which state buffer it lies, in bytes, and its form, in elements."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_conj: bool
    is_neg: bool

    def view_at(self, location: Location) -> torch.Tensor:
        """The tensor in a buffer that lies there."""
        slab, start = location
        view = slab.view(start + self.offset, self.shape, self.stride, self.dtype)
        return with_lazy_bits(view, conj=self.is_conj, neg=self.is_neg)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateArguments:
    """The templates of a bound program, and the window of each, in the order in which a run takes tensors for them."""

    templates: tuple[torch.Tensor, ...]
    windows: tuple[StateWindow, ...]

    def views(self, location_of: Callable[[int], Location]) -> tuple[torch.Tensor, ...]:
        """What a run takes for state whose buffers lie where ``location_of`` says."""
        return tuple(window.view_at(location_of(window.buffer)) for window in self.windows)


def state_arguments(
    steps: Iterable[CompiledStep], slab: Slab, buffers: Sequence[tuple[int, int, int]]
) -> StateArguments:
    """The templates of these steps: their tensors in ``slab``, where each of ``buffers`` (id, offset, bytes) lies.

    They are ordered by buffer, then by offset, so that buffers alike have templates alike.
    """
    storage = cpp_address(slab.storage)
    ordered = sorted(buffers, key=lambda row: row[1])
    starts = [offset for _, offset, _ in ordered]
    rows: dict[int, tuple[torch.Tensor, StateWindow]] = {}
    for step in steps:
        for tensor in tensors_of((*step.code, *step.fallback)):
            if cpp_address(tensor.untyped_storage()) == storage:
                rows[id(tensor)] = tensor, _window(tensor, slab, ordered, starts)
    pairs = sorted(rows.values(), key=lambda row: (row[1].buffer, row[1].offset, row[1].shape, row[1].stride))
    return StateArguments(templates=tuple(t for t, _ in pairs), windows=tuple(window for _, window in pairs))


def _window(
    tensor: torch.Tensor, slab: Slab, ordered: Sequence[tuple[int, int, int]], starts: Sequence[int]
) -> StateWindow:
    position = int(tensor.storage_offset()) * tensor.element_size() - slab.base
    index = bisect_right(starts, position) - 1
    buffer, start, size = ordered[index]
    if index < 0 or position > start + size:
        raise InternalError(f"a step reads state at byte {position}, where no state buffer lies")
    return StateWindow(
        buffer=buffer,
        offset=position - start,
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        dtype=tensor.dtype,
        is_conj=tensor.is_conj(),
        is_neg=tensor.is_neg(),
    )
