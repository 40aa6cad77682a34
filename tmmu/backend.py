"""``torch.compile(model, backend="tmmu")``: every graph that Dynamo finds runs inside a plan of its own.

Forward and backward of a graph are planned as one step. A graph, or a call, that cannot run in a plan is run by torch
as it is, with the same bits; ``reports`` says how often, and why. Importing this needs no torch.
"""

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tmmu.cache import PlanCache
from tmmu.device_fit import fit_on_device
from tmmu.driver import (
    Compiled,
    PlanRequest,
    cache_folder,
    compile_graph,
    kernel_folder,
    key_of_graph,
    stack_bytes_of,
)
from tmmu.errors import BudgetTooSmall, DeviceMemory, InternalError, InvalidConfig, UnsupportedOp, UserError
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan, segment_bytes
from tmmu.ir.program import Switches
from tmmu.planner.arenas import default_arenas, parse_size, readable_size
from tmmu.planner.fit.fit_graph import FitRequest
from tmmu.planner.fit.fit_step import PlanSettings
from tmmu.planner.fit.forms import LEVER_NAMES
from tmmu.planner.token import token_from_seed

if TYPE_CHECKING:
    from tmmu.passes.autograd.joint_graph import SplitStep, TracedStep
    from tmmu.runtime.execute.step_memory import StepMemory
    from tmmu.runtime.execute.step_memory_pool import StepMemoryPool
    from tmmu.runtime.kernels.kernel_calls import Kernel

MAX_SPECIALIZATIONS: Final = 16
"""Signatures of arguments for which one graph keeps plans; the oldest goes first."""

_LOG: Final = logging.getLogger("tmmu")
_INFERENCE: Final = PlanRequest(mode="inference", preset="inference", token=token_from_seed(0), arenas=default_arenas())
_TRAINING: Final = replace(_INFERENCE, mode="backward", preset="remat_enabled")
_GRAPHS: "Final[list[weakref.ref[CompiledGraph]]]" = []


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """How one compiled graph has run so far."""

    trains: bool
    stack_bytes: tuple[int, ...]
    """Of each step memory."""
    plans: Mapping[str, int]
    """How many plans came from where: ``cold``, ``table``, ``disk``."""
    planned: int
    """Halves that ran in a plan."""
    plain: Mapping[str, int]
    """By reason, halves that torch ran."""


