"""A program run in its plan, with weights and inputs of a seed or of a file: held against other runs, and timed."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from tmmu.errors import InvalidConfig, PlanUnsound
from tmmu.ir.calls import Program
from tmmu.ir.graph import CONSTANT, PARAMETER, STATE, Graph
from tmmu.ir.plan import Plan
from tmmu.runtime.compare.bench import Measured, Model, measured
from tmmu.runtime.compare.eager import compared, type_of
from tmmu.runtime.compare.random_tensors import random_inputs, random_weights
from tmmu.runtime.compare.reference import Plain
from tmmu.runtime.compare.sanitize import sanitized_run
from tmmu.runtime.device.choose import memory_device
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.sizing import require_free
from tmmu.runtime.memory.tensor_views import taken_bytes
from tmmu.runtime.ring.executor import StreamedExecutor, Streaming, bind_ring
from tmmu.runtime.steps.unplanned import Unplanned
from tmmu.runtime.weights.load import Weight, tensor_of
from tmmu.runtime.weights.safetensors_files import stored_tensors
from tmmu.runtime.weights.sources import laid_out

Tensors = Mapping[str, torch.Tensor]
Weights = Mapping[str, Weight]
WEIGHT_ROLES: Final = (PARAMETER, CONSTANT, STATE)
FILE, MODEL, NUMBERS, SEED = "file", "model", "numbers", "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
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
    bench: tuple[Measured, ...]
    ring: Mapping[str, int]
    """What streaming took, over all runs: empty where all weights were in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsing:
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


def rehearse(program: Program, plan: Plan, asked: Rehearsing, model: Callable[[], Model]) -> Rehearsal:
    """Bound and run. ``PLAN_UNSOUND`` where a check or the sanitizer finds a fault, ``CAPTURE_FAILED`` where the
    model itself gives something else.
    """
    device = torch.device(program.graph.target)
    require_free(taken_bytes(plan), device)
    origins = _origins(program.graph, asked)
    weights = {name: weight for some in origins.values() for name, weight in some.items()}
    executor = _executor(program, plan, weights, asked)
    inputs = random_inputs(executor.inputs, asked.seed)
    sanitized = _sanitized(program, executor, weights, inputs, asked) if asked.sanitize else 0
    if asked.sanitize and executor.states:
        executor.close()  # its state has moved
        executor = _executor(program, plan, weights, asked)
    torch.manual_seed(asked.seed)
    outputs = executor.run(_copied(inputs))
    checked = _checked(program, executor, weights, inputs, outputs, asked.seed) if asked.check else 0
    original = model() if asked.check or asked.bench else None
    values = _Values(weights)
    same, near = (
        compared(original, executor, values, inputs, outputs, seed=asked.seed) if original and asked.check else (0, 0)
    )
    found = Rehearsal(
        inputs=tuple(f"{one.name} {type_of(inputs[one.name])}" for one in executor.inputs),
        outputs=tuple(map(type_of, outputs)),
        weights=_counted(program.graph, origins),
        steps=len(plan.order),
        peak_bytes=_peaks(executor),
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs.values()),
        unplanned=executor.unplanned,
        checked=checked,
        same=same,
        near=near,
        sanitized=sanitized,
        pieces=executor.pieces,
        grown=_grown(executor, inputs) if asked.bench else 0,
        bench=measured(executor, original, values, inputs, compiled=asked.compiled) if original and asked.bench else (),
        ring=executor.figures if isinstance(executor, StreamedExecutor) else {},
    )
    executor.close()
    return found


def _executor(program: Program, plan: Plan, weights: Weights, asked: Rehearsing) -> Executor:
    """With all weights in place, or with a ring where the plan has one, which reads files straight into its image."""
    device = torch.device(program.graph.target)
    if plan.ring is None:
        return bind(program, plan, token=asked.token, weights=weights, device=device)
    how = Streaming(prefetch=asked.prefetch, owned=True)
    return bind_ring(program, plan, token=asked.token, weights=weights, device=memory_device(device), streaming=how)


