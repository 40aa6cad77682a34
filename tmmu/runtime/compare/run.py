"""One run of a program in its plan, as ``tmmu run`` makes it: weights by file or seed, checks, measurements."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from tmmu.errors import InvalidConfig, PlanUnsound
from tmmu.ir.graph import CONSTANT, FUSED_NAMESPACE, PARAMETER, STATE, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.runtime.compare.bench import BenchOptions, ComparisonModel, Measurement, measure_variants
from tmmu.runtime.compare.eager import EagerBits, PlannedRun, compare_with_eager, format_type
from tmmu.runtime.compare.random_tensors import random_weights, valid_inputs
from tmmu.runtime.compare.reference import ReferenceExecutor
from tmmu.runtime.compare.sanitize import SanitizerReport, run_sanitized
from tmmu.runtime.device.choose import memory_device
from tmmu.runtime.execute.bind import bind_executor
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.kernels.kernel_calls import Kernel, is_kernel_call
from tmmu.runtime.memory.sizing import require_free
from tmmu.runtime.memory.slab import row_major_bytes
from tmmu.runtime.memory.tensor_views import device_bytes, host_bytes
from tmmu.runtime.offload.executor import bind_offloaded, has_host_copies
from tmmu.runtime.ring.executor import RingOptions, StreamedExecutor, bind_ring
from tmmu.runtime.steps.unplanned import Unplanned
from tmmu.runtime.weights.load import LazyTensors, Weight
from tmmu.runtime.weights.safetensors_files import stored_tensors
from tmmu.runtime.weights.sources import ModelTensor, file_source_like

Tensors = Mapping[str, torch.Tensor]
Weights = Mapping[str, Weight]
WEIGHT_ROLES: Final = (PARAMETER, CONSTANT, STATE)
FILE, MODEL, NUMBERS, SEED = "file", "model", "numbers", "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run showed. The names of the fields are keys in the output of ``tmmu run --json``."""

    inputs: tuple[str, ...]
    """``name dtype[shape]`` of each."""
    outputs: tuple[str, ...]
    """``dtype[shape]`` of each."""
    weights: Mapping[str, int]
    """How many parameters and buffers come from a ``file``, the ``model`` (exported), its ``numbers``, the ``seed``."""
    steps: int
    peak_bytes: Mapping[str, int]
    """By segment."""
    input_bytes: int
    unplanned: tuple[Unplanned, ...]
    checked: int
    """Outputs and states with the bits of the reference executor's; 0 where no check was asked for."""
    same: int
    """Outputs and states with the bits of the eager model's."""
    near: int
    """Outputs and states that are only close to the eager model's."""
    far: int = 0
    """Of fused ops alone: those that are not close, as of a gradient that is zero but for rounding."""
    sanitized: int
    """Comparisons of a buffer that the sanitizer made."""
    pieces: int
    """Launches of a run."""
    grown: int
    """How often torch asked the device for memory in three runs after the first."""
    bench: tuple[Measurement, ...]
    """A row per variant."""
    ring: Mapping[str, int]
    """What streaming took, over all runs; empty where all weights are resident."""
    fused: int = 0
    """Fused ops of the plan."""
    compiled: int = 0
    """Those of them that run as a compiled kernel; the others run their members one by one."""
    unfused: str = ""
    """Why nothing is fused, or which kernels are not there, where that was asked for."""
    difference: float = 0.0
    """How far an output is from the eager model's at most, as a share of the largest magnitude in it."""
    runs: int = 1
    """How often the program ran inside the plan: twice for a step of the user's that is checked."""
    numbers: int = 0
    """Python's numbers that the step's runs changed, and that are those of the step itself; where it was checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Where the weights of a run come from, and what is checked and measured."""

    token: bytes
    names: Sequence[str]
    """Of all weights."""
    forms: Tensors
    """Shape, strides and dtype of weights as the model has them, by name, as tensors without memory."""
    constants: Tensors
    """Values that the capture found in the program."""
    stored: Tensors
    """Values that came with the model, of an exported program."""
    inputs: Tensors
    """Values of inputs that decided which ops there are; the others are random."""
    integers: Tensors
    """Values of integral inputs as the model's file gives them; those that are offsets or lengths are taken."""
    seed: int
    weights: Path | None
    """A safetensors file, or a folder of such."""
    check: bool
    sanitize: bool
    bench: bool
    compiled: bool = True
    """Whether ``torch.compile`` is a variant of the bench."""
    prefetch: bool = True
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    """Compiled kernels by fused operator."""
    unfused: str = ""
    """Why nothing is fused, or which kernels are not there, where that was asked for."""


