"""The results of a half: copies that leave the plan, with the objects and the aliasing that eager would give.

Results on one buffer leave as one copy of that buffer, whole, so that each has eager's storage: its size, its offset,
and the bytes beside the result, which ``as_strided`` may reach. The copy is a result itself where one spans the buffer;
the other results on it are views of it, so that all share one version counter, by which autograd tells that what it
saved was changed. What eager returns as one object is one object, and what are two objects are two.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from tmmu.ir.program import ArgumentView, GraphHalf, Output, ValueRef
from tmmu.runtime.execute.executor import BoundProgram
from tmmu.runtime.kernels.code import unexpanded_index
from tmmu.runtime.memory.slab import in_memory, is_dense, with_lazy_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class _BufferResults:
    """The results on one buffer: ``base`` is the position of one that spans it, -1 for none; the others are views."""

    buffer: int
    base: int
    views: tuple[int, ...]


class StepResults:
    """The first ``count`` outputs of a half. State: the copies that were made since the last ``collect``."""

    def __init__(self, half: GraphHalf, bound: BoundProgram, count: int, *, is_differentiable: bool) -> None:
        self._half, self._bound, self._count = half, bound, count
        self._is_differentiable = is_differentiable
        self._copies: dict[int, torch.Tensor] = {}
        self._groups = {
            delivery.after: self._group(position for position in delivery.outputs if position < count)
            for delivery in half.deliveries
        }

    def _group(self, positions: Any) -> tuple[_BufferResults, ...]:
        by_buffer: dict[int, list[int]] = {}
        for position in sorted({self._half.objects[position] for position in positions}):
            by_buffer.setdefault(self._bound.graph.values.buffer[self._value(position)], []).append(position)
        groups = []
        for buffer, members in by_buffer.items():
            base = next((position for position in members if self._spans(position)), -1)
            views = tuple(position for position in members if position != base)
            groups.append(_BufferResults(buffer=buffer, base=base, views=views))
        return tuple(groups)

    def _ref(self, position: int) -> ValueRef:
        output = self._half.outputs[position]
        assert isinstance(output, ValueRef)  # what is delivered is a tensor of the program
        return output

    def _value(self, position: int) -> int:
        return self._ref(position).value

    def _spans(self, position: int) -> bool:
        """Whether it is the whole buffer, as it lies in memory."""
        if self._ref(position).conj or self._ref(position).neg:
            return False
        value, values = self._value(position), self._bound.graph.values
        view = self._bound.views.view(value)
        size = self._bound.graph.buffers.bytes[values.buffer[value]]
        return values.offset[value] == 0 and view.numel() * view.element_size() == size and is_dense(view)

    def deliver(self, after: int) -> None:
        """Copies what leaves after so many ops; the copies are kept until the half returns them."""
        views = self._bound.views
        for group in self._groups[after]:
            source = views.bytes(group.buffer) if group.base < 0 else views.view(self._value(group.base))
            self._copies[group.buffer] = clone(source)

    def collect(self, args: Sequence[Any]) -> list[Any]:
        """The results in order: copies and views of them, views of arguments, and what is no tensor."""
        copies, self._copies = self._copies, {}
        results: dict[int, Any] = {}
        for groups in self._groups.values():
            for group in groups:
                if group.base >= 0:
                    results[group.base] = copies[group.buffer]
                if group.views:
                    results.update(self._views_of(copies[group.buffer], group.views))
        for position in range(self._count):
            first = self._half.objects[position]
            if first not in results:
                results[first] = resolve_output(self._half.outputs[first], args)
        return [results[self._half.objects[position]] for position in range(self._count)]

    def _views_of(self, copy: torch.Tensor, positions: Sequence[int]) -> dict[int, torch.Tensor]:
        """Views as the caller would make them: autograd may follow a later change from one to the other.

        Results that autograd wraps are detached: it gives each a history of its own.
        """
        values = self._bound.graph.values
        with nullcontext() if self._is_differentiable else torch.enable_grad():
            results = {
                position: self._view_of(copy, position, values.offset[self._value(position)]) for position in positions
            }
        return {position: view.detach() for position, view in results.items()} if self._is_differentiable else results

    def _view_of(self, copy: torch.Tensor, position: int, offset: int) -> torch.Tensor:
        ref = self._ref(position)
        return as_seen(view_storage(copy, self._bound.views.view(ref.value), offset), ref)


def view_storage(base: torch.Tensor, like: torch.Tensor, offset: int) -> torch.Tensor:
    """A view, ``offset`` bytes into the storage of ``base``, with the shape, strides and dtype of ``like``."""
    width = like.element_size()
    if base.dtype is like.dtype:
        return base.as_strided(like.shape, like.stride(), offset // width)
    storage_bytes = base.untyped_storage().nbytes()
    flat = base.as_strided((storage_bytes // base.element_size(),), (1,), 0).view(torch.uint8)
    elements = flat[: storage_bytes // width * width].view(like.dtype)
    return elements.as_strided(like.shape, like.stride(), offset // width)


def view_argument(output: ArgumentView, tensor: torch.Tensor) -> torch.Tensor:
    """The window of an argument, counted from where that begins."""
    offset = int(tensor.storage_offset()) + output.offset
    return as_seen(tensor.as_strided(output.shape, output.stride, offset), output)


def as_seen(tensor: torch.Tensor, output: ValueRef | ArgumentView) -> torch.Tensor:
    """The tensor with the lazy bits of an output."""
    return with_lazy_bits(tensor, conj=output.conj, neg=output.neg)


def resolve_output(output: Output, args: Sequence[Any]) -> Any:
    """A view of an argument, or what is no tensor as it is."""
    if not isinstance(output, ArgumentView):
        return output
    tensor: torch.Tensor = args[output.argument]
    with torch.no_grad():
        return tensor if output.whole else view_argument(output, tensor)


def clone(view: torch.Tensor) -> torch.Tensor:
    """A copy with the same shape, strides and lazy bits."""
    if view.is_conj() or view.is_neg():
        return with_lazy_bits(clone(in_memory(view)), conj=view.is_conj(), neg=view.is_neg())
    copy = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype, device=view.device)
    index = unexpanded_index(view)
    (copy[index] if index else copy).copy_(view[index] if index else view)
    return copy
