"""From a request to a captured program: build the model on fake tensors, run it once, record every call.

One pass: the model runs as in eager PyTorch, forward, backward and update, over fake tensors that have shapes and
storages but no bytes, so neither time nor memory grows with the weights. ``fake_environment`` is all that is changed
about torch meanwhile; ``Recorder`` is what listens.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from tmmu.errors import CaptureFailed, InvalidConfig, UnsupportedOp
from tmmu.ir.program import factor_text
from tmmu.passes.capture import targets
from tmmu.passes.capture.activities import Activity
from tmmu.passes.capture.call_form import FormNote
from tmmu.passes.capture.collection import garbage_collected_after
from tmmu.passes.capture.failures.translate import translate_errors
from tmmu.passes.capture.fake.anomaly import anomalies_unseen
from tmmu.passes.capture.fake.autocast import autocast_for
from tmmu.passes.capture.fake.compatibility import real_looking_fakes
from tmmu.passes.capture.fake.compiled import compiled_as_written
from tmmu.passes.capture.fake.composites import composites_for
from tmmu.passes.capture.fake.conversion import convertible_modules, copyable_tensors
from tmmu.passes.capture.fake.devices import one_device
from tmmu.passes.capture.fake.foreach import foreach_as_on
from tmmu.passes.capture.fake.fused_layers import fused_layers_noted, with_parts
from tmmu.passes.capture.fake.generators import generators_restored
from tmmu.passes.capture.fake.initialization import quick_initialization
from tmmu.passes.capture.fake.jagged import jagged_rows
from tmmu.passes.capture.fake.loaders import loaders_in_order
from tmmu.passes.capture.fake.process_state import process_state_restored
from tmmu.passes.capture.imports import forget_fake_imports, importable_from, ordinary_imports
from tmmu.passes.capture.program import CapturedProgram, Window
from tmmu.passes.capture.ranks.meshes import real_meshes
from tmmu.passes.capture.ranks.optimizer_shards import optimizer_shards_noted
from tmmu.passes.capture.ranks.process_group import process_group
from tmmu.passes.capture.ranks.reducer import begin_later_steps, named_buckets, reducers_in_python
from tmmu.passes.capture.ranks.rings import rings_restored
from tmmu.passes.capture.ranks.sharding import begin_shards
from tmmu.passes.capture.ranks.traffic import traffic_of
from tmmu.passes.capture.record.places import TRACED_DEVICE
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.recording import recording
from tmmu.passes.capture.replace import TRACE_LOCK
from tmmu.passes.capture.request import CaptureRequest, Progress, no_progress
from tmmu.passes.capture.routing.routing import Routing
from tmmu.passes.capture.targets.live_object import live_workload, source_folder_of, workload_of_maker
from tmmu.passes.capture.training.model_step import evaluate, train_step
from tmmu.passes.capture.training.own_step import capture_step
from tmmu.passes.capture.tree import named_tensors, plain_tensors
from tmmu.passes.capture.workload import Workload, inputs_by_name
from tmmu.torch_private import FakeTensorMode, is_mkldnn_enabled, set_mkldnn_enabled


def capture(request: CaptureRequest, progress: Progress = no_progress) -> CapturedProgram:
    """The program that the request describes; ``CAPTURE_FAILED`` with the user's own line where it cannot be traced."""
    folder, imports = targets.source_folder(request.model), targets.import_folder(request.model)
    return _capture(lambda fake: targets.load(request, fake), request, progress, folder=folder, imports=imports)


def capture_live(
    target: Any,
    inputs: Any,
    request: CaptureRequest,
    progress: Progress = no_progress,
    *,
    note: FormNote | None = None,
) -> CapturedProgram:
    """The program of a model or step that is there as Python objects; nothing of it is changed.

    Of one rank of many, ``target`` is a function that makes the model, inside of the rank's process group.
    ``note`` takes down what a model is called with and returns.
    """
    is_step = request.mode == "step"
    folder = source_folder_of(target)

    def load(_: FakeTensorMode) -> Workload:
        if request.world is not None:
            return workload_of_maker(target, inputs)
        workload = live_workload(target, inputs, is_step=is_step)
        return workload if note is None else note.around(workload)

    with TRACE_LOCK, generators_restored():
        return _capture(load, request, progress, folder=folder, imports="")


