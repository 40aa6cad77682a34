"""A frame: memory in which one step of a program in halves is under way.

The first half leaves what the second needs where the plan puts it, and hands it to autograd as windows on that memory
under a storage of their own. While any of them lives the frame is leased, and nothing else may run in it. What is a
result too is handed out once, as the result: autograd must see that the caller changes it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.dlpack import from_dlpack

from tmmu.errors import InternalError
from tmmu.ir.plan import Plan
from tmmu.ir.program import ArgumentView, GraphHalf, JointGraph, Output, Program, ValueRef, joint_graph
from tmmu.runtime.execute.bind import BindRequest, bind_program
from tmmu.runtime.execute.executor import BoundProgram, run_launches
from tmmu.runtime.kernels.code import Runnable, unexpanded_index
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.steps.build import byte_range
from tmmu.runtime.steps.launch_plan import Launch, launch_plan_of


class Frame:
    """``kept`` are the arguments that stay where the caller has them, by position; the others are copied in."""

    def __init__(self, joint: JointGraph, bound: BoundProgram, kept: Mapping[int, torch.Tensor]) -> None:
        self._joint, self._bound = joint, bound
        places = {one.name: bound.views.view(one.value) for one in bound.inputs}
        self._kept = tuple((position, tensor.data_ptr()) for position, tensor in kept.items())
        self._into = _by_position(joint.forward, places)
        self._tangents = _by_position(joint.backward, places) if joint.backward is not None else ()
        changed = _changed(bound)
        self._back = tuple((at, place) for at, place in self._into if self._buffer(at) in changed)
        self._memory = bound.segments.slabs["stack"].bytes(
            bound.reservation.stack_offset, bound.reservation.stack_bytes
        )
        self._twice = _also_results(joint, bound)
        self._leased_at = tuple(at for at, of in enumerate(joint.residuals) if of >= 0 and self._in_stack(of))
        self._lease: StorageWeakRef | None = None
        self._spent = False
        self.busy = False
        self._delivered: dict[int, torch.Tensor] = {}
        self._tapes = self._taped()

    def _taped(self) -> tuple[tuple[Launch, ...], tuple[Launch, ...]]:
        """The pieces of each half, with what copies results out where they leave."""
        joint, bound = self._joint, self._bound
        first, second = self._hooks(joint.forward, joint.user_outputs), {}
        if joint.backward is not None:
            second = self._hooks(joint.backward, len(joint.backward.outputs))
        hooks = {joint.forward_ops: _nothing} | first | second
        tape = launch_plan_of(bound.steps, bound.stream, replay=True, hooks=hooks)
        here = tuple(piece for piece in tape if piece.last <= joint.forward_ops)
        return here, tape[len(here) :]

    def _hooks(self, half: GraphHalf, results: int) -> dict[int, Runnable]:
        return {one.after: partial(self._deliver, half, one.outputs, results) for one in half.deliveries}

    def _deliver(self, half: GraphHalf, places: Sequence[int], results: int) -> None:
        """Copies, until somebody takes them, of those that are results."""
        mine = [at for at in places if at < results]
        also = [half.outputs[at] for at in self._twice] if half is self._joint.forward else []
        copies = self._fresh([half.outputs[at] for at in mine], also)
        self._delivered.update(zip(mine, copies, strict=True))

    @property
    def idle(self) -> bool:
        """Whether nothing runs in it and nobody holds what a first half left in it."""
        return not self.busy and (self._lease is None or self._lease.expired())  # type: ignore[no-untyped-call]

    @property
    def stack_bytes(self) -> int:
        """What it takes of memory, its inputs aside."""
        return self._bound.reservation.stack_bytes

    def here(self, args: Sequence[Any]) -> bool:
        """Whether the weights among the first half's arguments are where they were when it was bound."""
        return all(args[position].data_ptr() == pointer for position, pointer in self._kept)

    def first(self, args: Sequence[Any]) -> list[Any]:
        """The results, each in memory of its own, then what is saved, as windows on the frame."""
        self._lease, self._spent = None, False
        with self._running():
            for position, place in self._into:
                _copy(args[position], place)
            run_launches(self._bound, self._tapes[0])
            for position, place in self._back:
                _copy(place, args[position])
        handed, results = self._joint.forward.outputs, self._joint.user_outputs
        found = self._taken(handed[:results], args)
        return found + self._leased(handed[results:], args, found)

    def second(self, args: Sequence[Any], *, loaded: bool) -> list[Any]:
        """What the second half returns, of what the first left here for it alone, and else of the arguments.

        If it is ``loaded``, all comes from the arguments.
        """
        half = self._joint.backward
        if half is None:
            raise InternalError("a program of one half was asked for the other")
        with self._running():
            for position, place in self._saved():
                if loaded or position not in self._leased_at:
                    _copy(args[position], place)
            for position, place in self._tangents:
                _copy(args[position], place)
            self._spent = True
            run_launches(self._bound, self._tapes[1])
        return self._taken(half.outputs, args)

    def holds(self, args: Sequence[Any]) -> bool:
        """Whether all that was saved here comes back as it was handed out, for the first time."""
        if self._lease is None or self._spent:
            return False
        cdata = self._lease.cdata
        return all(args[at].untyped_storage()._cdata == cdata for at in self._leased_at)

    def takes(self, args: Sequence[Any]) -> bool:
        """Whether the weights among the second half's arguments are those that it was bound to."""
        where = dict(self._kept)
        for at, of in enumerate(self._joint.residuals):
            one = self._joint.forward.outputs[of] if of >= 0 else None
            if isinstance(one, ArgumentView) and one.argument in where:
                found = args[at].data_ptr() - one.offset * args[at].element_size()
                if found != where[one.argument]:
                    return False
        return True

    def _saved(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Where each argument of the second half that was saved lies in this frame, the caller's own aside."""
        copied = dict(self._into)
        for at, of in enumerate(self._joint.residuals):
            one = self._joint.forward.outputs[of] if of >= 0 else None
            if isinstance(one, ValueRef):
                yield at, self._bound.views.view(one.value)
            elif isinstance(one, ArgumentView) and one.argument in copied:
                yield at, copied[one.argument].as_strided(one.shape, one.stride, _offset(copied[one.argument], one))

    def _in_stack(self, of: int) -> bool:
        one = self._joint.forward.outputs[of]
        if not isinstance(one, ValueRef) or of in self._twice:
            return False
        view = self._bound.views.view(one.value)
        return view.numel() > 0 and view.untyped_storage()._cdata == self._memory.untyped_storage()._cdata

    def _fresh(self, handed: Sequence[Output], also: Sequence[Output]) -> list[torch.Tensor]:
        """Copies; what shares a buffer here, or with ``also``, shares its storage there. One value is one tensor."""
        values = [one.value for one in handed if isinstance(one, ValueRef)]
        home = self._bound.graph.values.buffer
        homes = frozenset(home[value] for value in values)
        others = [one.value for one in also if isinstance(one, ValueRef) and home[one.value] in homes]
        sharing = Counter(home[value] for value in dict.fromkeys(values + others))
        copies = {value: _copied(self._bound.views.view(value)) for value in values if sharing[home[value]] == 1}
        for buffer in [buffer for buffer, count in sharing.items() if count > 1]:
            whole = Slab.over(self._bound.views.bytes(buffer).clone())
            together = [value for value in dict.fromkeys(values) if home[value] == buffer]
            copies.update((value, self._bound.views.view_in(value, whole)) for value in together)
        return [copies[value] for value in values]

    def _taken(self, handed: Sequence[Output], args: Sequence[Any]) -> list[Any]:
        """What was delivered, in its place among what is no tensor of the program."""
        delivered, self._delivered = self._delivered, {}
        return [
            delivered[at] if isinstance(one, ValueRef) else _of_argument(one, args) for at, one in enumerate(handed)
        ]

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self._bound.stream.activate(), torch.no_grad(), torch._C._DisableAutocast():
            yield

    def _buffer(self, position: int) -> int:
        return self._bound.graph.notes.buffers.index(str(self._joint.forward.arguments[position]))

    def _leased(self, handed: Sequence[Output], args: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Windows on results, or on the frame's memory under one new storage, whose end is the end of the lease."""
        storage = from_dlpack(self._memory).untyped_storage()
        self._lease = StorageWeakRef(storage) if self._leased_at else None  # type: ignore[no-untyped-call]
        return [
            self._of_result(at, results) if at in self._twice else self._windowed(one, args, storage)
            for at, one in enumerate(handed, len(results))
        ]

    def _of_result(self, at: int, results: Sequence[Any]) -> torch.Tensor:
        """What is saved as a window on a result, of one version with it; the result itself where it is the same."""
        value, other = _value(self._joint.forward.outputs[at]), _value(self._joint.forward.outputs[self._twice[at]])
        result: torch.Tensor = results[self._twice[at]]
        if value == other:
            return result
        one = self._bound.views.view(value)
        whole, width = result.untyped_storage().nbytes(), one.element_size()
        offset = self._bound.graph.values.offset[value] // width
        with torch.no_grad():
            flat = result.as_strided((whole // result.element_size(),), (1,), 0).view(torch.uint8)
            return flat[: whole // width * width].view(one.dtype).as_strided(one.shape, one.stride(), offset)

    def _windowed(self, one: Output, args: Sequence[Any], storage: torch.UntypedStorage) -> Any:
        if not isinstance(one, ValueRef):
            return _of_argument(one, args)
        view = self._bound.views.view(one.value)
        if view.untyped_storage()._cdata != self._memory.untyped_storage()._cdata:
            return _copied(view)
        offset = int(view.storage_offset()) - int(self._memory.storage_offset()) // view.element_size()
        return torch.empty(0, dtype=view.dtype).set_(storage, offset, view.shape, view.stride())


def bind_frame(program: Program, plan: Plan, args: Sequence[Any], *, static: frozenset[int], **given: Any) -> Frame:
    """A frame for these arguments, in which those at ``static`` positions stay where they are.

    ``given`` are token and weights. Errors are those of binding.
    """
    if plan.order != tuple(range(len(plan.order))):
        raise InternalError("the plan runs a program in halves in another order than it was recorded in")
    joint = joint_graph(program)
    names = joint.forward.arguments
    kept = {position: args[position].detach() for position in sorted(static) if names[position] is not None}
    external = {str(names[position]): tensor for position, tensor in kept.items()}
    request = BindRequest(program=program, plan=plan, external=external, **given)
    return Frame(joint, bind_program(request), kept)


def _nothing() -> None:
    """A place where the tape is cut."""


def _by_position(half: GraphHalf, places: Mapping[str, torch.Tensor]) -> tuple[tuple[int, torch.Tensor], ...]:
    return tuple((at, places[name]) for at, name in enumerate(half.arguments) if name is not None and name in places)


def _value(one: Output) -> int:
    if not isinstance(one, ValueRef):
        raise InternalError("a result that is saved is no value of the program")
    return one.value


def _also_results(joint: JointGraph, bound: BoundProgram) -> dict[int, int]:
    """By position, what is saved of buffers that results lie in, and where: itself if it is one, or the first there."""
    home, handed = bound.graph.values.buffer, joint.forward.outputs
    refs = [(at, one.value) for at, one in enumerate(handed) if isinstance(one, ValueRef)]
    results = [(at, value) for at, value in reversed(refs) if at < joint.user_outputs]
    lying = {home[value]: at for at, value in results}
    same = {value: at for at, value in results}
    saved = [(at, value) for at, value in refs if at >= joint.user_outputs and home[value] in lying]
    return {at: same.get(value, lying[home[value]]) for at, value in saved}


def _changed(bound: BoundProgram) -> frozenset[int]:
    """Buffers that some op writes."""
    graph = bound.graph
    return frozenset(graph.values.buffer[value] for op in bound.plan.order for value in graph.ops.writes[op])


def _offset(tensor: torch.Tensor, one: ArgumentView) -> int:
    return int(tensor.storage_offset()) + one.offset


def _of_argument(one: Output, args: Sequence[Any]) -> Any:
    """A window on an argument, or what is no tensor as it is."""
    if not isinstance(one, ArgumentView):
        return one
    tensor: torch.Tensor = args[one.argument]
    with torch.no_grad():
        return tensor if one.whole else tensor.as_strided(one.shape, one.stride, _offset(tensor, one))


def _copy(source: torch.Tensor, place: torch.Tensor) -> None:
    """Elements that lie over each other are copied as they lie: both have the same strides."""
    if torch._debug_has_internal_overlap(place) and source.stride() == place.stride():
        source, place = _flat(source), _flat(place)
    place.copy_(source)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    low, high = byte_range(tensor)
    width = tensor.element_size()
    return tensor.as_strided(((high - low) // width,), (1,), low // width)


def _copied(view: torch.Tensor) -> torch.Tensor:
    """The same shape, strides and bits in memory of its own."""
    made = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype, device=view.device)
    pick = unexpanded_index(view)
    (made[pick] if pick else made).copy_(view[pick] if pick else view)
    return made
