"""The executor: a program in its plan's memory, ready to run as often as asked, without allocating for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tmmu.errors import InternalError, InvalidConfig
from tmmu.ir.graph import STATE, Graph
from tmmu.ir.plan import Plan
from tmmu.runtime.execute.commit import CommitState, Pending, commit_execution
from tmmu.runtime.execute.inputs import InputSpec, check_inputs
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.tensor_views import TensorViews
from tmmu.runtime.steps.build import CompiledStep
from tmmu.runtime.steps.execution_stream import ExecutionStream
from tmmu.runtime.steps.launch_plan import Hooks, Launch, launch_plan_of, single_launches
from tmmu.runtime.steps.unplanned import Unplanned


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What an executor holds of the segments: the key of its weights, its session, and its slab of the stack."""

    text_key: bytes
    session: str
    stack_offset: int
    stack_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundProgram:
    """All that was settled when plan and program were bound. ``written`` are the inputs that a step changes."""

    graph: Graph
    plan: Plan
    views: TensorViews
    inputs: tuple[InputSpec, ...]
    written_inputs: frozenset[int]
    outputs: tuple[int, ...]
    steps: tuple[CompiledStep, ...]
    unplanned_allocations: tuple[Unplanned, ...]
    segments: Segments
    stream: ExecutionStream
    reservation: Reservation


@dataclass(slots=True)
class _Lifetime:
    open: bool = True
    commit: CommitState = field(default_factory=CommitState)
    wait: Callable[[], None] | None = None
    """For all that has run since the last commit, in every arena."""

    def require_open(self) -> None:
        """``INVALID_CONFIG`` once it is closed."""
        if not self.open:
            raise InvalidConfig("the executor is closed", fix="bind the plan again")