def run_planned(program: Program, plan: Plan, options: RunOptions, model: Callable[[], ComparisonModel]) -> RunReport:
    """Binds the plan, runs it once, and checks and measures as the options ask.

    ``PLAN_UNSOUND`` where it differs from the reference or the sanitizer finds a fault, ``CAPTURE_FAILED`` where it
    differs from the eager model.
    """
    require_free(device_bytes(plan), torch.device(program.graph.target))
    origins = _weights_by_origin(program.graph, options)
    weights = {name: weight for group in origins.values() for name, weight in group.items()}
    executor = _bind(program, plan, weights, options)
    inputs = valid_inputs(program, executor.inputs, options.seed, options.integers) | dict(options.inputs)
    is_fused = any(call.operator.namespace == FUSED_NAMESPACE for call in program.calls)
    by_op, states = None, dict[str, torch.Tensor]()
    if options.sanitize or (options.check and is_fused):
        by_op = _sanitize(program, executor, weights, inputs, options)
        states = {name: executor.state(name).clone() for name in executor.states}
    if states:
        executor.close()  # the sanitized run has advanced its state
        executor = _bind(program, plan, weights, options)
    torch.manual_seed(options.seed)
    outputs = executor.run(_clone(inputs))
    run = PlannedRun(executor=executor, weights=weights, inputs=inputs, outputs=outputs, seed=options.seed)
    checked = 0
    if options.check:
        if is_fused and by_op is not None:
            checked = _check_against_ops(run, by_op.outputs, states)
        else:
            checked = _check_against_reference(program, run)
    eager = model() if options.check or options.bench else None
    bits = compare_with_eager(eager, run, near=is_fused) if eager and options.check else EagerBits()
    grown = device_allocations(executor, inputs) if options.bench else 0
    bench: tuple[Measurement, ...] = ()
    if eager and options.bench:
        bench_options = BenchOptions(compile_step=eager.compile_step if options.compiled else None)
        bench = measure_variants(executor, eager, LazyTensors(weights), inputs, bench_options)
    report = RunReport(
        inputs=tuple(f"{spec.name} {format_type(inputs[spec.name])}" for spec in executor.inputs),
        outputs=tuple(map(format_type, outputs)),
        weights=_count_origins(program.graph, origins),
        steps=len(plan.order),
        peak_bytes=peak_bytes_of(executor),
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs.values()),
        unplanned=executor.unplanned_allocations,
        checked=checked,
        same=bits.same,
        near=bits.near,
        far=bits.far,
        sanitized=by_op.compared if by_op is not None else 0,
        pieces=executor.launch_count,
        grown=grown,
        bench=bench,
        ring=executor.figures if isinstance(executor, StreamedExecutor) else {},
        fused=sum(call.operator.namespace == FUSED_NAMESPACE for call in program.calls),
        compiled=sum(any(map(is_kernel_call, step.code)) for step in executor.bound.steps),
        unfused=options.unfused,
        difference=bits.difference,
    )
    executor.close()
    return report


def _bind(program: Program, plan: Plan, weights: Weights, options: RunOptions) -> Executor:
    """An executor with resident weights, or with the plan's ring, which reads files straight into its host image."""
    device = torch.device(program.graph.target)
    request = BindRequest(
        program=program, plan=plan, token=options.token, weights=weights, device=device, kernels=options.kernels
    )
    if plan.ring is None:
        return bind_resident(request)
    return bind_ring(request, memory_device(device), RingOptions(prefetch=options.prefetch, owns_device=True))


def bind_resident(request: BindRequest) -> Executor:
    """An executor with resident weights, whose host copies, if it has any, go beside its ops."""
    if has_host_copies(request.program.graph):
        return bind_offloaded(request, memory_device(request.device))
    return bind_executor(request)


def peak_bytes_of(executor: Executor) -> dict[str, int]:
    """Peak bytes by segment; ``ring`` in place of ``text`` where weights stream, ``host`` where values go there."""
    peaks = {name: usage.peak for name, usage in executor.segments.usage.items()}
    if has_host_copies(executor.bound.graph):
        peaks["host"] = host_bytes(executor.bound.graph)
    if not isinstance(executor, StreamedExecutor):
        return peaks
    return {"ring": executor.loop.arena.size} | {name: peak for name, peak in peaks.items() if name != "text"}


