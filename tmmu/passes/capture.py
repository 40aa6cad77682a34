"""From a request to a program: make the model on fake tensors, run it once, keep every call.

One pass: the model runs as in eager PyTorch, forward, backward and update, over fake tensors that have shapes and
storages but no bytes, so neither time nor memory grows with the weights.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tmmu.errors import CaptureFailed, InvalidConfig, TmmuError
from tmmu.passes import targets
from tmmu.passes.compatibility import real_looking_fakes
from tmmu.passes.functions import TargetFunctions
from tmmu.passes.initialization import no_initialization
from tmmu.passes.modules import ModuleStack
from tmmu.passes.program import Program, Window
from tmmu.passes.recorder import Recorder
from tmmu.passes.request import CaptureRequest, Progress, no_progress
from tmmu.passes.sources import failing_source
from tmmu.passes.training import train_step
from tmmu.passes.tree import named_tensors
from tmmu.passes.workload import Workload


def capture(request: CaptureRequest, progress: Progress = no_progress) -> Program:
    """The program that the request describes; ``CAPTURE_FAILED`` with the user's own line where it cannot be traced."""
    folder = targets.folder_of(request.target)
    with _translated(folder), FakeTensorMode(allow_non_fake_inputs=True), TargetFunctions(request.device), real_looking_fakes():
        progress("building", 0)
        with Recorder(folder=folder), no_initialization():
            workload = targets.load(request)
        return trace(workload, request, progress)


def trace(workload: Workload, request: CaptureRequest, progress: Progress) -> Program:
    """The calls of one step of the workload, in order."""
    modules = ModuleStack()
    recorder = Recorder(folder=workload.folder, modules=modules, progress=progress)
    inputs = _declare(workload, recorder, modules, training=request.mode != "inference")
    with modules.following(), recorder:
        results = _step(workload, request, recorder)
    outputs = tuple(dict.fromkeys(recorder.window_of(tensor) for _, tensor in named_tensors(results)))
    if not outputs:
        raise CaptureFailed("the model returns no tensor", fix="return at least one tensor from forward")
    return recorder.finish(name=workload.name, device=request.device, inputs=inputs, outputs=outputs)


def _declare(workload: Workload, recorder: Recorder, modules: ModuleStack, *, training: bool) -> tuple[Window, ...]:
    """Inputs, weights, buffers and states become known under their names; the windows of the inputs."""
    module = workload.module
    if module is not None:
        module.train(training)
        modules.name_all(module)
        for name, parameter in module.named_parameters():
            recorder.declare(parameter, role="parameter", name=name)
        for name, buffer in module.named_buffers():
            recorder.declare(buffer, role="constant", name=name)
    for name, tensor in workload.states:
        recorder.declare(tensor, role="state", name=name)
    given = named_tensors((list(workload.args), dict(workload.kwargs)))
    states = {id(tensor) for _, tensor in workload.states}
    return tuple(
        dict.fromkeys(
            recorder.declare(tensor, role="input", name=name or "input")
            for name, tensor in given
            if id(tensor) not in states
        )
    )


def _step(workload: Workload, request: CaptureRequest, recorder: Recorder) -> Any:
    if request.mode != "inference":
        return train_step(workload, recorder, optimizer=request.optimizer)
    if request.optimizer is not None:
        raise InvalidConfig("an optimizer needs a training step", fix="add --mode backward")
    with torch.no_grad():
        return workload.run(*workload.args, **workload.kwargs)


@contextmanager
def _translated(folder: str) -> Iterator[None]:
    """Whatever the user's code raises becomes one ``CaptureFailed`` with the user's own file and line."""
    with ExitStack() as stack:
        del stack
        try:
            yield
        except TmmuError:
            raise
        except SyntaxError as error:
            where = f"{targets.shown(error.filename, folder)}:{error.lineno}"
            raise CaptureFailed(f"{where}: {error.msg}", fix="correct the file", where=where) from error
        except (Exception, SystemExit) as error:
            where = failing_source(error.__traceback__, folder)
            said = " ".join(str(error).split())[:300]
            raise CaptureFailed(
                f"{where + ': ' if where else ''}{type(error).__name__}: {said}", fix=advice(error), where=where
            ) from error


def advice(error: BaseException) -> str:
    """What the model's author can do about the failure."""
    kind = type(error).__name__
    return _ADVICE.get(kind, "the model must run on these inputs; see the line named")


_ADVICE = {
    "DataDependentOutputException": "control flow depends on tensor data: use torch.where, or pass a Python number",
    "DynamicOutputShapeException": "a shape depends on tensor data: use a fixed-size form such as torch.where or a mask",
    "UnsupportedOperatorException": "the operator has no fake kernel: register one with torch.library.register_fake",
    "UnsupportedFakeTensorException": "only dense tensors can be traced",
    "ModuleNotFoundError": "install what the file imports, or run from its environment",
    "TypeError": "check the inputs against the signature of forward",
}