def capture_workload(
    load: Callable[[FakeTensorMode], Workload], request: CaptureRequest, progress: Progress = no_progress
) -> CapturedProgram:
    """The program of a workload that ``load`` makes in the environment of the trace."""
    with TRACE_LOCK, generators_restored():
        return _capture(load, request, progress, folder="", imports="")


def _capture(
    load: Callable[[FakeTensorMode], Workload],
    request: CaptureRequest,
    progress: Progress,
    *,
    folder: str,
    imports: str,
) -> CapturedProgram:
    """``folder`` is that of the source lines, ``imports`` that from which the code may import what lies beside it."""
    surroundings = (process_state_restored(), importable_from(imports), forget_fake_imports(), ordinary_imports())
    with TRACE_LOCK, ExitStack() as stack:
        for block in surroundings:
            stack.enter_context(block)
        stack.enter_context(process_group(request.world, request.rank))
        stack.enter_context(reducers_in_python())
        stack.enter_context(rings_restored())
        fake = stack.enter_context(fake_environment(request.device))
        progress("building", 0)
        building, routing = Recorder(folder=folder), Routing(request.capacity_factor)
        with (
            garbage_collected_after() if request.is_own_step else nullcontext(),
            translate_errors(folder, Activity.BUILDING),
            building,
            building.layouts.watch_reads(building.source),
            optimizer_shards_noted(building.layouts, building.source),
            quick_initialization(),
            loaders_in_order(request.device),
        ):
            workload = replace(load(fake), layouts=building.layouts, routing=routing)
        with translate_errors(folder, routing=routing), real_looking_fakes():
            try:
                if request.is_own_step:
                    program = capture_step(workload, request, progress, building)
                else:
                    program = trace(workload, request, progress)
            finally:
                workload.modules.forget()
            if request.world is not None:
                program = _as_rank(program, workload, request.world, request.rank)
            return _as_routed(program, routing)


def _as_rank(program: CapturedProgram, workload: Workload, world: int, rank: int) -> CapturedProgram:
    """The program under a name that says which rank it is of, with the kinds of all ranks."""
    name = f"{program.name}, rank {rank} of {world}"
    kinds, traffic = workload.layouts.kinds(world), traffic_of(program.graph)
    return replace(program, name=name, rank_kinds=kinds, traffic=traffic)


def _as_routed(program: CapturedProgram, routing: Routing) -> CapturedProgram:
    """The program under a name that says which capacity it assumes, where it does."""
    routings = routing.assumed()
    if not routings:
        return program
    name = f"{program.name}, capacity factor {factor_text(routings[0].factor)}"
    return replace(program, name=name, routings=routings)


@contextmanager
def _recurrent_kernels(device: str) -> Iterator[None]:
    """Block in which LSTMs are operators of oneDNN on the ``cpu`` target alone, as the user's switch says."""
    if device == "cpu":
        yield
        return
    enabled = is_mkldnn_enabled()
    set_mkldnn_enabled(False)
    try:
        yield
    finally:
        set_mkldnn_enabled(enabled)


@contextmanager
def fake_environment(device: str) -> Iterator[FakeTensorMode]:
    """Block in which tensors have no bytes, any device exists, and operators behave as on ``device``."""
    with (
        warnings.catch_warnings(),
        compiled_as_written(),
        FakeTensorMode(allow_non_fake_inputs=True) as fake,
        one_device(device),
        composites_for(device),
        convertible_modules(),
        copyable_tensors(),
        autocast_for(device),
        jagged_rows(),
        anomalies_unseen(),
        foreach_as_on(device),
        real_meshes(TRACED_DEVICE.type),
        _recurrent_kernels(device),
    ):
        warnings.simplefilter("ignore")  # about a run that does not take place
        yield fake


