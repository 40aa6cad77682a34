"""Times one step, and counts its memory, in each variant: planned, planned without capture, eager, compiled by torch.

The variants alternate within each round, so that a machine that slows down slows all of them, and a variant's time is
the median over rounds of its fastest step in the round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final, Protocol

import torch

from tmmu.ir.graph import INPUT
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.steps.execution_stream import ExecutionStream

PLANNED, CALLS, EAGER, COMPILED = "tmmu", "tmmu, no replay", "eager", "torch.compile"
ROUNDS: Final = 9
SECONDS: Final = 0.2
"""At least, for a variant over all rounds; a step that takes longer than its share runs once a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One variant of a step: milliseconds, allocations of a step, and the most bytes live at once.

    ``peak_bytes`` includes weights, inputs and state. ``failed`` says why there are no figures. The names of the fields
    are keys in the output of ``tmmu run --json``.
    """

    way: str
    milliseconds: float = 0.0
    allocations: int = 0
    peak_bytes: int = 0
    failed: str = ""


class TimedModel(Protocol):
    """A model in memory of its own, run by PyTorch."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of its inputs, in a graph's order."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of its weights, state and inputs."""

    def load(self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        """Copies these values in."""

    def step(self) -> Any:
        """Runs one step."""


class ComparisonModel(TimedModel, Protocol):
    """A model whose results and states can be looked at."""

    @property
    def states(self) -> Mapping[str, torch.Tensor]:
        """What it keeps between steps, by a graph's names: weights, buffers, optimizer state, caches."""

    def run(self) -> list[torch.Tensor]:
        """Runs one step; its outputs, each tensor once."""

    def compile_step(self) -> Callable[[], Any]:
        """A callable that runs one step compiled by ``torch.compile``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """``compile_step`` makes the variant of ``torch.compile``, where there is one; ``make_ready`` comes before each
    planned step and belongs to it."""

    compile_step: Callable[[], Callable[[], Any]] | None = None
    make_ready: Callable[[], object] = lambda: None


def measure_variants(
    executor: Executor,
    model: TimedModel,
    weights: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    options: BenchOptions,
) -> tuple[Measurement, ...]:
    """A row per variant."""
    model.load(weights, dict(zip(model.input_names, inputs.values(), strict=True)))
    calls = Executor(executor.bound, replay=False)
    variants: dict[str, Callable[[], Any]] = {
        PLANNED: lambda: (options.make_ready(), executor.run(inputs, views=True))[1],
        CALLS: lambda: (options.make_ready(), calls.run(inputs, views=True))[1],
        EAGER: model.step,
    }
    failed = _add_compiled(variants, options.compile_step) if options.compile_step else {}
    times = _times(variants, executor.bound.stream)
    rows = []
    for way, step in variants.items():
        count, peak = allocations_of(step, executor.bound.stream)
        held_bytes = planned_bytes(executor) if way in (PLANNED, CALLS) else model.resident_bytes
        rows.append(Measurement(way=way, milliseconds=times[way], allocations=count, peak_bytes=held_bytes + peak))
    return (*rows, *(Measurement(way=way, failed=why) for way, why in failed.items()))


def _add_compiled(
    variants: dict[str, Callable[[], Any]], compile_step: Callable[[], Callable[[], Any]]
) -> dict[str, str]:
    """Adds the variant of ``torch.compile``; by its name, why it cannot run where it cannot."""
    try:
        step = compile_step()
        step()
    except Exception as error:  # noqa: BLE001 - a missing toolchain, an unsupported model: whatever it lacks
        return {COMPILED: " ".join(f"{type(error).__name__}: {error}".split())[:120]}
    variants[COMPILED] = step
    return {}


def allocations_of(step: Callable[[], Any], stream: ExecutionStream) -> tuple[int, int]:
    """(allocations, most bytes live at once) of a step, by torch's allocator. Runs it twice: the first fills caches."""
    step()
    with stream.count_allocations() as counter, counter.step_scope(0):
        results = step()
    del results
    return counter.counts(0)


def planned_bytes(executor: Executor) -> int:
    """Bytes that an executor holds between steps: its segments, and the memory that inputs are copied to."""
    buffers = executor.bound.graph.buffers
    inputs = sum(size for size, role in zip(buffers.bytes, buffers.role, strict=True) if role == INPUT)
    return inputs + sum(usage.peak for usage in executor.segments.usage.values())


def _times(variants: Mapping[str, Callable[[], Any]], stream: ExecutionStream) -> dict[str, float]:
    """Milliseconds of a step, by variant."""
    samples: dict[str, list[float]] = {way: [] for way in variants}
    for _ in range(ROUNDS):
        for way, step in variants.items():
            best, start = float("inf"), perf_counter()
            while best == float("inf") or perf_counter() - start < SECONDS / ROUNDS:
                begun = perf_counter()
                step()
                stream.synchronize()
                best = min(best, perf_counter() - begun)
            samples[way].append(best * 1e3)
    return {way: median(times) for way, times in samples.items()}