class Executor:
    """Call it with the inputs by name; it returns the outputs in the graph's order, copied out of its memory.

    Threads that call one executor, or two that share segments, wait for each other; a call from inside a step is
    refused. State stays in place from call to call. If a step fails, state may be half updated.
    """

    def __init__(self, bound: BoundProgram, *, replay: bool = True, hooks: Hooks | None = None) -> None:
        self._bound = bound
        self._launches = launch_plan_of(bound.steps, bound.stream, replay=replay, hooks=hooks)
        self._input_views = tuple(bound.views.view(spec.value) for spec in bound.inputs)
        self._output_views = tuple(bound.views.view(value) for value in bound.outputs)
        self._lifetime = _Lifetime()

    def __call__(self, /, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs, each in memory of its own."""
        return self.run(inputs)

    def run(self, inputs: Mapping[str, torch.Tensor], *, views: bool = False) -> tuple[torch.Tensor, ...]:
        """The outputs; with ``views`` as windows on the executor's memory, good until anything else runs in it.

        ``INVALID_CONFIG`` for inputs that are not the plan's, and for what an operator refuses to compute.
        """
        tensors = check_inputs(self._bound.inputs, inputs)
        bound = self._bound
        with (
            bound.segments.exclusive,
            _StackScope(bound, self._lifetime),
            bound.stream.activate(),
            torch._C._DisableAutocast(),
        ):
            for view, tensor in zip(self._input_views, tensors, strict=True):
                view.copy_(tensor)
            run_launches(bound, self._launches)
            for position in bound.written_inputs:
                tensors[position].copy_(self._input_views[position])
            self._lifetime.wait = bound.stream.record_event()
            return tuple(out.detach() if views else out.clone() for out in self._output_views)

    def commit(self) -> CommitState:
        """The seal over all batches so far (``UML_OS.TMMU.CommitExecution_v1``), changed only if one ran since."""
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
        for buffer, role in enumerate(graph.buffers.role):
            if role == STATE and graph.notes.buffers[buffer] == name:
                return self._bound.views.bytes(buffer)
        raise InvalidConfig(f"the graph keeps no state {name!r}", fix="name a buffer of role state", name=name)

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the state that it keeps between calls."""
        graph = self._bound.graph
        return tuple(graph.notes.buffers[buffer] for buffer, role in enumerate(graph.buffers.role) if role == STATE)

    def close(self) -> None:
        """Weights are released and the session's arena is reclaimed; nothing runs after. Closing twice is closing."""
        with self._bound.segments.exclusive:
            if self._lifetime.open:
                self._lifetime.open = False
                self._bound.segments.text.release(self._bound.reservation.text_key)
                self._bound.segments.data.reclaim(self._bound.reservation.session)

    def attach(self, hooks: Hooks, *, replay: bool = True) -> None:
        """From now on every run calls these between its steps, in place of any that were attached before."""
        with self._bound.segments.exclusive:
            self._launches = launch_plan_of(self._bound.steps, self._bound.stream, replay=replay, hooks=hooks)

    @property
    def launch_count(self) -> int:
        """In how many pieces a run is handed over: 1, where all of it is replayed."""
        return len(self._launches)

    @property
    def bound(self) -> BoundProgram:
        """All that binding settled."""
        return self._bound

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What a call must be given."""
        return self._bound.inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """The values that a call returns, in order."""
        return self._bound.outputs

    @property
    def order(self) -> tuple[int, ...]:
        """The ops that a call runs, in order."""
        return self._bound.plan.order

    @property
    def unplanned_allocations(self) -> tuple[Unplanned, ...]:
        """What operators allocate inside themselves in one step, as counted when the plan was bound."""
        return self._bound.unplanned_allocations

    @property
    def segments(self) -> Segments:
        """Where it runs."""
        return self._bound.segments


class _StackScope:
    """While inside, the stack slab is ours, where it was when the views were made, and torch tracks no gradients."""

    __slots__ = ("_bound", "_life", "_mark", "_tracks")

    def __init__(self, bound: BoundProgram, life: _Lifetime) -> None:
        self._bound, self._life = bound, life

    def __enter__(self) -> None:
        self._life.require_open()
        stack, holding = self._bound.segments.stack, self._bound.reservation
        self._mark, self._tracks = stack.mark(), torch.is_grad_enabled()
        if stack.push(holding.stack_bytes) != holding.stack_offset:
            stack.reset(self._mark)
            raise InternalError(f"the stack begins at {self._mark}, not at {holding.stack_offset} as when it was bound")
        torch._C._set_grad_enabled(False)  # noqa: FBT003 - C takes it by position

    def __exit__(self, *failure: object) -> None:
        torch._C._set_grad_enabled(self._tracks)
        self._bound.segments.stack.reset(self._mark)


def run_launches(bound: BoundProgram, launches: Sequence[Launch]) -> None:
    """Runs them in order; ``INVALID_CONFIG`` that names the op where torch refuses."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        for launch in launches:
            try:
                launch.run()
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                if launch.first == launch.last:
                    raise  # a hook's own
                raise _failure(bound, *_failing_step(bound, launch, error)) from error


def _failing_step(bound: BoundProgram, failed: Launch, error: Exception) -> tuple[int, Exception]:
    """The step that fails, by running the piece again a step at a time."""
    for launch in single_launches(bound.steps, failed.first, failed.last):
        try:
            launch.run()
        except (RuntimeError, IndexError, ValueError, TypeError) as failure:
            return launch.first, failure
    return failed.first, error


def _failure(bound: BoundProgram, position: int, error: Exception) -> InvalidConfig:
    op = bound.plan.order[position]
    source = bound.graph.notes.ops.source[op]
    location = f" ({source})" if source else ""
    return InvalidConfig(
        f"op {op} {bound.steps[position].name}{location}: {' '.join(str(error).split())[:300]}",
        fix="give inputs that the model itself can run on",
        op=op,
    )


def outputs_of(graph: Graph, order: Sequence[int], writer: Sequence[int]) -> tuple[int, ...]:
    """The graph's outputs that exist after this order: all but those of ops that it leaves out."""
    runs = set(order)
    return tuple(value for value in graph.outputs if writer[value] < 0 or writer[value] in runs)