def trace(workload: Workload, request: CaptureRequest, progress: Progress) -> CapturedProgram:
    """The calls of one step of the workload, in order."""
    recorder = Recorder(
        folder=workload.folder,
        modules=workload.modules,
        progress=progress,
        device=request.device,
        strict=True,
        layouts=workload.layouts,
        routing=workload.routing,
    )
    inputs = _declare(workload, recorder, training=request.mode != "inference")
    with recording(recorder, workload, request.device) as scaled, fused_layers_noted() as fused:
        declared = _declared_tensors(workload, recorder)
        results = _step(workload, request, recorder)
        inputs = (*inputs, *recorder.supervision)
        _require_in_place(declared, recorder)
        distinct = {recorder.window_of(tensor): tensor for _, tensor in named_tensors(results)}
        tensors = [_computed(tensor) for tensor in distinct.values()]
        outputs = tuple(map(recorder.window_of, tensors))
        if not outputs:
            raise _without_tensor(results)
        del results, distinct
        survivors = recorder.surviving_storages((*inputs, *outputs))  # before anything else may collect garbage
    program = recorder.finish(
        name=workload.name, device=request.device, inputs=inputs, outputs=outputs, survivors=survivors
    )
    return replace(program, scaled_updates=scaled.count, eager=with_parts(program.eager, fused))


def _without_tensor(results: Any) -> CaptureFailed:
    """The refusal of a result without tensors, such as ``None``, a generator or a coroutine."""
    if inspect.iscoroutine(results):
        results.close()  # nobody will await it, of which Python would warn
    kind = "None" if results is None else type(results).__name__
    return CaptureFailed(f"the model returns no tensor but {kind}", fix="return at least one tensor from forward")


def _computed(tensor: torch.Tensor) -> torch.Tensor:
    """An output that leaves the program, where nobody reads a lazy bit: conjugated or negated in memory."""
    if not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    with torch.no_grad():
        return tensor.resolve_conj().resolve_neg()


def _declare(workload: Workload, recorder: Recorder, *, training: bool) -> tuple[Window, ...]:
    """Inputs, weights, buffers and states become known under their names; the windows of the inputs."""
    module = workload.module
    if module is not None:
        begin_shards(module)
        begin_later_steps(module)
        workload.layouts.note((*module.parameters(), *module.buffers()))
        if module.training != training:  # a model made to train may freeze parts of itself
            module.train(training)
        workload.modules.name_all(module)
        for name, parameter in _plain(module.named_parameters()):
            recorder.declare(parameter, role="parameter", name=name)
        for name, buffer in _plain(module.named_buffers()):
            if buffer.layout is not torch.strided:
                recorder.name_unmodelled(buffer, name=name)
                continue
            recorder.declare(buffer, role="constant", name=name, known=workload.gives_values)
        for name, bucket in named_buckets(module):
            recorder.declare(bucket, role="constant", name=name)
    for entry in workload.owned:
        recorder.declare(entry.tensor, role=entry.role, name=entry.name)
    owned = {id(entry.tensor) for entry in workload.owned}
    return tuple(
        dict.fromkeys(
            recorder.declare(tensor, role="input", name=name, known=workload.gives_values)
            for name, tensor in named_tensors(inputs_by_name(workload))
            if id(tensor) not in owned
        )
    )


def _plain(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights as they lie in memory: of a wrapper, what it wraps."""
    for name, tensor in named:
        yield from plain_tensors(name, tensor)


def _declared_tensors(workload: Workload, recorder: Recorder) -> list[tuple[str, torch.Tensor, Window]]:
    """Name and window of each weight and buffer of the module."""
    module = workload.module
    tensors = [] if module is None else [*_plain(module.named_parameters()), *_plain(module.named_buffers())]
    strided = [(name, tensor) for name, tensor in tensors if tensor.layout is torch.strided]
    return [(name, tensor, recorder.window_of(tensor)) for name, tensor in strided]


def _require_in_place(declared: Sequence[tuple[str, torch.Tensor, Window]], recorder: Recorder) -> None:
    """``UNSUPPORTED_OP`` for a weight that the step gave other memory, which no plan keeps for the next step, and for
    what it left elsewhere of the caller's.
    """
    recorder.storage_changes.require_put_back()
    for name, tensor, window in declared:
        if recorder.window_of(tensor) != window:
            raise UnsupportedOp(
                f"the step gives {name} other memory (.data =), which outlives the step", fix="write it with copy_"
            )


def _step(workload: Workload, request: CaptureRequest, recorder: Recorder) -> Any:
    if request.mode != "inference":
        return train_step(workload, recorder, request)
    if request.optimizer is not None:
        raise InvalidConfig("an optimizer needs a training step", fix="add --mode backward")
    if request.loss is not None:
        raise InvalidConfig("a loss needs a training step", fix="add --mode backward")
    return evaluate(workload, request)
