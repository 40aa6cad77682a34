"""The executor: a program in its plan's memory, ready to run as often as asked, without allocating for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tmmu.errors import InternalError, InvalidConfig
from tmmu.ir.graph import STATE, Graph
from tmmu.ir.plan import Plan
from tmmu.runtime.execute.commit import CommitState, Pending, commit_execution
from tmmu.runtime.execute.inputs import Input, check_inputs
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.tensor_views import Places
from tmmu.runtime.steps.build import Step
from tmmu.runtime.steps.execution_stream import Lane
from tmmu.runtime.steps.launch_plan import Hooks, Piece, one_by_one, tape_of
from tmmu.runtime.steps.unplanned import Unplanned


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What an executor holds of the segments: the key of its weights, its session, and its slab of the stack."""

    text: bytes
    session: str
    stack_offset: int
    stack_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """All that was settled when plan and program were bound. ``written`` are the inputs that a step changes."""

    graph: Graph
    plan: Plan
    places: Places
    inputs: tuple[Input, ...]
    written: frozenset[int]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    unplanned: tuple[Unplanned, ...]
    segments: Segments
    lane: Lane
    holding: Holding


@dataclass(slots=True)
class _Life:
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

    def __init__(self, bound: Bound, *, replay: bool = True, hooks: Hooks | None = None) -> None:
        self._bound = bound
        self._tape = tape_of(bound.steps, bound.lane, replay=replay, hooks=hooks)
        self._into = tuple(bound.places.view(one.value) for one in bound.inputs)
        self._out = tuple(bound.places.view(value) for value in bound.outputs)
        self._life = _Life()

    def __call__(self, /, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs, each in memory of its own."""
        return self.run(inputs)

    def run(self, inputs: Mapping[str, torch.Tensor], *, views: bool = False) -> tuple[torch.Tensor, ...]:
        """The outputs; with ``views`` as windows on the executor's memory, good until anything else runs in it.

        ``INVALID_CONFIG`` for inputs that are not the plan's, and for what an operator refuses to compute.
        """
        given = check_inputs(self._bound.inputs, inputs)
        bound = self._bound
        with bound.segments.turn, _Frame(bound, self._life), bound.lane.entered(), torch._C._DisableAutocast():
            for place, tensor in zip(self._into, given, strict=True):
                place.copy_(tensor)
            run_pieces(bound, self._tape)
            for position in bound.written:
                given[position].copy_(self._into[position])
            self._life.wait = bound.lane.mark()
            return tuple(out.detach() if views else out.clone() for out in self._out)

    def commit(self) -> CommitState:
        """The seal over all batches so far (``UML_OS.TMMU.CommitExecution_v1``), changed only if one ran since."""
        life, plan = self._life, self._bound.plan
        with self._bound.segments.turn:
            if life.wait is not None:
                pending = [Pending(arena=arena, wait=life.wait) for arena in range(len(plan.arenas))]
                life.commit = commit_execution(life.commit, plan.digest, pending)
                life.wait = None
            return life.commit

    def state(self, name: str) -> torch.Tensor:
        """``uint8[bytes]``: the live bytes of a state buffer, to read, set or reset between calls."""
        graph = self._bound.graph
        self._life.require_open()  # its arena may be another session's by now
        for buffer, role in enumerate(graph.buffers.role):
            if role == STATE and graph.notes.buffers[buffer] == name:
                return self._bound.places.bytes(buffer)
        raise InvalidConfig(f"the graph keeps no state {name!r}", fix="name a buffer of role state", name=name)

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the state that it keeps between calls."""
        graph = self._bound.graph
        return tuple(graph.notes.buffers[buffer] for buffer, role in enumerate(graph.buffers.role) if role == STATE)

    def close(self) -> None:
        """Weights are released and the session's arena is reclaimed; nothing runs after. Closing twice is closing."""
        with self._bound.segments.turn:
            if self._life.open:
                self._life.open = False
                self._bound.segments.text.release(self._bound.holding.text)
                self._bound.segments.data.reclaim(self._bound.holding.session)

    def attach(self, hooks: Hooks, *, replay: bool = True) -> None:
        """From now on every run calls these between its steps, in place of any that were attached before."""
        with self._bound.segments.turn:
            self._tape = tape_of(self._bound.steps, self._bound.lane, replay=replay, hooks=hooks)

    @property
    def pieces(self) -> int:
        """In how many pieces a run is handed over: 1, where all of it is replayed."""
        return len(self._tape)

    @property
    def bound(self) -> Bound:
        """All that binding settled."""
        return self._bound

    @property
    def inputs(self) -> tuple[Input, ...]:
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
    def unplanned(self) -> tuple[Unplanned, ...]:
        """What operators allocate inside themselves in one step, as counted when the plan was bound."""
        return self._bound.unplanned

    @property
    def segments(self) -> Segments:
        """Where it runs."""
        return self._bound.segments


class _Frame:
    """While inside, the stack slab is ours, where it was when the views were made, and torch tracks no gradients."""

    __slots__ = ("_bound", "_life", "_mark", "_tracks")

    def __init__(self, bound: Bound, life: _Life) -> None:
        self._bound, self._life = bound, life

    def __enter__(self) -> None:
        self._life.require_open()
        stack, holding = self._bound.segments.stack, self._bound.holding
        self._mark, self._tracks = stack.mark(), torch.is_grad_enabled()
        if stack.push(holding.stack_bytes) != holding.stack_offset:
            stack.reset(self._mark)
            raise InternalError(f"the stack begins at {self._mark}, not at {holding.stack_offset} as when it was bound")
        torch._C._set_grad_enabled(False)  # noqa: FBT003 - C takes it by position

    def __exit__(self, *failure: object) -> None:
        torch._C._set_grad_enabled(self._tracks)
        self._bound.segments.stack.reset(self._mark)


def run_pieces(bound: Bound, tape: Sequence[Piece]) -> None:
    """Runs them in order; ``INVALID_CONFIG`` that names the op where torch refuses."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        for piece in tape:
            try:
                piece.run()
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                if piece.first == piece.last:
                    raise  # a hook's own
                raise _failure(bound, *_located(bound, piece, error)) from error


def _located(bound: Bound, piece: Piece, error: Exception) -> tuple[int, Exception]:
    """The step that fails, by running the piece again a step at a time."""
    for one in one_by_one(bound.steps, piece.first, piece.last):
        try:
            one.run()
        except (RuntimeError, IndexError, ValueError, TypeError) as found:
            return one.first, found
    return piece.first, error


def _failure(bound: Bound, at: int, error: Exception) -> InvalidConfig:
    op = bound.plan.order[at]
    source = bound.graph.notes.ops.source[op]
    where = f" ({source})" if source else ""
    return InvalidConfig(
        f"op {op} {bound.steps[at].name}{where}: {' '.join(str(error).split())[:300]}",
        fix="give inputs that the model itself can run on",
        op=op,
    )


def outputs_of(graph: Graph, order: Sequence[int], writer: Sequence[int]) -> tuple[int, ...]:
    """The graph's outputs that exist after this order: all but those of ops that it leaves out."""
    runs = set(order)
    return tuple(value for value in graph.outputs if writer[value] < 0 or writer[value] in runs)
