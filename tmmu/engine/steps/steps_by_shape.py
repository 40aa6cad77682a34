"""The steps of one model in one stack: each shape bound once, when it is first needed there.

All of them share the text segment, weight by weight, and the stack, in turn. None has state of its own: it comes with
each run.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import torch

from tmmu.engine.capture.step import ROW_SEPARATOR
from tmmu.engine.steps.planned_steps import TOKEN_SEED, PlannedStep, PlannedSteps, Shape
from tmmu.engine.steps.weight_stream import WeightStream
from tmmu.errors import UnsupportedOp
from tmmu.kernel_switches import current_switches
from tmmu.passes.capture.program import Window
from tmmu.planner.token import token_from_seed
from tmmu.runtime.execute.bind import bind_executor
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.execute.executor import BoundProgram, Executor
from tmmu.runtime.execute.state_arguments import StateWindow
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.slab import Slab


class BoundStep:
    """A step that runs on the state of sessions, a row each, wherever their arenas lie.

    ``results``: those of its ``PlannedStep``.
    """

    def __init__(self, executor: Executor, shape: Shape, results: Mapping[str, tuple[Window, ...]]) -> None:
        self.executor, self.shape, self.results = executor, shape, results
        self.runs = 0
        assert executor.bound.state is not None
        self._rows = _windows_by_row(executor, shape.rows)

    def row_views(self, row: int, slab: Slab, base: int, offsets: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
        """What a run takes for one row, whose state lies at ``offsets`` from ``base`` by name."""
        return tuple(window.view_at((slab, base + offsets[name])) for name, window in self._rows[row])

    def run(self, inputs: Mapping[str, torch.Tensor], rows: Sequence[tuple[torch.Tensor, ...]]) -> torch.Tensor:
        """``dtype[rows, vocabulary]``: logits in memory of their own, which an encoding has not.

        ``rows``: ``row_views`` of each.
        """
        self.runs += 1
        state = rows[0] if len(rows) == 1 else tuple(chain.from_iterable(rows))
        (logits,) = self.executor.run(self.inputs_of(inputs), state=state)
        return logits

    def inputs_of(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Those that the step has: a model may not look at positions."""
        return {spec.name: inputs[spec.name] for spec in self.executor.inputs}


def _windows_by_row(executor: Executor, rows: int) -> list[list[tuple[str, StateWindow]]]:
    """(name, window) of what the code takes of each row, in the order of its arguments, which is that of the rows."""
    assert executor.bound.state is not None
    names = executor.bound.graph.notes.buffers
    by_row: list[list[tuple[str, StateWindow]]] = [[] for _ in range(rows)]
    for window in executor.bound.state.windows:  # ordered by buffer, and a row's buffers follow one another
        row, _, name = names[window.buffer].partition(ROW_SEPARATOR)
        by_row[int(row)].append((name, window))
    return by_row


class StepsByShape:
    """Steps by shape, in segments that they share. ``weights`` by name, and the content key of each.

    ``stream``: what moves the weights past the steps; ``None``: they lie in the text segment. ``clock``: seconds.
    For one thread at a time; those of several stacks bind one after the other.
    """

    def __init__(  # noqa: PLR0913 - what steps are made of
        self,
        planned: PlannedSteps,
        segments: Segments,
        weights: Mapping[str, torch.Tensor],
        weight_keys: Mapping[str, bytes],
        *,
        stream: WeightStream | None,
        clock: Callable[[], float],
    ) -> None:
        self.subject, self.segments, self._planned, self._stream = planned.subject, segments, planned, stream
        self._weights, self._weight_keys = weights, weight_keys
        self._bound: dict[Shape, BoundStep] = {}
        self._clock = clock
        self.lookup_seconds = 0.0
        """What steps have taken that were not there when they were looked up: planning, judging, binding."""

    def step(self, shape: Shape) -> BoundStep:
        """The step of a shape, made at its first use.

        ``UNSUPPORTED_OP`` where there are several stacks, and torch's switches are others than the step's: they are the
        process's, and a step that sets them would have others run under them.
        """
        if shape not in self._bound:
            begin = self._clock()
            with self._planned.lock:
                self._bound[shape] = self._bind(shape, self._planned.find(shape))
                self._planned.note_bound(shape)
            self.lookup_seconds += self._clock() - begin
        bound = self._bound[shape]
        if self._planned.stacks > 1:
            _require_switches(bound.executor.bound)
        return bound

    def _bind(self, shape: Shape, planned: PlannedStep) -> BoundStep:
        if self._planned.stacks > 1 and len({call.switches for call in planned.program.calls}) > 1:
            raise UnsupportedOp(
                "calls of a step have different switches of torch, and steps of several stacks run at once",
                fix="make the engine with stacks=1",
            )
        request = BindRequest(
            program=planned.program,
            plan=planned.plan,
            token=token_from_seed(TOKEN_SEED),
            weights=dict(planned.constants) | dict(self._weights),
            weight_keys=self._weight_keys,
            device=self.segments.device,
            segments=self.segments,
            session=None,
            kernels=planned.kernels,
        )
        executor = bind_executor(request) if self._stream is None else self._stream.bind(request)
        return BoundStep(executor, shape, planned.results)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """What is bound, in the order in which it was."""
        return tuple(self._bound)

    @property
    def hits(self) -> int:
        """Runs of steps behind the first of each shape."""
        return sum(step.runs - 1 for step in tuple(self._bound.values()) if step.runs)

    def close(self) -> None:
        """Releases what the steps hold of the text segment, and the stream: the first step has it."""
        for step in reversed(self._bound.values()):
            step.executor.close()
        self._bound.clear()


def _require_switches(bound: BoundProgram) -> None:
    if bound.switches != current_switches(bound.graph.target):
        raise UnsupportedOp(
            "a step has other switches of torch than are set now, and steps of several stacks run at once",
            fix="set them as they were when the engine was made, or make it with stacks=1",
        )
