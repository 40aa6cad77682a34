"""The steps of one model, traced, planned and judged by shape, for all stacks of an engine to bind."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Final, TypeAlias

import torch

from tmmu.driver import PlanRequest, compile_graph, kernel_folder, stack_bytes_of
from tmmu.engine.capture.encoder import EncodingShape, capture_encoding
from tmmu.engine.capture.module_results import ModuleResults
from tmmu.engine.capture.step import StepModel, StepShape, capture_step
from tmmu.engine.steps.step_summary import StepSummary, summary_of
from tmmu.fusion.fused_kernels import Guard, fuse_for_run
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.passes.capture.constants import constant_values
from tmmu.passes.capture.program import CapturedProgram, Window
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.token import token_from_seed
from tmmu.runtime.kernels.kernel_calls import Kernel

TOKEN_SEED: Final = 0
Shape: TypeAlias = StepShape | EncodingShape


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step's program and plan, the values of its constants, and what its modules return, not bound yet.

    ``results``: by path of each module that is called once, as windows on buffers of the graph; none of a fused step,
    whose kernels go over the ends of modules. ``kernels``: compiled, by fused operator.
    """

    program: Program
    plan: Plan
    constants: Mapping[str, torch.Tensor]
    results: Mapping[str, tuple[Window, ...]]
    summary: StepSummary
    kernels: Mapping[str, Kernel] = field(default_factory=dict)


def plan_step(subject: StepModel, shape: Shape) -> PlannedStep:
    """Traces and plans one step; the plan is judged."""
    results = ModuleResults()
    captured = _capture(subject, shape, results)
    program = lower_program(captured)
    request = PlanRequest(
        mode="inference", preset="inference", token=token_from_seed(TOKEN_SEED), arenas=default_arenas()
    )
    kernels: Mapping[str, Kernel] = {}
    if subject.fuse:
        fusion = fuse_for_run(program, Guard(stack_bytes=stack_bytes_of(request)), kernel_folder())
        program, kernels = fusion.program, fusion.kernels
    compiled = compile_graph(program.graph, request)
    constants = constant_values(captured)
    return PlannedStep(
        program=program,
        plan=compiled.plan,
        constants=constants,
        results={} if subject.fuse else results.of_single_calls,
        kernels=kernels,
        summary=summary_of(subject, shape, program.graph, compiled.plan),
    )


def _capture(subject: StepModel, shape: Shape, results: ModuleResults) -> CapturedProgram:
    if isinstance(shape, EncodingShape):
        return capture_encoding(subject, shape)
    return capture_step(subject, shape, results)


class PlannedSteps:
    """Plans by shape, each kept until so many ``stacks`` have bound it. Use it with ``lock``.

    The lock is taken while a step is planned, and while one is bound: its trials run one after the other, since what
    they measure is of the process.
    """

    def __init__(self, subject: StepModel, stacks: int) -> None:
        self.subject, self.stacks, self.lock = subject, stacks, RLock()
        self._planned: dict[Shape, PlannedStep] = {}
        self._bindings = Counter[Shape]()
        self.summaries: dict[Shape, StepSummary] = {}
        """Of every shape that was planned, in the order in which it was."""

    def keep(self, shape: Shape, planned: PlannedStep) -> None:
        """A plan that is there already."""
        self._planned[shape] = planned
        self.summaries[shape] = planned.summary

    def find(self, shape: Shape) -> PlannedStep:
        """The plan of a shape, made at its first use."""
        if shape not in self._planned:
            self.keep(shape, plan_step(self.subject, shape))
        return self._planned[shape]

    def note_bound(self, shape: Shape) -> None:
        """A stack has bound a shape, and needs its plan no more."""
        self._bindings[shape] += 1
        if self._bindings[shape] >= self.stacks:
            del self._planned[shape]