def _peaks(executor: Executor) -> dict[str, int]:
    """The most bytes of each segment; weights that stream have their ring for a segment."""
    peaks = {name: usage.peak for name, usage in executor.segments.usage.items()}
    if not isinstance(executor, StreamedExecutor):
        return peaks
    return {"ring": executor.loop.arena.size} | {name: peak for name, peak in peaks.items() if name != "text"}


def _grown(executor: Executor, inputs: Tensors) -> int:
    lane = executor.bound.lane
    before = lane.taken()
    for _ in range(3):
        executor.run(inputs, views=True)
    return lane.taken() - before


def _origins(graph: Graph, asked: Rehearsing) -> dict[str, Weights]:
    """Weights by where they come from; of those with one name the last counts."""
    given: dict[str, Weights] = {NUMBERS: asked.constants, MODEL: asked.stored}
    if asked.weights:
        return given | {FILE: _of_file(graph, asked.weights, asked.forms)}
    unknown = [name for name in asked.names if name not in asked.constants and name not in asked.stored]
    return given | {SEED: random_weights(graph, unknown, asked.seed)}


def _of_file(graph: Graph, path: Path, forms: Tensors) -> dict[str, Weight]:
    """Those that the graph reads, in the order of memory that it wants: they stay there until they are put in place."""
    found = stored_tensors(path)
    if not any(name in found for name in forms):
        name = next(iter(forms), None)
        raise InvalidConfig(
            f"nothing in {path} is a weight of this model",
            fix=f"give a file whose names are the model's, such as {name}" if name else "run it without a file",
            path=str(path),
        )
    return {name: laid_out(found[name], forms[name]) for name in _weight_names(graph) if name in found}


def _counted(graph: Graph, origins: Mapping[str, Weights]) -> dict[str, int]:
    origin = {name: kind for kind, some in origins.items() for name in some}
    return dict(Counter(origin[name] for name in _weight_names(graph) if name in origin))


def _weight_names(graph: Graph) -> list[str]:
    """Of what is read, and nobody gives at a call."""
    read = frozenset(graph.values.buffer)
    rows = zip(graph.notes.buffers, graph.buffers.role, strict=True)
    return [name for buffer, (name, role) in enumerate(rows) if buffer in read and role in WEIGHT_ROLES]


class _Values(Mapping[str, torch.Tensor]):
    """Weights as tensors, one at a time."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> torch.Tensor:
        return tensor_of(self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _copied(inputs: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in inputs.items()}


def _sanitized(program: Program, executor: Executor, weights: Weights, inputs: Tensors, asked: Rehearsing) -> int:
    torch.manual_seed(asked.seed)
    return sanitized_run(program, executor, weights, _copied(inputs), token=asked.token).compared


def _checked(  # noqa: PLR0913, PLR0917
    program: Program,
    executor: Executor,
    weights: Weights,
    inputs: Tensors,
    outputs: tuple[torch.Tensor, ...],
    seed: int,
) -> int:
    plain = Plain(program, weights)
    torch.manual_seed(seed)
    plain.run(executor.order, inputs)
    for position, (found, value) in enumerate(zip(outputs, executor.outputs, strict=True)):
        _demand(f"output {position}", found.contiguous(), plain.value(value).contiguous())
    states = [buffer for buffer, role in enumerate(program.graph.buffers.role) if role == STATE]
    for buffer in states:
        name = program.graph.notes.buffers[buffer]
        _demand(f"state {name}", executor.state(name), plain.bytes(buffer))
    return len(outputs) + len(states)


def _demand(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    if type_of(found) != type_of(wanted):
        raise PlanUnsound(
            f"{what} is {type_of(found)}, and {type_of(wanted)} in a plain run", fix="please report it, with the model"
        )
    one, other = (tensor.reshape(-1).view(torch.uint8) for tensor in (found, wanted))
    if not one.equal(other):
        raise PlanUnsound(
            f"{what} is not what a plain run gives: {int((one != other).sum())} of {one.numel()} bytes differ",
            fix="please report it, with the model",
        )
