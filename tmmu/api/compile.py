"""``tmmu.compile``: a model that runs inside its plan."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from tmmu.api.arguments import bytes_of
from tmmu.api.compiled_model import CompiledModel
from tmmu.api.memory_plan import MemoryPlan
from tmmu.api.plan import device_of_call, logs_off
from tmmu.device_fit import fit_on_device
from tmmu.driver import Compiled, PlanRequest, compile_graph, kernel_folder, stack_bytes_of
from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.fused_fit import fuse_fitted_for_run
from tmmu.fusion.background.kernel_order import CountedRuns, KernelOrder
from tmmu.fusion.fused_kernels import Fusion, Guard, fuse_for_run, fuse_if_compiled
from tmmu.ir.graph import Graph
from tmmu.ir.lifetimes import NO_LIFETIMES
from tmmu.ir.program import Program
from tmmu.passes.capture.call_form import FormNote
from tmmu.passes.capture.collection import garbage_collection_off
from tmmu.passes.capture.constants import assumed_inputs, constant_values
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture_live
from tmmu.passes.lowering.rewrite_program import rewrite_program
from tmmu.passes.pipeline import lower_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit.fit_graph import FitRequest
from tmmu.planner.fit.fit_step import FittedStep, PlanSettings
from tmmu.planner.fit.forms import LEVER_NAMES
from tmmu.planner.token import token_from_seed
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.kernels.kernel_calls import Kernel
from tmmu.summary.budget import stack_room
from tmmu.summary.plan_summary import DEFAULT_RESERVE


def compile(  # noqa: A001, PLR0913 - the name that people look for, and the options of one plan
    model: nn.Module,
    inputs: Any = None,
    *,
    autocast: Literal["bf16", "fp16"] | None = None,
    budget: str | int | None = None,
    reserve: str | int = DEFAULT_RESERVE,
    fuse: bool | Literal["auto"] = False,
    seed: int = 0,
) -> CompiledModel:
    """The model as a callable that runs inside its plan, made for ``inputs`` (as of ``tmmu.plan``).

    Results are those of the model in evaluation mode without gradients, bit for bit; a call with other shapes, dtypes
    or plain values is ``INVALID_CONFIG``. Parameters and buffers stay where the module has them; the plan's stack is
    allocated once, on the device on which they lie. Runs the program twice, to validate its steps.
    ``budget``: what weights, inputs, stack and ``reserve`` may take together, such as ``"16GB"``; a run that takes more
    is rewritten, as by ``tmmu fit``. With ``fuse`` too, ops of what fits are fused, where that takes no more stack.
    ``fuse``: neighbouring ops run as one compiled kernel, whose results are near the model's: for each kernel within
    1e-5 of the largest magnitude of a float32 tensor. It stays unfused where no compiler is there, or on a GPU no
    Triton. ``"auto"``: so where these kernels are compiled already on this machine; else as ``False``, and after 4
    calls of the compiled model a process beside this one, which ends with it, compiles them at low priority for the
    next ``tmmu.compile`` of the model, here or in another process. No plan changes under a running program, and nothing
    waits for a kernel; where it fails one line of the log says so. On a GPU, whose kernels are compiled when they are
    bound, ``"auto"`` is ``True``.
    Errors: those of ``tmmu.plan`` and of ``tmmu.bind``; ``INVALID_CONFIG`` for a model in training mode;
    ``BUDGET_TOO_SMALL``.
    """
    _require_compilable(model)
    most, kept_free = None if budget is None else bytes_of(budget), bytes_of(reserve)
    device = device_of_call(model, inputs)
    _require_fuse(fuse)
    request = CaptureRequest(model="", mode="inference", device=device.type, autocast=autocast)
    note = FormNote()
    with garbage_collection_off(), logs_off():
        captured = capture_live(model, inputs, request, note=note)
        program = lower_program(captured)
    _require_plans_kernels(captured)
    form = note.form
    if form is None or form.outputs != len(program.graph.outputs) or form.inputs != len(program.graph.inputs):
        raise UnsupportedOp("results or inputs share their memory in lazy views", fix="clone them in the model")
    _require_kept(note.exchanged, program.graph)
    planned = _plan_program(program, _request_of(seed), device, _room(most, kept_free), fuse=fuse)
    return CompiledModel(
        model,
        plan=MemoryPlan(graph=planned.compiled.graph, plan=planned.compiled.plan, assumed=captured.assumed),
        request=BindRequest(
            program=planned.program,
            plan=planned.compiled.plan,
            token=token_from_seed(seed),
            weights=constant_values(captured),
            device=device,
            adopt=True,
            exact_strides=True,
            kernels=planned.kernels,
        ),
        form=form,
        assumed=_assumed_values(captured),
        autocast=autocast is not None,
        runs=None if planned.order is None else CountedRuns(planned.order),
    )


def _require_fuse(fuse: object) -> None:
    if not isinstance(fuse, bool) and not (isinstance(fuse, str) and fuse == "auto"):
        raise InvalidConfig(f"fuse={fuse!r:.40} is not a bool, nor auto", fix='give True, False or "auto"')


@dataclass(frozen=True, slots=True)
class _Room:
    """Bytes for weights, inputs, stack, and what is ``kept_free``."""

    budget: int
    kept_free: int


def _room(budget: int | None, kept_free: int) -> _Room | None:
    return None if budget is None else _Room(budget, kept_free)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """The program that runs, its plan and its kernels; ``order``: kernels to compile after some runs."""

    program: Program
    compiled: Compiled
    kernels: Mapping[str, Kernel]
    order: KernelOrder | None = None


def _plan_program(
    program: Program,
    plan_request: PlanRequest,
    device: torch.device,
    room: _Room | None,
    *,
    fuse: bool | Literal["auto"],
) -> _Planned:
    """What runs: the program rewritten where it has to be, then fused where that is asked."""
    if room is not None:
        compiled = compile_graph(program.graph, plan_request)
        request = _fit_request(compiled, plan_request, room)
        fitted = fit_on_device(lambda: program, compiled, request, str(device)).fitting.fitted
        if fitted.graph is not compiled.graph:
            return _rewrite_step(program, compiled, fitted, request, fuse=fuse)
    fusion = Fusion(program=program, kernels={})
    if fuse:
        run_fused = fuse_if_compiled if fuse == "auto" else fuse_for_run
        fusion = run_fused(program, Guard(stack_bytes=stack_bytes_of(plan_request)), kernel_folder())
    compiled = compile_graph(fusion.program.graph, plan_request)
    return _Planned(program=fusion.program, compiled=compiled, kernels=fusion.kernels, order=fusion.order)


def _rewrite_step(
    program: Program,
    compiled: Compiled,
    fitted: FittedStep,
    request: FitRequest,
    *,
    fuse: bool | Literal["auto"],
) -> _Planned:
    if not fuse:
        rewritten = rewrite_program(program, fitted.rewrite)
        planned = replace(compiled, graph=fitted.graph, plan=fitted.plan)
        return _Planned(program=rewritten, compiled=planned, kernels={})
    fused = fuse_fitted_for_run(program, fitted, request, kernel_folder(), if_compiled=fuse == "auto")
    planned = replace(compiled, graph=fused.step.graph, plan=fused.step.plan)
    fusion = fused.fusion
    return _Planned(program=fusion.program, compiled=planned, kernels=fusion.kernels, order=fusion.order)


def _fit_request(compiled: Compiled, plan_request: PlanRequest, room: _Room) -> FitRequest:
    """What a fit is to reach: the room, less all but the stack. Errors: ``BUDGET_TOO_SMALL``."""
    settings = PlanSettings(preset=compiled.plan.preset, token=plan_request.token, budget=room.budget)
    limit = stack_room(compiled.plan, compiled.graph, room.budget, room.kept_free)
    return FitRequest(limit=limit, at_most=None, levers=LEVER_NAMES, arenas=plan_request.arenas, settings=settings)


def _require_compilable(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidConfig(f"a {type(model).__name__} is no module", fix="compile the model of a step")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise InvalidConfig("a part of the model is a script", fix="compile the module of which it was made")
    if any(module.training for module in model.modules()):
        raise InvalidConfig("the model is in training mode", fix="call model.eval(), or use torch.compile to train")


def _require_plans_kernels(captured: CapturedProgram) -> None:
    """``UNSUPPORTED_OP`` where the model runs others than a plan has: layers as one, or on the host beside a GPU."""
    if captured.eager is not None and captured.eager.in_parts:
        raise UnsupportedOp(
            f"{captured.eager.in_parts[0]} runs as one kernel in evaluation, whose bits its parts have not",
            fix="torch.backends.mha.set_fastpath_enabled(False), by which the model itself runs in parts",
        )
    host = NO_LIFETIMES if captured.eager is None else captured.eager.host
    for maker, source in zip(host.maker, host.source, strict=True):
        if not maker.startswith("aten._to_copy."):
            raise UnsupportedOp(f"{maker} at {source} runs on the host", fix="do that with what the model returns")


def _require_kept(exchanged: frozenset[str], graph: Graph) -> None:
    """``UNSUPPORTED_OP`` where a call reads a tensor that it then exchanges: the next one would find the old."""
    values, ops = graph.values, graph.ops
    read = {graph.notes.buffers[values.buffer[value]] for reads in ops.reads for value in reads}
    for name in sorted(exchanged & read):
        raise UnsupportedOp(
            f"the model puts another tensor in the place of {name}, which it reads",
            fix="write into the one that is there, as by copy_(), or take it as an input and return it",
        )


def _request_of(seed: int) -> PlanRequest:
    return PlanRequest(mode="inference", preset="inference", token=token_from_seed(seed), arenas=default_arenas())


def _assumed_values(captured: CapturedProgram) -> dict[str, torch.Tensor]:
    """The values for which alone the trace holds; ``UNSUPPORTED_OP`` for one that is not known."""
    values = constant_values(captured) | assumed_inputs(captured)
    unknown = [name for name in captured.assumed if name not in values]
    if unknown:
        raise UnsupportedOp(
            f"the path depends on the value of {unknown[0]}", fix="make it an argument that is a number"
        )
    return {name: values[name].clone() for name in captured.assumed}
