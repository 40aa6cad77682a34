"""A step that the user wrote: ``def step(batch)`` with model, optimizers, scaler and all else that it closes over.

It runs as Python three times on fake tensors. The first run makes what later ones find: optimizer state, gradients,
averages. The second is planned. The third must be the same, or there is no steady step. State is whatever was there
before the second run and is read or written in it; what it makes and somebody holds afterwards is an output.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.ir.graph import UPDATE_MODULE
from tmmu.ir.lifetimes import EagerRun
from tmmu.passes.capture.fake.fused_layers import fused_layers_noted, with_parts
from tmmu.passes.capture.program import CapturedProgram, StepRemains, Window
from tmmu.passes.capture.ranks.reducer import end_first_step
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.recording import recording
from tmmu.passes.capture.request import CaptureRequest, Progress
from tmmu.passes.capture.training.agreement import require_agreement, with_longer_lives
from tmmu.passes.capture.training.reach import numbers_in, prefix_of, reach_of, weights_in
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.capture.workload import Workload, inputs_by_name


def capture_step(
    workload: Workload, request: CaptureRequest, progress: Progress, building: Recorder
) -> CapturedProgram:
    """The steady step, with the lifetimes of the first; ``building`` recorded how model and optimizers were made.

    What only garbage holds must be gone: a step finds what lives.
    ``CAPTURE_FAILED`` where two steady runs differ.
    """
    for name in ("optimizer", "loss", "autocast", "dtype"):
        if request.mode == "step" and getattr(request, name) is not None:
            raise InvalidConfig(f"--{name} is for a model: a step has its own", fix="leave it out, or plan the model")
    recorders = [building]
    first, steady, again = (_run(workload, request, progress, recorders) for _ in range(3))
    require_agreement(steady, again, workload.folder)
    return replace(with_longer_lives(steady, again), first=first.eager, next_run=again)


def _run(workload: Workload, request: CaptureRequest, progress: Progress, recorders: list[Recorder]) -> CapturedProgram:
    """One run; ``recorders`` are those of all that ran before, which know what it left."""
    recorder = Recorder(
        folder=workload.folder,
        modules=workload.modules,
        progress=progress,
        device=request.device,
        strict=True,
        own_step=True,
        layouts=workload.layouts,
        routing=workload.routing,
    )
    batch = [tensor for _, tensor in named_tensors(inputs_by_name(workload))]
    for tensor in batch:
        tensor.grad = None  # a loop has another batch in each step, without a gradient
    inputs = _note_what_is_there(workload, recorder, recorders)
    recorders.append(recorder)
    found = recorder.builder.lifetimes.earlier_bytes
    with (
        recording(recorder, workload, request.device) as scaled,
        fused_layers_noted() as fused,
        _update_stages(recorder) as updates,
    ):
        results = workload.run(*workload.args, **workload.kwargs)
        _require_run(results)
        for module in reach_of(workload.run).modules.values():
            end_first_step(module)
        returned = {name: recorder.window_of(tensor) for name, tensor in named_tensors(results)}
        outliving = recorder.outliving_windows((*inputs, *returned.values()))
        numbers = numbers_in(results, "output")
        del results
        recorder.storage_changes.put_back(batch)
    outputs = (*dict.fromkeys(returned.values()), *outliving)
    program = recorder.finish(name=workload.name, device=request.device, inputs=inputs, outputs=outputs)
    kept = sum(program.storages[window.storage].bytes for window in outliving)
    growth = kept - (found - recorder.builder.lifetimes.earlier_bytes)
    remains = _remains_of(workload, recorder, returned, numbers, updates=len(updates))
    return replace(
        program,
        scaled_updates=scaled.count,
        growth=max(growth, 0),
        remains=remains,
        eager=_as_own_step(with_parts(program.eager, fused)),
    )


def _as_own_step(run: EagerRun | None) -> EagerRun | None:
    return None if run is None else replace(run, own_step=True)


def _require_run(results: Any) -> None:
    """``CAPTURE_FAILED`` for a generator or a coroutine, of which nothing has run yet."""
    if inspect.iscoroutine(results):
        results.close()  # nobody will await it, of which Python would warn
    if inspect.iscoroutine(results) or inspect.isgenerator(results) or inspect.isasyncgen(results):
        kind = type(results).__name__.replace("_", " ")
        raise CaptureFailed(
            f"the step returns a {kind}, and has not run", fix="plan a function that does the whole step"
        )


def _remains_of(
    workload: Workload, recorder: Recorder, returned: dict[str, Window], numbers: dict[str, Any], *, updates: int
) -> StepRemains:
    """What a run has left behind; tensors by their windows on the storages that it touched."""
    reach = reach_of(workload.run)
    return StepRemains(
        tensors={name: recorder.builder.table.window_of(tensor) for name, tensor in reach.tensors.items()},
        results=tuple(returned.items()),
        numbers=reach.numbers | numbers,
        generators=reach.generators,
        updates=updates,
        has_optimizer=any(_has_gradient(optimizer) for optimizer in reach.optimizers.values()),
    )


def _has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _note_what_is_there(workload: Workload, recorder: Recorder, earlier: list[Recorder]) -> tuple[Any, ...]:
    """The recorder knows all tensors that a run finds; the windows of its inputs. Nothing here lives on in the run."""
    reach = reach_of(workload.run)
    handles = [handle for before in earlier for handle in before.builder.table.handles()]
    recorder.note_earlier((handle for handle in handles if handle.device.type == "meta"), reach.storage_names())
    return _declare(workload, recorder, reach.modules)


@contextmanager
def _update_stages(recorder: Recorder) -> Iterator[list[Any]]:
    """Block in which calls inside ``step`` of any optimizer of torch's base class belong to the stage ``update``.

    Yields a list with an item for each such ``step``.
    """
    stages: list[Any] = []
    updates: list[Any] = []

    def begin(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        stage = recorder.in_stage("update", module=f"{UPDATE_MODULE}{type(optimizer).__name__.lower()}")
        stage.__enter__()
        stages.append(stage)
        updates.append(type(optimizer))

    def end(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if stages:
            stages.pop().__exit__(None, None, None)

    hooks = register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)
    try:
        yield updates
    finally:
        for hook in hooks:
            hook.remove()


def _declare(workload: Workload, recorder: Recorder, modules: dict[str, nn.Module]) -> tuple[Window, ...]:
    """Weights and buffers of all modules that the step closes over, and its inputs; the windows of these."""
    for name, module in modules.items():
        prefix = prefix_of(modules, name)
        workload.modules.name_all(module, prefix)
        for role, path, tensor in weights_in(module, prefix):
            recorder.declare(tensor, role=role, name=path, known=workload.gives_values and role == "constant")
    return tuple(
        dict.fromkeys(
            recorder.declare(tensor, role="input", name=name, known=workload.gives_values)
            for name, tensor in named_tensors(inputs_by_name(workload))
        )
    )