def backend(
    graph: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What ``torch.compile`` calls for each graph: a function that computes the same, bit for bit, inside a plan.

    With ``options={"recompute": True}`` cheap residuals are computed again in the backward pass. ``budget``, a size, is
    what the stack of a graph may take, forward and backward together; a graph without a backward half is rewritten to
    stay below it, as by ``tmmu fit``. Of one that does not, ``over_budget`` says whether it is planned as it is
    (``"plan"``, with a warning) or ``BUDGET_TOO_SMALL`` (``"refuse"``). With ``fuse`` neighbouring ops run as compiled
    kernels on a CPU: then results are near, and not the same bits; with a budget, what is rewritten to stay below it is
    fused where that takes no more. ``INVALID_CONFIG`` for other options or modes.
    """
    unknown = dict(options or {})
    recompute = unknown.pop("recompute", False)
    budget = _budget_of(unknown.pop("budget", None), unknown.pop("over_budget", "plan"))
    fuse = unknown.pop("fuse", False)
    if isinstance(fuse, str) and fuse == "auto":
        raise InvalidConfig(
            "option fuse=auto is that of tmmu.compile: a graph of torch.compile is planned when it is first called",
            fix="give true, or false",
        )
    if mode not in (None, "default") or unknown or not isinstance(recompute, bool) or not isinstance(fuse, bool):
        raise InvalidConfig(
            "backend tmmu knows no mode, and four options: recompute and fuse, true or false; budget, a size; "
            "over_budget",
            fix='use torch.compile(model, backend="tmmu", options={"recompute": True})',
        )
    from tmmu.passes.autograd.split import split_by_autograd

    return split_by_autograd(
        graph, example_inputs, partial(CompiledGraph, budget=budget, fuse=fuse), recompute=recompute
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    """Bytes of stack for one graph, and whether a graph that takes more is refused."""

    bytes: int
    refuses: bool


def _budget_of(size: object, over_budget: object) -> _Budget | None:
    if over_budget not in ("plan", "refuse"):
        raise InvalidConfig(
            f"option over_budget={over_budget!r:.80} is neither plan nor refuse", fix="name one of the two"
        )
    if size is None:
        return None
    if isinstance(size, str):
        size = parse_size(size)
    if type(size) is not int or size < 0:
        raise InvalidConfig(f"option budget={size!r:.80} is not a size", fix='write bytes, or a text such as "8GB"')
    return _Budget(bytes=size, refuses=over_budget == "refuse")


def reports() -> tuple[GraphReport, ...]:
    """A report per compiled graph that is still in use, in the order in which they were compiled."""
    graphs = [reference() for reference in _GRAPHS]
    return tuple(graph.report() for graph in graphs if graph is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Specialization:
    """The trace and plan of one signature of arguments, and the memories in which the plan runs."""

    traced: "TracedStep"
    plan: Plan
    memories: "StepMemoryPool"
    switches: Switches
    """The kernel switches for which it was traced, tried and bound: eager takes those of each call."""
    kernels: "Mapping[str, Kernel]"
    """Compiled kernels by fused operator."""


class CompiledGraph:
    """The halves of one compiled graph, run in the memory of a plan, or by torch where there is none.

    State: by argument signature, a specialization, or the reason why there is none; and counts for the report. Both are
    read and changed under the lock, which is held while a new signature is planned, so that no other thread plans it.
    """

    def __init__(
        self, step: "SplitStep", static: frozenset[int], *, budget: _Budget | None = None, fuse: bool = False
    ) -> None:
        self._step, self._static, self._budget, self._fuse = step, static, budget, fuse
        self._specializations: dict[tuple[Any, ...], _Specialization | str] = {}
        self._planned, self._plain, self._plans = 0, Counter[str](), Counter[str]()
        self._lock = Lock()
        _GRAPHS[:] = [reference for reference in _GRAPHS if reference() is not None]
        _GRAPHS.append(weakref.ref(self))

    def run_forward(self, args: Sequence[Any]) -> list[Any]:
        """The outputs of the forward graph."""
        try:
            with self._forward_memory(args) as memory:
                return memory.forward(args)
        except _NotPlanned as error:
            self._count(error.reason)
        return _run_plain(self._step.forward, args)

    def run_backward(self, args: Sequence[Any]) -> list[Any]:
        """The outputs of the backward graph."""
        if self._step.backward is None:
            raise InternalError("a graph without a backward half was asked for one")
        try:
            with self._backward_memory(args) as (memory, load_residuals):
                return memory.backward(args, load_residuals=load_residuals)
        except _NotPlanned as error:
            self._count(error.reason)
        return _run_plain(self._step.backward, args)

    def report(self) -> GraphReport:
        """How it has run so far."""
        sizes = tuple(size for entry in self._planned_specializations() for size in entry.memories.stack_bytes)
        with self._lock:
            return GraphReport(
                trains=self._step.backward is not None,
                stack_bytes=sizes,
                plans=dict(self._plans),
                planned=self._planned,
                plain=dict(self._plain),
            )

    @contextmanager
    def _forward_memory(self, args: Sequence[Any]) -> "Iterator[StepMemory]":
        from tmmu.runtime.execute.step_memory_pool import why_unplannable

        if reason := why_unplannable(args):
            raise _NotPlanned(reason)
        specialization = self._specialization(args)
        with specialization.memories.acquire_forward(args, lambda: self._bind(specialization, args)) as memory:
            if memory is None:
                raise _NotPlanned("more steps are under way than there are frames")
            self._count()
            yield memory

    @contextmanager
    def _backward_memory(self, args: Sequence[Any]) -> "Iterator[tuple[StepMemory, bool]]":
        """The memory for a backward half, and whether residuals must be loaded into it."""
        from tmmu.runtime.execute.step_memory_pool import call_switches, retains_graph, why_unplannable

        if reason := why_unplannable(args):
            raise _NotPlanned(reason)
        retain = retains_graph()
        switches = call_switches()
        for specialization in self._planned_specializations():
            if specialization.switches == switches and specialization.memories.accepts(args):
                with specialization.memories.acquire_backward(args, retain=retain) as (memory, load_residuals):
                    if memory is not None:
                        self._count()
                        yield memory, load_residuals
                        return
        raise _NotPlanned("no frame is free for what was saved")

    def _planned_specializations(self) -> "list[_Specialization]":
        with self._lock:
            return [entry for entry in self._specializations.values() if isinstance(entry, _Specialization)]

    def _specialization(self, args: Sequence[Any]) -> "_Specialization":
        """The specialization for these arguments, traced and planned if their signature is new."""
        from tmmu.runtime.execute.step_memory_pool import argument_signature, call_switches, why_unbindable

        switches = call_switches()
        signature = (switches, *argument_signature(args, self._static))
        with self._lock:
            entry = self._specializations.get(signature)
            if entry is None:
                if reason := why_unbindable(args):
                    raise _NotPlanned(reason)
                entry = self._specializations[signature] = self._specialize(args, switches)
                if len(self._specializations) > MAX_SPECIALIZATIONS:
                    del self._specializations[next(iter(self._specializations))]
        if isinstance(entry, str):
            raise _NotPlanned(entry)
        return entry

    def _specialize(self, args: Sequence[Any], switches: Switches) -> "_Specialization | str":
        """A trace and its plan, or the reason why there is none."""
        from tmmu.passes.autograd.joint_graph import trace_joint
        from tmmu.runtime.execute.step_memory_pool import StepMemoryPool

        try:
            traced = trace_joint(self._step, args, name="torch.compile")
            request = _TRAINING if self._step.backward is not None else _INFERENCE
            may_be_rewritten = self._budget is not None and self._step.backward is None
            is_fused_now = self._fuse and not may_be_rewritten
            traced, kernels = _fuse_trace(traced, request) if is_fused_now else (traced, {})
            compiled = _compile(traced.program.graph, request)
        except UserError as error:
            return str(error)
        if compiled.cached is not None:
            self._plans[compiled.cached.origin] += 1
        if self._budget is not None:
            traced, compiled, kernels = self._within(self._budget, traced, compiled, kernels)
        if self._fuse and may_be_rewritten and traced.program.base is None:
            traced, kernels = _fuse_trace(traced, request)
            compiled = _compile(traced.program.graph, request)
        memories = StepMemoryPool(traced.program)
        return _Specialization(traced=traced, plan=compiled.plan, memories=memories, switches=switches, kernels=kernels)

    def _within(
        self, budget: _Budget, traced: "TracedStep", compiled: Compiled, kernels: "Mapping[str, Kernel]"
    ) -> "tuple[TracedStep, Compiled, Mapping[str, Kernel]]":
        """The trace, its plan and kernels within a budget; as they are where they fit, or nothing can be done."""
        stack = segment_bytes(compiled.plan.arenas, "stack")
        if stack <= budget.bytes:
            return traced, compiled, kernels
        try:
            if self._step.backward is not None:
                raise BudgetTooSmall(
                    f"forward and backward of a graph take {readable_size(stack)}, more than the budget of "
                    f"{readable_size(budget.bytes)}, and are not rewritten: autograd keeps what lies between them",
                    fix='options={"recompute": True} saves less; tmmu fit rewrites a whole step',
                )
            return _fit_trace(budget.bytes, traced, compiled, fuse=self._fuse)
        except BudgetTooSmall as error:
            if budget.refuses:
                raise
            _LOG.warning("a compiled graph is planned as it is: %s", error)
            return traced, compiled, kernels

    def _bind(self, specialization: "_Specialization", args: Sequence[Any]) -> "StepMemory":
        """New memory for a plan. A refusal is a reason to run without one, unless the plan itself is wrong."""
        from tmmu.runtime.execute.bind_request import BindRequest
        from tmmu.runtime.execute.step_memory import bind_step_memory
        from tmmu.runtime.execute.step_memory_pool import require_storages, why_unbindable

        if reason := why_unbindable(args):
            raise _NotPlanned(reason)
        require_storages(args)
        traced, plan = specialization.traced, specialization.plan
        request = BindRequest(
            program=traced.program,
            plan=plan,
            token=_INFERENCE.token,
            weights=traced.constants,
            kernels=specialization.kernels,
        )
        try:
            return bind_step_memory(request, args, static=self._static)
        except UnsupportedOp as error:  # whatever the arguments hold: it is not tried again
            self._give_up(specialization, str(error))
            raise _NotPlanned(str(error)) from error
        except (UserError, DeviceMemory) as error:
            raise _NotPlanned(str(error)) from error

    def _give_up(self, specialization: "_Specialization", reason: str) -> None:
        with self._lock:
            for signature, entry in self._specializations.items():
                if entry is specialization:
                    self._specializations[signature] = reason

    def _count(self, reason: str = "") -> None:
        """One half more that ran in a plan, or without one for a reason, which is logged the first time."""
        with self._lock:
            if not reason:
                self._planned += 1
                return
            self._plain[reason] += 1
            if self._plain[reason] > 1:
                return
        _LOG.warning("a compiled graph runs without a plan: %s", reason)


def _run_plain(graph: Any, args: Sequence[Any]) -> list[Any]:
    """What torch returns for the graph. Where no call resizes a storage, ``INVALID_CONFIG`` for one that is freed."""
    from tmmu.passes.autograd.split import resizes_storages, run_plain
    from tmmu.runtime.execute.step_memory_pool import require_storages

    if not resizes_storages(graph):
        require_storages(args)
    return run_plain(graph, args)


class _NotPlanned(Exception):
    """This call cannot run in a plan, so torch runs it; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _fit_trace(
    limit: int, traced: "TracedStep", compiled: Compiled, *, fuse: bool
) -> "tuple[TracedStep, Compiled, Mapping[str, Kernel]]":
    from tmmu.passes.lowering.rewrite_program import rewrite_program

    settings = PlanSettings(preset=compiled.plan.preset, token=_INFERENCE.token, budget=limit)
    request = FitRequest(limit=limit, at_most=None, levers=LEVER_NAMES, arenas=_INFERENCE.arenas, settings=settings)
    fitted = fit_on_device(lambda: traced.program, compiled, request, compiled.graph.target).fitting.fitted
    if not fuse:
        program = rewrite_program(traced.program, fitted.rewrite)
        return replace(traced, program=program), replace(compiled, graph=fitted.graph, plan=fitted.plan), {}
    from tmmu.fused_fit import fuse_fitted_for_run

    fused = fuse_fitted_for_run(traced.program, fitted, request, kernel_folder())
    planned = replace(compiled, graph=fused.step.graph, plan=fused.step.plan)
    return replace(traced, program=fused.fusion.program), planned, fused.fusion.kernels


def _fuse_trace(traced: "TracedStep", request: PlanRequest) -> "tuple[TracedStep, Mapping[str, Kernel]]":
    from tmmu.fusion.fused_kernels import Guard, fuse_for_run

    fusion = fuse_for_run(traced.program, Guard(stack_bytes=stack_bytes_of(request)), kernel_folder())
    return replace(traced, program=fusion.program), fusion.kernels


def _compile(graph: Graph, request: PlanRequest) -> Compiled:
    return compile_graph(graph, request, cache=_plan_cache(cache_folder()), key=key_of_graph(graph, request))


@cache
def _plan_cache(folder: Path) -> PlanCache:
    """One table of plans for the process, in front of the files of this folder."""
    return PlanCache(folder)
