"""A program run in its plan, with weights and inputs of a seed or of a file: held against other runs, and timed."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from tmmu.errors import InvalidConfig, PlanUnsound
from tmmu.ir.graph import CONSTANT, PARAMETER, STATE, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.runtime.compare.bench import Measurement, Model, measure_variants
from tmmu.runtime.compare.eager import compare_with_eager, format_type
from tmmu.runtime.compare.random_tensors import random_inputs, random_weights
from tmmu.runtime.compare.reference import ReferenceExecutor
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.device.choose import memory_device
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.sizing import require_free
from tmmu.runtime.memory.tensor_views import device_bytes
from tmmu.runtime.ring.executor import RingOptions, StreamedExecutor, bind_ring
from tmmu.runtime.steps.unplanned import Unplanned
from tmmu.runtime.weights.load import Weight, load_tensor
from tmmu.runtime.weights.safetensors_files import stored_tensors
from tmmu.runtime.weights.sources import file_source_like

Tensors = Mapping[str, torch.Tensor]
Weights = Mapping[str, Weight]
WEIGHT_ROLES: Final = (PARAMETER, CONSTANT, STATE)
FILE, MODEL, NUMBERS, SEED = "file", "model", "numbers", "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run showed: the outputs' types, the bytes taken, what was allocated beside them.

    ``checked`` counts the outputs and states that were compared with a plain run, ``same`` those that have the
    bits of the model itself and ``near`` those that are merely close to it; ``sanitized`` counts comparisons of a
    buffer; 0 where none were asked for. A run is handed over in ``pieces``; for three more runs, torch asked the device
    for memory ``grown`` times. ``bench`` has a row for each way to run.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, int]
    """How many parameters and buffers come from a ``file``, the ``model`` (exported), its ``numbers``, the ``seed``."""
    steps: int
    peak_bytes: Mapping[str, int]
    input_bytes: int
    unplanned: tuple[Unplanned, ...]
    checked: int
    same: int
    near: int
    sanitized: int
    pieces: int
    grown: int
    bench: tuple[Measurement, ...]
    ring: Mapping[str, int]
    """What streaming took, over all runs: empty where all weights were in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is asked of a run, beside that it runs. ``stored`` are weights that came with the model.

    ``forms`` are tensors without memory: shape, stride and dtype of weights as the model has them, by name.
    """

    token: bytes
    names: Sequence[str]
    forms: Tensors
    constants: Tensors
    stored: Tensors
    seed: int
    weights: Path | None
    check: bool
    sanitize: bool
    bench: bool
    compiled: bool = True
    prefetch: bool = True


def run_planned(program: Program, plan: Plan, options: RunOptions, model: Callable[[], Model]) -> RunReport:
    """Bound and run. ``PLAN_UNSOUND`` where a check or the sanitizer finds a fault, ``CAPTURE_FAILED`` where the
    model itself gives something else.
    """
    device = torch.device(program.graph.target)
    require_free(device_bytes(plan), device)
    origins = _weights_by_origin(program.graph, options)
    weights = {name: weight for some in origins.values() for name, weight in some.items()}
    executor = _bind(program, plan, weights, options)
    inputs = random_inputs(executor.inputs, options.seed)
    sanitized = _sanitize(program, executor, weights, inputs, options) if options.sanitize else 0
    if options.sanitize and executor.states:
        executor.close()  # its state has moved
        executor = _bind(program, plan, weights, options)
    torch.manual_seed(options.seed)
    outputs = executor.run(_clone(inputs))
    checked = (
        _check_against_reference(program, executor, weights, inputs, outputs, options.seed) if options.check else 0
    )
    eager_model = model() if options.check or options.bench else None
    values = _LazyTensors(weights)
    same, close = (
        compare_with_eager(eager_model, executor, values, inputs, outputs, seed=options.seed)
        if eager_model and options.check
        else (0, 0)
    )
    report = RunReport(
        inputs=tuple(f"{spec.name} {format_type(inputs[spec.name])}" for spec in executor.inputs),
        outputs=tuple(map(format_type, outputs)),
        weights=_count_origins(program.graph, origins),
        steps=len(plan.order),
        peak_bytes=_peak_bytes(executor),
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs.values()),
        unplanned=executor.unplanned_allocations,
        checked=checked,
        same=same,
        near=close,
        sanitized=sanitized,
        pieces=executor.launch_count,
        grown=_device_allocations(executor, inputs) if options.bench else 0,
        bench=measure_variants(executor, eager_model, values, inputs, compiled=options.compiled)
        if eager_model and options.bench
        else (),
        ring=executor.figures if isinstance(executor, StreamedExecutor) else {},
    )
    executor.close()
    return report


def _bind(program: Program, plan: Plan, weights: Weights, options: RunOptions) -> Executor:
    """With all weights in place, or with a ring where the plan has one, which reads files straight into its image."""
    device = torch.device(program.graph.target)
    if plan.ring is None:
        return bind(program, plan, token=options.token, weights=weights, device=device)
    streaming = RingOptions(prefetch=options.prefetch, owns_device=True)
    return bind_ring(
        program, plan, token=options.token, weights=weights, device=memory_device(device), options=streaming
    )


def _peak_bytes(executor: Executor) -> dict[str, int]:
    """The most bytes of each segment; weights that stream have their ring for a segment."""
    peaks = {name: usage.peak for name, usage in executor.segments.usage.items()}
    if not isinstance(executor, StreamedExecutor):
        return peaks
    return {"ring": executor.loop.arena.size} | {name: peak for name, peak in peaks.items() if name != "text"}


def _device_allocations(executor: Executor, inputs: Tensors) -> int:
    stream = executor.bound.stream
    before = stream.allocation_count()
    for _ in range(3):
        executor.run(inputs, views=True)
    return stream.allocation_count() - before


def _weights_by_origin(graph: Graph, options: RunOptions) -> dict[str, Weights]:
    """Weights by where they come from; of those with one name the last counts."""
    origins: dict[str, Weights] = {NUMBERS: options.constants, MODEL: options.stored}
    if options.weights:
        return origins | {FILE: _weights_of_file(graph, options.weights, options.forms)}
    unknown = [name for name in options.names if name not in options.constants and name not in options.stored]
    return origins | {SEED: random_weights(graph, unknown, options.seed)}


def _weights_of_file(graph: Graph, path: Path, forms: Tensors) -> dict[str, Weight]:
    """Those that the graph reads, in the order of memory that it wants: they stay there until they are put in place."""
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
    origin = {name: kind for kind, some in origins.items() for name in some}
    return dict(Counter(origin[name] for name in _weight_names(graph) if name in origin))


def _weight_names(graph: Graph) -> list[str]:
    """Of what is read, and nobody gives at a call."""
    read = frozenset(graph.values.buffer)
    rows = zip(graph.notes.buffers, graph.buffers.role, strict=True)
    return [name for buffer, (name, role) in enumerate(rows) if buffer in read and role in WEIGHT_ROLES]


class _LazyTensors(Mapping[str, torch.Tensor]):
    """Weights as tensors, one at a time."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> torch.Tensor:
        return load_tensor(self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _clone(inputs: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in inputs.items()}


def _sanitize(program: Program, executor: Executor, weights: Weights, inputs: Tensors, options: RunOptions) -> int:
    torch.manual_seed(options.seed)
    return run_sanitized(program, executor, weights, _clone(inputs), token=options.token).compared


def _check_against_reference(  # noqa: PLR0913, PLR0917
    program: Program,
    executor: Executor,
    weights: Weights,
    inputs: Tensors,
    outputs: tuple[torch.Tensor, ...],
    seed: int,
) -> int:
    reference = ReferenceExecutor(program, weights)
    torch.manual_seed(seed)
    reference.run(executor.order, inputs)
    for position, (planned, value) in enumerate(zip(outputs, executor.outputs, strict=True)):
        _require_same_bits(f"output {position}", planned.contiguous(), reference.value(value).contiguous())
    states = [buffer for buffer, role in enumerate(program.graph.buffers.role) if role == STATE]
    for buffer in states:
        name = program.graph.notes.buffers[buffer]
        _require_same_bits(f"state {name}", executor.state(name), reference.bytes(buffer))
    return len(outputs) + len(states)


def _require_same_bits(label: str, planned: torch.Tensor, expected: torch.Tensor) -> None:
    if format_type(planned) != format_type(expected):
        raise PlanUnsound(
            f"{label} is {format_type(planned)}, and {format_type(expected)} in a plain run",
            fix="please report it, with the model",
        )
    planned_bytes, expected_bytes = (tensor.reshape(-1).view(torch.uint8) for tensor in (planned, expected))
    if not planned_bytes.equal(expected_bytes):
        raise PlanUnsound(
            f"{label} is not what a plain run gives: {int((planned_bytes != expected_bytes).sum())} of {planned_bytes.numel()} bytes differ",
            fix="please report it, with the model",
        )
