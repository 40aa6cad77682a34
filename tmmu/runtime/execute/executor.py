"""The executor: runs a bound program in its plan's memory, any number of times, without allocating for it.

A run copies the inputs in, executes the launch plan, copies changed inputs back and outputs out. Invariants during a
run: the thread has exclusive access to the segments; the plan's slab is on the stack at the offset to which the code is
bound; autograd, autocast and gradient tracking are off, because the graph says what is computed.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from tmmu.errors import InternalError, InvalidConfig, UnsupportedOp
from tmmu.ir.graph import STATE, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.program import Switches
from tmmu.kernel_switches import under_switches
from tmmu.runtime.execute.commit import CommitState, Pending, commit_execution
from tmmu.runtime.execute.inputs import InputSpec, check_inputs, fill_input, own_window
from tmmu.runtime.execute.state_arguments import StateArguments
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.tensor_views import TensorViews
from tmmu.runtime.steps.build import CompiledStep
from tmmu.runtime.steps.execution_stream import ExecutionStream
from tmmu.runtime.steps.launch_plan import Hooks, Launch, launch_plan_of, single_launches
from tmmu.runtime.steps.unplanned import Unplanned
from tmmu.torch_private import BelowAutograd, DisableAutocast, set_grad_enabled

CALL_ERRORS: Final = (RuntimeError, IndexError, ValueError, TypeError, ArithmeticError)
"""What a call raises on inputs that it does not take: torch's errors, and Python's for a number that it computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What an executor has reserved: the contents of its weights, its session, its slab of the stack in bytes."""

    text_keys: tuple[bytes, ...]
    session: str | None
    stack_offset: int
    stack_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundProgram:
    """A program bound to memory. ``written_inputs`` are positions of inputs that a run changes for the caller."""

    graph: Graph
    plan: Plan
    views: TensorViews
    inputs: tuple[InputSpec, ...]
    written_inputs: frozenset[int]
    outputs: tuple[int, ...]
    steps: tuple[CompiledStep, ...]
    variants: tuple[Mapping[int, CompiledStep], ...]
    """By position, steps with other numbers, which a run may take in place of those."""
    unplanned_allocations: tuple[Unplanned, ...]
    segments: Segments
    stream: ExecutionStream
    switches: Switches
    """Kernel switches under which it runs; a step of others sets them itself."""
    reservation: Reservation
    caller_storages: "tuple[CallerStorage, ...]"
    """Of external inputs and adopted weights, to which the code is bound."""
    state: StateArguments | None = None
    """Where each run takes its state as arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerStorage:
    """Where a storage of the caller's lay, and how large it was, when the code was bound to it."""

    name: str
    storage: torch.UntypedStorage
    pointer: int
    bytes: int


@dataclass(slots=True)
class _Lifetime:
    """Whether the executor is open, the seal of its batches, and what waits for runs since the last commit."""

    open: bool = True
    commit: CommitState = field(default_factory=CommitState)
    wait: Callable[[], None] | None = None

    def require_open(self) -> None:
        """``INVALID_CONFIG`` once it is closed."""
        if not self.open:
            raise InvalidConfig("the executor is closed", fix="bind the plan again")


