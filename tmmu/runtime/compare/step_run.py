"""Runs of a user's step inside its plan, one after another, beside the step as it is.

The step as it is runs once first, which makes what later steps find (optimizer state, gradients, averages). From what
it left, the plan takes one step, or, to be checked, two; the step itself takes as many, on the same inputs and random
state, and after each all that persists is compared: tensors and Python's numbers that it reaches, what it returned, the
random state. Python's numbers of a planned run are those of the trace, which ran the same Python.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.ir.plan import Plan
from tmmu.ir.program import PlacedWindow, Program, RepeatedStep, StepRun
from tmmu.runtime.compare.bench import BenchOptions, Measurement, TimedModel, measure_variants
from tmmu.runtime.compare.eager import Row, count_same, format_type
from tmmu.runtime.compare.generator_states import GeneratorStates
from tmmu.runtime.compare.random_tensors import valid_inputs
from tmmu.runtime.compare.reference import ReferenceExecutor
from tmmu.runtime.compare.run import (
    MODEL,
    NUMBERS,
    WEIGHT_ROLES,
    RunOptions,
    RunReport,
    bind_resident,
    device_allocations,
    peak_bytes_of,
    require_same_bits,
)
from tmmu.runtime.compare.sanitize import run_sanitized
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.execute.inputs import input_specs
from tmmu.runtime.memory.sizing import require_free
from tmmu.runtime.memory.slab import Slab, with_lazy_bits
from tmmu.runtime.memory.tensor_views import device_bytes, storage_bytes
from tmmu.runtime.weights.load import Weight, load_into
from tmmu.runtime.weights.sources import ModelTensor, tensor_source

Tensors = Mapping[str, torch.Tensor]
BytesOf = Callable[[int], torch.Tensor]
"""The whole memory of a buffer, ``uint8[bytes]``."""


class ReachedByName(Protocol):
    """What a step reaches, by name."""

    @property
    def tensors(self) -> Tensors:
        """Strided ones."""

    @property
    def numbers(self) -> Mapping[str, Any]:
        """Python's."""

    @property
    def generators(self) -> Mapping[str, torch.Generator]:
        """Those that are not torch's default ones."""


class StepAsItIs(TimedModel, Protocol):
    """The user's step on real tensors, run by PyTorch."""

    updates: int
    """How often the last run called ``step`` of an optimizer."""

    @property
    def returned_numbers(self) -> Mapping[str, Any]:
        """Python's numbers that the last run returned."""

    def run(self, inputs: Tensors) -> Tensors:
        """One step; the tensors that it returns, by path."""

    def reach(self) -> ReachedByName:
        """What it reaches now."""


def run_own_step(
    program: Program, plan: Plan, repeated: RepeatedStep, options: RunOptions, step: StepAsItIs
) -> RunReport:
    """Binds the plan, runs it once, or twice where it is checked, and compares as the options ask.

    ``PLAN_UNSOUND`` where it differs from the reference or the sanitizer finds a fault, ``CAPTURE_FAILED`` where it
    differs from the step itself, ``UNSUPPORTED_OP`` where it reads a tensor to which no name leads.
    """
    device = torch.device(program.graph.target)
    require_free(device_bytes(plan), device)
    specs = input_specs(program.graph, device)
    seeds = (options.seed + number for number in range(3))
    batches = [valid_inputs(program, specs, seed, options.integers) | dict(options.inputs) for seed in seeds]
    _run_itself(step, batches[0], repeated)
    weights = _weights_of(repeated, step.reach().tensors, options)
    request = BindRequest(
        program=program,
        plan=plan,
        token=options.token,
        weights=weights,
        device=device,
        variants=[run.calls for run in repeated.runs],
    )
    executor = bind_resident(request)
    sanitized = 0
    if options.sanitize:
        sanitized = _sanitize(request, executor, repeated, step, batches[1])
        executor.close()  # the sanitized run has advanced its state
        executor = bind_resident(request)
    pair = _Pair(program, executor, repeated, step)
    counts = pair.check(batches[1:], weights) if options.check else pair.run(batches[1])
    report = replace(_report(executor, batches[1], pair.outputs, len(repeated.found)), **asdict(counts))
    if options.bench:
        grown = device_allocations(executor, batches[1])
        report = replace(report, grown=grown, bench=_bench(executor, repeated, step, batches[1]))
    executor.close()
    return replace(report, sanitized=sanitized)


def _bench(executor: Executor, repeated: RepeatedStep, step: StepAsItIs, inputs: Tensors) -> tuple[Measurement, ...]:
    """A row per variant: steps one after another, all with the numbers of one."""
    make_ready = partial(_make_ready, repeated, len(repeated.runs) - 1, executor.bound.views.bytes)
    return measure_variants(executor, step, {}, inputs, BenchOptions(make_ready=make_ready))


