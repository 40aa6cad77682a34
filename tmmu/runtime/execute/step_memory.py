"""Memory of one step under autograd: the forward half runs in it, later the backward half.

The forward half leaves residuals where the plan puts them, and hands them to autograd as views of the stack under a new
storage. State and invariants:

- The *lease* is a weak reference to that storage. While any residual lives it has not expired, and no other step may
  begin here. It ends with the last residual, whether or not there was a backward half.
- A residual that shares a buffer with a user output is handed out as that output, or as a view of it: autograd must see
  a change that the caller makes. It is therefore copied back in when the backward half runs, like every residual that
  lies outside the stack.
- The backward half overwrites residuals. So it *consumes* them: a second one has to load them from its arguments.
- Arguments that are *static* (weights) stay where the caller has them, and the code is bound to their addresses. Before
  each half they are held against the place that they had then: address, offset and size of the storage.
- An argument that is copied has all of its bytes, or the call is refused: its storage may be freed between calls.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.dlpack import from_dlpack

from tmmu.errors import InternalError
from tmmu.ir.program import ArgumentView, GraphHalf, JointGraph, ValueRef, joint_graph
from tmmu.runtime.execute.bind import bind_program
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.execute.executor import BoundProgram, run_launches
from tmmu.runtime.execute.step_results import (
    StepResults,
    as_seen,
    clone,
    resolve_output,
    view_argument,
    view_storage,
)
from tmmu.runtime.kernels.code import Runnable
from tmmu.runtime.memory.allocated import freed, is_allocated, reach_bytes, require_allocated
from tmmu.runtime.memory.slab import byte_range, in_memory
from tmmu.runtime.steps.launch_plan import Launch, launch_plan_of
from tmmu.torch_private import DisableAutocast, cpp_address, has_internal_overlap

ArgumentViews = tuple[tuple[int, torch.Tensor], ...]
"""Positions of arguments, and the planned tensors that they are copied to."""


class StepMemory:
    """A bound joint graph. ``static`` has the arguments, by position, that stay where the caller has them."""

    def __init__(self, joint: JointGraph, bound: BoundProgram, static: Mapping[int, torch.Tensor]) -> None:
        self._joint, self._bound = joint, bound
        reservation = bound.reservation
        self._memory = bound.segments.slabs["stack"].bytes(reservation.stack_offset, reservation.stack_bytes)
        self._widths = {position: tensor.element_size() for position, tensor in static.items()}
        self._static_places = tuple((position, *_place(tensor)) for position, tensor in static.items())
        inputs = {spec.name: bound.views.view(spec.value) for spec in bound.inputs}
        self._inputs = _argument_views(joint.forward, inputs)
        self._tangents = _argument_views(joint.backward, inputs) if joint.backward is not None else ()
        written = _written_buffers(bound)
        self._written_inputs = tuple((index, view) for index, view in self._inputs if self._buffer_of(index) in written)
        outputs = enumerate(joint.forward.outputs)
        self._views = {
            index: as_seen(bound.views.view(output.value), output)
            for index, output in outputs
            if isinstance(output, ValueRef)
        }
        stack = cpp_address(self._memory.untyped_storage())
        self._in_stack = {index for index, view in self._views.items() if cpp_address(view.untyped_storage()) == stack}
        self._aliased_outputs = _aliased_outputs(joint, bound)
        self._residuals = tuple(self._residual_views())
        self._static_residuals = tuple(self._static_views())
        # A view without elements has no byte by which its storage could be told from another.
        leased = {index for index in self._in_stack - self._aliased_outputs.keys() if self._views[index].numel() > 0}
        self._leased = frozenset(position for position, output in enumerate(joint.residuals) if output in leased)
        self._lease: StorageWeakRef | None = None
        self._is_consumed = False
        self.is_busy = False
        backward = joint.backward
        self._forward_results = StepResults(
            joint.forward, bound, joint.user_outputs, is_differentiable=backward is not None
        )
        self._backward_results = (
            StepResults(backward, bound, len(backward.outputs), is_differentiable=True)
            if backward is not None
            else None
        )
        self._forward_launches, self._backward_launches = self._launch_plans()

    def _launch_plans(self) -> tuple[tuple[Launch, ...], tuple[Launch, ...]]:
        """The launches of each half, with hooks that copy outputs where the joint graph delivers them."""
        joint, bound = self._joint, self._bound
        hooks: dict[int, Runnable] = {joint.forward_ops: _cut}
        hooks |= _delivery_hooks(joint.forward, self._forward_results)
        if joint.backward is not None and self._backward_results is not None:
            hooks |= _delivery_hooks(joint.backward, self._backward_results)
        launches = launch_plan_of(bound.steps, bound.stream, replay=True, hooks=hooks)
        forward = tuple(launch for launch in launches if launch.last <= joint.forward_ops)
        return forward, launches[len(forward) :]

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs in it and no residual in it lives."""
        return not self.is_busy and (self._lease is None or self._lease.expired())  # type: ignore[no-untyped-call]

    @property
    def stack_bytes(self) -> int:
        """Bytes that it takes of memory, its inputs aside."""
        return self._bound.reservation.stack_bytes

    def is_bound_to(self, args: Sequence[Any]) -> bool:
        """Whether the static arguments of the forward half are the tensors to which it was bound."""
        for position, pointer, offset, size in self._static_places:
            arg = args[position]
            if arg.data_ptr() != pointer or arg.storage_offset() != offset or arg.untyped_storage().nbytes() != size:
                return False
        return True

    def forward(self, args: Sequence[Any]) -> list[Any]:
        """The user outputs, each in memory of its own, then the residuals, under a new lease."""
        self._lease, self._is_consumed = None, False
        _require_allocated(args, self._inputs)
        with self._run_scope():
            for position, view in self._inputs:
                _copy(args[position], view)
            run_launches(self._bound, self._forward_launches)
            for position, view in self._written_inputs:
                _copy(view, args[position])
        results = self._forward_results.collect(args)
        return results + self._lease_residuals(args, results)

    def backward(self, args: Sequence[Any], *, load_residuals: bool) -> list[Any]:
        """The outputs of the backward half; with ``load_residuals`` all residuals are copied in from the arguments."""
        if self._backward_results is None:
            raise InternalError("a program of one half was asked for the other")
        residuals = [
            (position, view) for position, view in self._residuals if load_residuals or position not in self._leased
        ]
        _require_allocated(args, residuals)
        _require_allocated(args, self._tangents)
        with self._run_scope():
            for position, view in residuals:
                _copy(args[position], view)
            for position, view in self._tangents:
                _copy(args[position], view)
            self._is_consumed = True
            run_launches(self._bound, self._backward_launches)
        return self._backward_results.collect(args)

    def holds_residuals(self, args: Sequence[Any]) -> bool:
        """Whether the residuals among the backward half's arguments are those under the lease, not consumed yet."""
        if self._lease is None or self._is_consumed:
            return False
        cdata = self._lease.cdata
        return all(cpp_address(args[position].untyped_storage()) == cdata for position in self._leased)

    def can_load(self, args: Sequence[Any]) -> bool:
        """Whether residuals that are views of static arguments are views of the tensors to which it was bound."""
        for position, pointer, size in self._static_residuals:
            arg = args[position]
            if arg.data_ptr() != pointer or arg.untyped_storage().nbytes() != size:
                return False
        return True

    def _residual_views(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Where each residual lies in this memory, by backward argument; static arguments lie outside."""
        inputs = dict(self._inputs)
        for position, index in enumerate(self._joint.residuals):
            output = self._joint.forward.outputs[index] if index >= 0 else None
            if isinstance(output, ValueRef):
                yield position, self._views[index]
            elif isinstance(output, ArgumentView) and output.argument in inputs:
                yield position, view_argument(output, inputs[output.argument])

    def _static_views(self) -> Iterator[tuple[int, int, int]]:
        """(backward argument, pointer, storage bytes) of each residual that is a view of a static argument."""
        places = {position: (pointer, size) for position, pointer, _, size in self._static_places}
        for position, index in enumerate(self._joint.residuals):
            output = self._joint.forward.outputs[index] if index >= 0 else None
            if isinstance(output, ArgumentView) and output.argument in places:
                pointer, size = places[output.argument]
                yield position, pointer + output.offset * self._widths[output.argument], size

    @contextmanager
    def _run_scope(self) -> Iterator[None]:
        with self._bound.stream.activate(), torch.no_grad(), DisableAutocast():
            yield

    def _buffer_of(self, position: int) -> int:
        return self._bound.graph.notes.buffers.index(str(self._joint.forward.arguments[position]))

    def _lease_residuals(self, args: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Residuals as views of results, or of the stack under one new storage, whose end ends the lease."""
        # DLPack gives the same bytes a second storage, which dies with its last tensor; the slab's own never does.
        storage = from_dlpack(self._memory).untyped_storage()
        self._lease = StorageWeakRef(storage) if self._leased else None  # type: ignore[no-untyped-call]
        aliased = self._aliased_outputs
        return [
            self._view_of_result(index, results) if index in aliased else self._leased_view(index, args, storage)
            for index in range(len(results), len(self._joint.forward.outputs))
        ]

    def _view_of_result(self, index: int, results: Sequence[Any]) -> torch.Tensor:
        """A residual as a view of the user output on its buffer, or that output itself: both have one version."""
        output, alias = self._joint.forward.outputs[index], self._aliased_outputs[index]
        result: torch.Tensor = results[alias]
        if not isinstance(output, ValueRef) or output == self._joint.forward.outputs[alias]:
            return result
        with torch.no_grad():
            offset = self._bound.graph.values.offset[output.value]
            return as_seen(view_storage(in_memory(result), self._views[index], offset), output)

    def _leased_view(self, index: int, args: Sequence[Any], storage: torch.UntypedStorage) -> Any:
        """A residual in ``storage``; a copy of one outside the stack, and what is no tensor of the program."""
        view, output = self._views.get(index), self._joint.forward.outputs[index]
        if view is None or not isinstance(output, ValueRef):
            return resolve_output(output, args)
        if index not in self._in_stack:
            return clone(view)
        offset = int(view.storage_offset()) - int(self._memory.storage_offset()) // view.element_size()
        return as_seen(torch.empty(0, dtype=view.dtype).set_(storage, offset, view.shape, view.stride()), output)


def bind_step_memory(request: BindRequest, args: Sequence[Any], *, static: frozenset[int]) -> StepMemory:
    """Memory for a joint graph, bound to the forward arguments at ``static`` positions. Errors as of ``bind``."""
    program, plan = request.program, request.plan
    if plan.order != tuple(range(len(plan.order))):
        raise InternalError("the plan runs a program in halves in another order than it was recorded in")
    joint = joint_graph(program)
    names = joint.forward.arguments
    tensors = {position: args[position].detach() for position in sorted(static) if names[position] is not None}
    for position, tensor in tensors.items():
        require_allocated(tensor, f"argument {position} of a compiled graph")
    external = {str(names[position]): tensor for position, tensor in tensors.items()}
    return StepMemory(joint, bind_program(replace(request, external=external, exact_strides=True)), tensors)


def _cut() -> None:
    """A hook that only keeps a launch from spanning both halves."""


def _delivery_hooks(half: GraphHalf, results: StepResults) -> dict[int, Runnable]:
    return {leaving.after: partial(results.deliver, leaving.after) for leaving in half.deliveries}


def _argument_views(half: GraphHalf, views: Mapping[str, torch.Tensor]) -> ArgumentViews:
    names = enumerate(half.arguments)
    return tuple((position, views[name]) for position, name in names if name is not None and name in views)


def _aliased_outputs(joint: JointGraph, bound: BoundProgram) -> dict[int, int]:
    """By position among the forward outputs, each residual on a user output's buffer, and the position of that output.

    The user output of the same value where there is one, else the first on the buffer.
    """
    buffer_of = bound.graph.values.buffer
    outputs = enumerate(joint.forward.outputs)
    values = [(index, output.value) for index, output in outputs if isinstance(output, ValueRef)]
    results = [(index, value) for index, value in reversed(values) if index < joint.user_outputs]
    by_buffer = {buffer_of[value]: index for index, value in results}
    by_value = {value: index for index, value in results}
    return {
        index: by_value.get(value, by_buffer[buffer_of[value]])
        for index, value in values
        if index >= joint.user_outputs and buffer_of[value] in by_buffer
    }


def _written_buffers(bound: BoundProgram) -> frozenset[int]:
    graph = bound.graph
    return frozenset(graph.values.buffer[value] for op in bound.plan.order for value in graph.ops.writes[op])


def _place(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Address, offset in its storage, and the size of that: what a tensor that stays where it is has each time."""
    return tensor.data_ptr(), int(tensor.storage_offset()), tensor.untyped_storage().nbytes()


def _require_allocated(args: Sequence[Any], copied: Sequence[tuple[int, torch.Tensor]]) -> None:
    for position, view in copied:
        arg = args[position]
        if not is_allocated(arg, view.numel() * view.element_size() if arg.is_contiguous() else _reach(arg)):
            raise freed(arg, f"argument {position} of a compiled graph")


def _reach(tensor: torch.Tensor) -> int:
    return reach_bytes(tensor.shape, tensor.stride(), tensor.element_size())


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    # copy_ refuses a target whose elements overlap; with equal strides the bytes can be copied in memory order.
    if has_internal_overlap(target) and source.stride() == target.stride():
        source, target = _memory_order(source), _memory_order(target)
    target.copy_(source)


def _memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in the byte range of a tensor, gaps included, as one axis."""
    low, high = byte_range(tensor)
    width = tensor.element_size()
    return tensor.as_strided(((high - low) // width,), (1,), low // width)
