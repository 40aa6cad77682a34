"""The steps of one model: each shape traced, planned, judged and bound once, when it is first needed.

All of them share the text segment, weight by weight, and the stack, in turn. None has state of its own: it comes with
each run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import torch

from tmmu.driver import PlanRequest, compile_graph
from tmmu.engine.capture.encoder import EncodingShape, capture_encoding
from tmmu.engine.capture.module_results import ModuleResults
from tmmu.engine.capture.step import ROW_SEPARATOR, StepModel, StepShape, capture_step
from tmmu.engine.steps.step_summary import StepSummary, summary_of
from tmmu.engine.steps.weight_stream import WeightStream
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.passes.capture.constants import constant_values
from tmmu.passes.capture.program import CapturedProgram, Window
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.token import token_from_seed
from tmmu.runtime.execute.bind import bind_executor
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.execute.state_arguments import StateWindow
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.slab import Slab

TOKEN_SEED = 0
Shape: TypeAlias = StepShape | EncodingShape


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step's program and plan, the values of its constants, and what its modules return, not bound yet.

    ``results``: by path of each module that is called once, as windows on buffers of the graph.
    """

    program: Program
    plan: Plan
    constants: Mapping[str, torch.Tensor]
    results: Mapping[str, tuple[Window, ...]]
    summary: StepSummary


def plan_step(subject: StepModel, shape: Shape) -> PlannedStep:
    """Traces and plans one step; the plan is judged."""
    results = ModuleResults()
    captured = _capture(subject, shape, results)
    program = lower_program(captured)
    request = PlanRequest(
        mode="inference", preset="inference", token=token_from_seed(TOKEN_SEED), arenas=default_arenas()
    )
    compiled = compile_graph(program.graph, request)
    constants = constant_values(captured)
    return PlannedStep(
        program=program,
        plan=compiled.plan,
        constants=constants,
        results=results.of_single_calls,
        summary=summary_of(subject, shape, program.graph, compiled.plan),
    )


def _capture(subject: StepModel, shape: Shape, results: ModuleResults) -> CapturedProgram:
    if isinstance(shape, EncodingShape):
        return capture_encoding(subject, shape)
    return capture_step(subject, shape, results)


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
    """

    def __init__(  # noqa: PLR0913 - what steps are made of
        self,
        subject: StepModel,
        segments: Segments,
        weights: Mapping[str, torch.Tensor],
        weight_keys: Mapping[str, bytes],
        *,
        stream: WeightStream | None,
        clock: Callable[[], float],
    ) -> None:
        self.subject, self.segments, self._stream = subject, segments, stream
        self._weights, self._weight_keys = weights, weight_keys
        self._planned: dict[Shape, PlannedStep] = {}
        self._bound: dict[Shape, BoundStep] = {}
        self._clock = clock
        self.lookup_seconds = 0.0
        """What steps have taken that were not there when they were looked up: planning, judging, binding."""
        self.summaries: dict[Shape, StepSummary] = {}
        """Of every shape that was planned, in the order in which it was."""

    def keep(self, shape: Shape, planned: PlannedStep) -> None:
        """A plan that was made before the segments were."""
        self._planned[shape] = planned
        self.summaries[shape] = planned.summary

    def step(self, shape: Shape) -> BoundStep:
        """The step of a shape, made at its first use."""
        if shape not in self._bound:
            begin = self._clock()
            self._bound[shape] = self._bind(shape)
            self.lookup_seconds += self._clock() - begin
        return self._bound[shape]

    def _bind(self, shape: Shape) -> BoundStep:
        if shape not in self._planned:
            self.keep(shape, plan_step(self.subject, shape))
        planned = self._planned.pop(shape)
        request = BindRequest(
            program=planned.program,
            plan=planned.plan,
            token=token_from_seed(TOKEN_SEED),
            weights=dict(planned.constants) | dict(self._weights),
            weight_keys=self._weight_keys,
            device=self.segments.device,
            segments=self.segments,
            session=None,
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