@dataclass(slots=True)
class _Counts:
    """What the comparisons of a run found; the fields of ``RunReport``."""

    runs: int = 1
    checked: int = 0
    same: int = 0
    near: int = 0
    numbers: int = 0


def _report(executor: Executor, inputs: Tensors, outputs: Sequence[torch.Tensor], from_step: int) -> RunReport:
    """Of a run that was not compared; so many of its ``weights`` are ``from_step``."""
    before = sum(role in WEIGHT_ROLES for role in executor.bound.graph.buffers.role)
    return RunReport(
        inputs=tuple(f"{spec.name} {format_type(inputs[spec.name])}" for spec in executor.inputs),
        outputs=tuple(map(format_type, outputs)),
        weights={MODEL: from_step, NUMBERS: before - from_step},
        steps=len(executor.order),
        peak_bytes=peak_bytes_of(executor),
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs.values()),
        unplanned=executor.unplanned_allocations,
        checked=0,
        same=0,
        near=0,
        sanitized=0,
        pieces=executor.launch_count,
        grown=0,
        bench=(),
        ring={},
    )


def _run_itself(step: StepAsItIs, inputs: Tensors, repeated: RepeatedStep) -> Tensors:
    """One step as it is; ``CAPTURE_FAILED`` where it left out an update that the plan takes."""
    results = step.run(dict(zip(step.input_names, inputs.values(), strict=True)))
    if step.updates != repeated.updates:
        raise CaptureFailed(
            f"the step itself updates {step.updates} times, and the plan {repeated.updates}: a scaler leaves out an "
            "update whose gradients overflow",
            fix="begin with a smaller scale (init_scale of the GradScaler), or take other inputs by --seed-weights",
        )
    return results


def _weights_of(repeated: RepeatedStep, tensors: Tensors, options: RunOptions) -> dict[str, Weight]:
    """What the step finds, by the names of buffers: tensors that are there, and constants that it makes of numbers."""
    weights: dict[str, Weight] = {name: ModelTensor(tensor) for name, tensor in options.constants.items()}
    for name in repeated.found.values():
        if name not in tensors:
            raise UnsupportedOp(
                f"the step reads {name}, and the step itself, loaded again, has no tensor of this name",
                fix="keep it in an attribute, a list or a dict that the step reaches, or plan it without running",
                name=name,
            )
        weights[name] = ModelTensor(storage_bytes(tensors[name]))
    return weights


def _sanitize(
    request: BindRequest, executor: Executor, repeated: RepeatedStep, step: StepAsItIs, inputs: Tensors
) -> int:
    """Comparisons of a buffer in a sanitized run of the first step."""
    before = _states(executor, step, repeated)
    before.set(repeated.generators)
    copies = {name: tensor.clone() for name, tensor in inputs.items()}
    compared = run_sanitized(request.program, executor, request.weights, copies, token=request.token).compared
    before.set(repeated.generators)
    return compared


def _states(executor: Executor, step: StepAsItIs, repeated: RepeatedStep) -> GeneratorStates:
    """Of all generators from which a step may draw, as the step itself finds them now."""
    names = [*repeated.generators]
    return GeneratorStates.of(executor.bound.stream.generators, step.reach().generators if names else {}, names)