def device_allocations(executor: Executor, inputs: Tensors) -> int:
    """How often torch asks the device for memory in three runs."""
    stream = executor.bound.stream
    before = stream.allocation_count()
    for _ in range(3):
        executor.run(inputs, views=True)
    return stream.allocation_count() - before


def _weights_by_origin(graph: Graph, options: RunOptions) -> dict[str, Weights]:
    """Weights by their origin; of two with one name the later counts."""
    origins: dict[str, Weights] = {NUMBERS: _as_in_model(options.constants), MODEL: _as_in_model(options.stored)}
    if options.weights:
        return origins | {FILE: _weights_of_file(graph, options.weights, options.forms)}
    unknown = [name for name in options.names if name not in options.constants and name not in options.stored]
    return origins | {SEED: _as_in_model(random_weights(graph, unknown, options.forms, options.seed))}


def _as_in_model(tensors: Tensors) -> dict[str, Weight]:
    return {name: ModelTensor(tensor) for name, tensor in tensors.items()}


def _weights_of_file(graph: Graph, path: Path, forms: Tensors) -> dict[str, Weight]:
    """Weights of a file that the graph reads, in the model's memory order. Nothing is read yet."""
    stored = stored_tensors(path)
    if not any(name in stored for name in forms):
        name = next(iter(forms), None)
        raise InvalidConfig(
            f"nothing in {path} is a weight of this model",
            fix=f"give a file whose names are the model's, such as {name}" if name else "run it without a file",
            path=str(path),
        )
    return {name: file_source_like(stored[name], forms[name]) for name in _weight_names(graph) if name in stored}


def _count_origins(graph: Graph, origins: Mapping[str, Weights]) -> dict[str, int]:
    origin = {name: kind for kind, group in origins.items() for name in group}
    return dict(Counter(origin[name] for name in _weight_names(graph) if name in origin))


def _weight_names(graph: Graph) -> list[str]:
    """Parameters, constants and state that the graph reads."""
    read = frozenset(graph.values.buffer)
    rows = zip(graph.notes.buffers, graph.buffers.role, strict=True)
    return [name for buffer, (name, role) in enumerate(rows) if buffer in read and role in WEIGHT_ROLES]


def _clone(inputs: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in inputs.items()}


def _sanitize(
    program: Program, executor: Executor, weights: Weights, inputs: Tensors, options: RunOptions
) -> SanitizerReport:
    torch.manual_seed(options.seed)
    return run_sanitized(program, executor, weights, _clone(inputs), token=options.token)


def _check_against_reference(program: Program, run: PlannedRun) -> int:
    """How many outputs and states have the reference's bits: all of them, or ``PLAN_UNSOUND``."""
    graph, executor = program.graph, run.executor
    reference = ReferenceExecutor(program, run.weights)
    torch.manual_seed(run.seed)
    reference.run(executor.order, run.inputs)
    for position, (planned, value) in enumerate(zip(run.outputs, executor.outputs, strict=True)):
        require_same_bits(f"output {position}", planned, reference.value(value))
    states = [buffer for buffer, role in enumerate(graph.buffers.role) if role == STATE]
    for buffer in states:
        name = graph.notes.buffers[buffer]
        require_same_bits(f"state {name}", executor.state(name), reference.bytes(buffer))
    return len(run.outputs) + len(states)


def _check_against_ops(run: PlannedRun, outputs: Sequence[torch.Tensor], states: Tensors) -> int:
    """How many outputs and states have the bits of a run op by op, in which each fused op was near: all of them.

    Members one by one over a whole run are no measure: what rounding alone makes, such as a gradient that is zero, has
    other bits in each, and an optimizer may make much of it.
    """
    for position, (planned, expected) in enumerate(zip(run.outputs, outputs, strict=True)):
        require_same_bits(f"output {position}", planned, expected)
    for name, expected in states.items():
        require_same_bits(f"state {name}", run.executor.state(name), expected)
    return len(outputs) + len(states)


def require_same_bits(label: str, planned: torch.Tensor, expected: torch.Tensor) -> None:
    """``PLAN_UNSOUND`` where a planned tensor is not that of the reference executor."""
    fix = "please report it, with the model"
    if format_type(planned) != format_type(expected):
        raise PlanUnsound(f"{label} is {format_type(planned)}, and {format_type(expected)} in a plain run", fix=fix)
    differs = row_major_bytes(planned) != row_major_bytes(expected)
    if differs.any():
        count = f"{int(differs.sum())} of {differs.numel()} bytes differ"
        raise PlanUnsound(f"{label} is not what a plain run gives: {count}", fix=fix)