class Executor:
    """Called with the inputs by name, returns the outputs in the graph's order, copied out of its memory.

    Threads that call one executor, or executors that share segments, wait for each other; a call from inside a step is
    refused. State stays in place from call to call. If a step fails, state may be half updated.
    """

    def __init__(self, bound: BoundProgram, *, replay: bool = True, hooks: Hooks | None = None) -> None:
        self._bound, self._replay = bound, replay
        self._launches = _launches_of(bound, hooks, replay=replay)
        self._input_views = tuple(own_window(bound.views.view(spec.value)) for spec in bound.inputs)
        self._output_views = tuple(bound.views.view(value) for value in bound.outputs)
        self._lifetime = _Lifetime()

    def __call__(self, /, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs, each in memory of its own."""
        return self.run(inputs)

    def run(
        self, inputs: Mapping[str, torch.Tensor], *, state: Sequence[torch.Tensor] = (), views: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """The outputs; with ``views``, as views of the executor's memory, valid until anything else runs in it.

        ``state`` is what ``bound.state.views`` gives for state that lies elsewhere: whoever bound the plan to no
        session answers for it. ``INVALID_CONFIG`` for inputs that the plan was not made for, and where an operator
        raises, with its source.
        """
        tensors, bound = self.require_runnable(inputs, state), self._bound
        with bound.segments.exclusive, self.stack_scope(), bound.stream.activate(), DisableAutocast():
            self.fill_inputs(tensors)
            run_launches(bound, self._launches, state)
            for position in bound.written_inputs:
                tensors[position].copy_(self._input_views[position])
            self.note_run()
            return self.results(views=views)

    def require_runnable(self, inputs: Mapping[str, torch.Tensor], state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs in their order; ``INVALID_CONFIG`` for what no run takes, and for memory that has moved."""
        bound = self._bound
        tensors = check_inputs(bound.inputs, inputs)
        expected = len(bound.state.windows) if bound.state else 0
        if len(state) != expected:
            raise InvalidConfig(
                f"a run takes {expected} tensors of state, not {len(state)}", fix="pass bound.state.views(location_of)"
            )
        for place in bound.caller_storages:
            if place.storage.data_ptr() != place.pointer or place.storage.nbytes() != place.bytes:
                raise _moved(place)
        return tensors

    def stack_scope(self) -> AbstractContextManager[None]:
        """Block in which its slab is on the stack; whoever has exclusive access to the segments enters it."""
        return _StackScope(self._bound, self._lifetime)

    def fill_inputs(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies inputs, in their order, into the memory that its code reads."""
        for spec, view, tensor in zip(self._bound.inputs, self._input_views, tensors, strict=True):
            fill_input(spec, view, tensor)

    def results(self, *, views: bool = False) -> tuple[torch.Tensor, ...]:
        """The outputs of what has just run, copied out of its memory, or as views of that."""
        return tuple(out.detach() if views else out.clone() for out in self._output_views)

    def note_run(self) -> None:
        """Has the next ``commit`` wait for what has been issued so far."""
        self._lifetime.wait = self._bound.stream.record_event()

    def launches_of(self, first: int, last: int) -> tuple[Launch, ...]:
        """Launches of the steps ``[first, last)`` alone, captured now. ``UNSUPPORTED_OP`` where hooks run between."""
        if any(launch.first == launch.last for launch in self._launches):
            raise UnsupportedOp("weights that stream are there for a whole run", fix="bind a plan without a ring")
        return _launches_of(self._bound, None, replay=self._replay, span=(first, last))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """``UNSUPPORTED_OP``: its memory and the code that is bound to it are neither copied nor stored."""
        raise UnsupportedOp("an executor is not copied and not pickled", fix="store the plan, and bind that anew")

    def commit(self) -> CommitState:
        """Waits for all runs and seals them (``UML_OS.TMMU.CommitExecution_v1``); the last seal if none ran since."""
        life, plan = self._lifetime, self._bound.plan
        with self._bound.segments.exclusive:
            if life.wait is not None:
                pending = [Pending(arena=arena, wait=life.wait) for arena in range(len(plan.arenas))]
                life.commit = commit_execution(life.commit, plan.digest, pending)
                life.wait = None
            return life.commit

    def state(self, name: str) -> torch.Tensor:
        """``uint8[bytes]``: the live bytes of a state buffer, to read, set or reset between calls."""
        graph = self._bound.graph
        self._lifetime.require_open()  # its arena may be another session's by now
        if self._bound.state is not None:
            raise InvalidConfig(f"{name!r} is an argument of each run", fix="read the state that was passed", name=name)
        for buffer, role in enumerate(graph.buffers.role):
            if role == STATE and graph.notes.buffers[buffer] == name:
                return self._bound.views.bytes(buffer)
        raise InvalidConfig(f"the graph keeps no state {name!r}", fix="name a buffer of role state", name=name)

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the state buffers."""
        graph = self._bound.graph
        return tuple(graph.notes.buffers[buffer] for buffer, role in enumerate(graph.buffers.role) if role == STATE)

    def close(self) -> None:
        """Releases the weights and reclaims the session's arena; a later run is refused. Closing again does nothing."""
        with self._bound.segments.exclusive:
            if self._lifetime.open:
                self._lifetime.open = False
                for key in self._bound.reservation.text_keys:
                    self._bound.segments.text.release(key)
                if self._bound.reservation.session is not None:
                    self._bound.segments.data.reclaim(self._bound.reservation.session)

    def attach(self, hooks: Hooks, *, replay: bool = True) -> None:
        """Has every later run call these hooks, in place of any attached before."""
        with self._bound.segments.exclusive:
            self._launches = _launches_of(self._bound, hooks, replay=replay)

    def take_numbers(self, variant: int) -> None:
        """Has every later run make the calls of this variant, among those that the plan was bound with.

        Nothing is captured again: calls whose numbers vary are launched one by one. ``INVALID_CONFIG`` for no variant.
        """
        bound = self._bound
        if not 0 <= variant < len(bound.variants):
            raise InvalidConfig(f"there is no variant {variant}", fix=f"{len(bound.variants)} were bound")
        with bound.segments.exclusive:
            steps = [bound.variants[variant].get(index, step) for index, step in enumerate(bound.steps)]
            self._bound = replace(bound, steps=tuple(steps))
            changed = bound.variants[variant]
            self._launches = tuple(
                next(single_launches(steps, launch.first, launch.last))
                if launch.first in changed and launch.first < launch.last
                else launch
                for launch in self._launches
            )

    @property
    def launch_count(self) -> int:
        """Launches of a run, hooks included: 1 where all of it is captured."""
        return len(self._launches)

    @property
    def bound(self) -> BoundProgram:
        """The bound program."""
        return self._bound

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs that a call takes."""
        return self._bound.inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """Ids of the values that a call returns, in order."""
        return self._bound.outputs

    @property
    def order(self) -> tuple[int, ...]:
        """Ids of the ops that a call runs, in order."""
        return self._bound.plan.order

    @property
    def unplanned_allocations(self) -> tuple[Unplanned, ...]:
        """What operators allocate beside the plan in one run, counted when it was bound."""
        return self._bound.unplanned_allocations

    @property
    def segments(self) -> Segments:
        """The segments in which it runs."""
        return self._bound.segments


class _StackScope:
    """While inside, the executor's slab is on the stack, where its code expects it, and gradients are not tracked."""

    __slots__ = ("_bound", "_life", "_mark", "_tracks")

    def __init__(self, bound: BoundProgram, life: _Lifetime) -> None:
        self._bound, self._life = bound, life

    def __enter__(self) -> None:
        self._life.require_open()
        stack, holding = self._bound.segments.stack, self._bound.reservation
        self._mark, self._tracks = stack.mark(), torch.is_grad_enabled()
        # Code is bound to addresses, so a slab anywhere else than at binding would be another executor's memory.
        if stack.push(holding.stack_bytes) != holding.stack_offset:
            stack.reset(self._mark)
            raise InternalError(f"the stack begins at {self._mark}, not at {holding.stack_offset} as when it was bound")
        set_grad_enabled(False)

    def __exit__(self, *failure: object) -> None:
        set_grad_enabled(self._tracks)
        self._bound.segments.stack.reset(self._mark)


def _moved(place: CallerStorage) -> InvalidConfig:
    size = place.storage.nbytes()
    return InvalidConfig(
        f"{place.name} was bound with a storage of {place.bytes} bytes, which was freed, moved or resized ({size} now)",
        fix="bind again after such a change",
        name=place.name,
    )


def _launches_of(
    bound: BoundProgram, hooks: Hooks | None, *, replay: bool, span: tuple[int, int] | None = None
) -> tuple[Launch, ...]:
    """The launches of a run, or of a span of it; what is captured takes the kernels of the program's own switches."""
    with under_switches(bound.switches, bound.graph.target):
        single = frozenset(position for variant in bound.variants for position in variant)
        arguments = bound.state.templates if bound.state else ()
        return launch_plan_of(
            bound.steps, bound.stream, replay=replay, hooks=hooks, single=single, arguments=arguments, span=span
        )


def run_launches(bound: BoundProgram, launches: Sequence[Launch], state: Sequence[torch.Tensor] = ()) -> None:
    """Runs the launches in order, under the program's kernel switches; ``INVALID_CONFIG`` that names a call's op."""
    with BelowAutograd(), under_switches(bound.switches, bound.graph.target):
        for launch in launches:
            if launch.first == launch.last:
                launch.run()  # a hook's own error is no step's
                continue
            try:
                launch.run(*state)
            except CALL_ERRORS as error:
                raise _failure(bound, *_failing_step(bound, launch, error, state)) from error


def _failing_step(
    bound: BoundProgram, failed: Launch, error: Exception, state: Sequence[torch.Tensor]
) -> tuple[int, Exception]:
    """(step index, its error): the launch is run again, a step at a time. A step that then succeeds is not blamed."""
    if failed.last == failed.first + 1:  # not again: of a call between ranks the others would make no second one
        return failed.first, error
    arguments = bound.state.templates if bound.state else ()
    for launch in single_launches(bound.steps, failed.first, failed.last, arguments):
        try:
            launch.run(*state)
        except CALL_ERRORS as failure:
            return launch.first, failure
    return failed.first, error


def _failure(bound: BoundProgram, position: int, error: Exception) -> InvalidConfig:
    return call_failure(bound.graph, bound.plan.order[position], error)


def call_failure(graph: Graph, op: int, error: Exception) -> InvalidConfig:
    """The refusal for a call that raises on these inputs, with the op and its line."""
    source = graph.notes.ops.source[op]
    location = f" ({source})" if source else ""
    is_of_ranks = graph.ops.target[op].startswith(("c10d.", "_c10d_functional."))
    return InvalidConfig(
        f"op {op} {graph.ops.target[op]}{location}: {' '.join(str(error).split())[:300]}",
        fix="see what the other ranks say" if is_of_ranks else "give inputs that the model itself can run on",
        op=op,
    )


def outputs_of(graph: Graph, order: Sequence[int], writer: Sequence[int]) -> tuple[int, ...]:
    """The graph's outputs that this order computes; ``writer`` is the op that writes each value, -1 for none."""
    executed = set(order)
    return tuple(value for value in graph.outputs if writer[value] < 0 or writer[value] in executed)