class _Pair:
    """The step as it is and the planned one, before the same step. ``outputs`` are those of the last planned run."""

    def __init__(self, program: Program, executor: Executor, repeated: RepeatedStep, step: StepAsItIs) -> None:
        self._program, self._executor, self._repeated, self._step = program, executor, repeated, step
        self.outputs: tuple[torch.Tensor, ...] = ()

    def run(self, inputs: Tensors) -> _Counts:
        """The next step inside the plan alone."""
        _states(self._executor, self._step, self._repeated).set(self._repeated.generators)
        self._run_planned(0, inputs)
        return _Counts()

    def check(self, batches: Sequence[Tensors], weights: Mapping[str, Weight]) -> _Counts:
        """A step on each batch, planned, in plain memory, and as it is; all that persists is compared after each."""
        counts = _Counts(runs=len(batches))
        reference = ReferenceExecutor(self._program, weights)
        numbers = self._numbers()
        for number, inputs in enumerate(batches):
            run = self._repeated.runs[number]
            before = _states(self._executor, self._step, self._repeated)
            results = _run_itself(self._step, inputs, self._repeated)
            after = _states(self._executor, self._step, self._repeated)
            before.set(self._repeated.generators)
            self._run_reference(reference, number, inputs)
            before.set(self._repeated.generators)
            self._run_planned(number, inputs)
            after.require_reached(self._repeated.generators, f"after step {number + 2}")
            counts.checked += self._require_reference(reference, run)
            same, near = count_same([*self._rows(run, results, number)], "the step itself gives")
            counts.same, counts.near = counts.same + same, counts.near + near
            counts.numbers += self._compare_numbers(run, numbers, number)
        return counts

    def _run_planned(self, number: int, inputs: Tensors) -> None:
        executor = self._executor
        executor.take_numbers(number)
        _make_ready(self._repeated, number, executor.bound.views.bytes)
        copies = {spec.name: inputs[spec.name].clone() for spec in executor.inputs}
        self.outputs = executor.run(copies)

    def _run_reference(self, reference: ReferenceExecutor, number: int, inputs: Tensors) -> None:
        own = self._repeated.runs[number].calls
        calls = tuple(own.get(op, call) for op, call in enumerate(reference.program.calls))
        reference.program = replace(reference.program, calls=calls)
        _make_ready(self._repeated, number, reference.bytes)
        reference.run(self._executor.order, inputs)

    def _require_reference(self, reference: ReferenceExecutor, run: StepRun) -> int:
        """How many results and states have the reference's bits: all of them, or ``PLAN_UNSOUND``."""
        places = {placement: label for label, placement in _places(run)}
        for placement, label in places.items():
            planned = _tensor_at(placement, self._executor.bound.views.bytes)
            require_same_bits(label, planned, _tensor_at(placement, reference.bytes))
        return len(places)

    def _rows(self, run: StepRun, results: Tensors, number: int) -> Iterator[Row]:
        """Each planned tensor that persists or was returned, once, beside that of the step itself."""
        reached = self._step.reach().tensors
        if reached.keys() != run.left.keys():
            names = sorted(reached.keys() ^ run.left.keys())
            owner = "the step itself" if names[0] in reached else "the plan"
            raise CaptureFailed(
                f"after step {number + 2} only {owner} has {names[0]}",
                fix="a step that depends on time, on a file or on what tensors hold has no one graph; else report it",
            )
        itself = {f"output {name}".rstrip(): tensor for name, tensor in results.items()} | {
            f"state {name}": tensor for name, tensor in reached.items()
        }
        seen: set[PlacedWindow] = set()
        for label, placement in _places(run):
            if placement not in seen:
                seen.add(placement)
                planned = _tensor_at(placement, self._executor.bound.views.bytes)
                # An optimizer's count of steps may lie on the host, and does on the device of a plan.
                yield f"{label} after step {number + 2}", planned, itself[label].detach().to(planned.device)

    def _numbers(self) -> dict[str, Any]:
        """Python's numbers that the step itself reaches or has returned."""
        return dict(self._step.reach().numbers) | dict(self._step.returned_numbers)

    def _compare_numbers(self, run: StepRun, before: dict[str, Any], number: int) -> int:
        """How many of Python's numbers the step changed, all to those of the trace; they are then those ``before``."""
        itself = self._numbers()
        common = [name for name in run.numbers if name in itself]
        for name in common:
            if repr(run.numbers[name]) != repr(itself[name]):
                raise CaptureFailed(
                    f"{name} after step {number + 2} is {run.numbers[name]!r}, and {itself[name]!r} in the step itself",
                    fix="a step that depends on time, on a file or on chance has no one graph; else report it",
                )
        changed = [name for name in common if repr(before.get(name)) != repr(itself[name])]
        before.clear()
        before.update(itself)
        return len(changed)


def _places(run: StepRun) -> Iterator[tuple[str, PlacedWindow]]:
    """(label, place) of what a run returned, and of each tensor that it left."""
    for name, placement in run.results:
        yield f"output {name}".rstrip(), placement
    for name, place in run.left.items():
        if place is not None:
            yield f"state {name}", place


def _tensor_at(place: PlacedWindow, bytes_of: BytesOf) -> torch.Tensor:
    slab = Slab.over(bytes_of(place.buffer))
    tensor = slab.view(place.offset, place.shape, place.stride, getattr(torch, place.dtype))
    return with_lazy_bits(tensor, conj=place.conj, neg=place.neg)


def _make_ready(repeated: RepeatedStep, number: int, bytes_of: BytesOf) -> None:
    """Puts what a run finds in its place: tensors that the run before put in place of others, and new constants."""
    if number:
        sources = set(repeated.carried.values())
        # A buffer that is read and written here, where tensors take turns, is copied first.
        kept = {source: bytes_of(source).clone() for source in sources & repeated.carried.keys()}
        for buffer, source in repeated.carried.items():
            bytes_of(buffer).copy_(kept[source] if source in kept else bytes_of(source))
    for buffer, value in repeated.runs[number].constants.items():
        place = bytes_of(buffer)
        load_into(tensor_source("a constant of the step", value, place.numel()), place)
