"""``tmmu.measure``: what torch's allocator did in a real run, beside the plan of it."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch

from tmmu.api.measured_run import MeasuredRun
from tmmu.api.memory_plan import MemoryPlan, require_plan
from tmmu.api.plan import device_of_call, step_or_module_mode
from tmmu.api.plan import plan as plan_of
from tmmu.eager.observed import BEFORE, observed_memory
from tmmu.eager.peak import eager_run, live_levels
from tmmu.errors import InvalidConfig
from tmmu.passes.capture.collection import garbage_collected_after, garbage_collection_off
from tmmu.passes.capture.eager_model import step_keeper
from tmmu.passes.capture.failures.translate import translate_errors
from tmmu.passes.capture.fake.compiled import compiled_as_written
from tmmu.passes.capture.fake.generators import generators_restored
from tmmu.passes.capture.fake.process_state import process_state_restored
from tmmu.passes.capture.replace import TRACE_LOCK
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.sources import calling_source
from tmmu.passes.capture.targets.live_object import source_folder_of
from tmmu.passes.capture.targets.real_copy import real_workload
from tmmu.passes.capture.training.model_step import evaluate, train_step
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.capture.workload import Workload
from tmmu.runtime.observe.calls import CallObserver
from tmmu.runtime.observe.cpu_allocations import CpuAllocationLog
from tmmu.runtime.observe.cuda_allocations import CudaAllocationLog
from tmmu.summary.measured_calls import earlier_bytes, measured_calls


def measure(  # noqa: PLR0913 - the options of the plan, by name
    model_or_step: Any,
    inputs: Any = None,
    *,
    plan: MemoryPlan | None = None,
    training: bool | None = None,
    loss: Literal["cross_entropy", "mse", "sum"] | None = None,
    optimizer: str | None = None,
    autocast: Literal["bf16", "fp16"] | None = None,
) -> MeasuredRun:
    """What torch's allocator did in a real run, call by call, beside the plan; ``plan`` where there is one already.

    Runs on a deep copy of all that is reached: memory for weights, state and inputs is taken once more, and nothing of
    the caller's changes but what a step does outside. A step, or a module with an optimizer, runs twice, and the second
    run is observed; another module once. What is compiled runs as eager does. Other arguments as of ``tmmu.plan``; its
    ``preset``, ``arenas`` and ``seed`` are of a ``plan`` that is given. Device: where model and inputs lie.
    Errors: those of ``tmmu.plan``; ``INVALID_CONFIG`` for a plan of another device, and under a running profiler.
    """
    device = device_of_call(model_or_step, inputs)
    options: dict[str, Any] = {"training": training, "loss": loss, "optimizer": optimizer, "autocast": autocast}
    mode = step_or_module_mode(model_or_step, **options)
    if plan is None:
        plan = plan_of(model_or_step, inputs, device=device.type, **options)  # type: ignore[arg-type]
    planned = require_plan(plan)
    if planned.graph.target != device.type:
        raise InvalidConfig(
            f"the plan is for {planned.graph.target}, and the model on {device}",
            fix=f'plan it with device="{device.type}"',
        )
    run = eager_run(planned.graph, planned.plan.mode)
    if run is None:
        raise InvalidConfig("the graph does not say what eager holds in this run", fix="plan the model again")
    request = CaptureRequest(model="", mode=mode, device=device.type, loss=loss, optimizer=optimizer, autocast=autocast)
    folder = source_folder_of(model_or_step)
    allocations = CpuAllocationLog() if device.type == "cpu" else CudaAllocationLog(device)
    observer = CallObserver(allocations, partial(calling_source, folder))
    with _user_code(folder, device), allocations:
        with allocations.in_call(BEFORE), garbage_collected_after():
            workload = real_workload(model_or_step, inputs, is_step=mode == "step")
            step = _step_of(workload, request)
            del workload
            if mode == "step" or optimizer is not None:
                step()  # makes what later runs find
        with garbage_collection_off(), observer:
            results = step()
        del results
    memory = observed_memory(allocations.events, len(observer.names), observer.lifted)
    return MeasuredRun(
        device=str(device),
        calls=measured_calls(run, memory, observer.names, observer.sources),
        eager_peak=max(live_levels(run.storages, run.calls), default=0),
        planned_peak=planned.stack,
        between_peak=earlier_bytes(run) + memory.between,
        before=memory.before,
        eager_calls=run.calls,
        in_parts=run.in_parts,
    )


def _step_of(workload: Workload, request: CaptureRequest) -> Callable[[], Any]:
    """One run, as a trace takes it."""
    if request.mode == "step":
        return partial(workload.run, *workload.args, **workload.kwargs)
    if workload.module is not None and workload.module.training != (request.mode != "inference"):
        workload.module.train(request.mode != "inference")
    if request.mode == "inference":
        return partial(evaluate, workload, request)
    keeper = step_keeper()
    weights = [] if workload.module is None else list(workload.module.parameters())
    inputs = [tensor for _, tensor in named_tensors((workload.args, workload.kwargs))]

    def train() -> Any:
        for tensor in (*weights, *inputs):
            tensor.grad = None  # a caller has taken them
        return train_step(workload, keeper, request)

    return train


@contextmanager
def _user_code(folder: str, device: torch.device) -> Iterator[None]:
    """Block of one thread, whose errors name the user's line; generators and the process are as before afterwards."""
    on_device = torch.random.fork_rng([device]) if device.type == "cuda" else nullcontext()
    with (
        TRACE_LOCK,
        process_state_restored(),
        generators_restored(),
        on_device,
        translate_errors(folder),
        compiled_as_written(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # about a run that is thrown away
        yield
