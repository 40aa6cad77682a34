"""One step timed and weighed in each way there is to run it, side by side."""

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
"""For one way over all rounds, at least; a step that takes longer runs once a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A way to run one step: milliseconds at the median, and what the allocator was asked for in a step.

    ``peak_bytes`` is all that is held at once: weights, inputs, state and what the step adds. ``failed`` says why there
    are no figures.
    """

    way: str
    milliseconds: float = 0.0
    allocations: int = 0
    peak_bytes: int = 0
    failed: str = ""


class Model(Protocol):
    """The model itself."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Its inputs."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of its weights, state and inputs."""

    @property
    def states(self) -> Mapping[str, torch.Tensor]:
        """What it keeps between steps, by a graph's names: weights, buffers, what an optimizer or a cache remembers."""

    def load(self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        """It holds these."""

    def run(self) -> list[torch.Tensor]:
        """What one step gives, each tensor once."""

    def step(self) -> Any:
        """One step."""

    def compile_step(self) -> Callable[[], Any]:
        """One step, compiled."""


def measure_variants(
    executor: Executor,
    model: Model,
    weights: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    *,
    compiled: bool,
) -> tuple[Measurement, ...]:
    """The plan, the plan without replay, the model eager and, if asked, compiled by torch, in turns."""
    model.load(weights, dict(zip(model.input_names, inputs.values(), strict=True)))
    calls = Executor(executor.bound, replay=False)
    variants: dict[str, Callable[[], Any]] = {
        PLANNED: lambda: executor.run(inputs, views=True),
        CALLS: lambda: calls.run(inputs, views=True),
        EAGER: model.step,
    }
    failed = _add_compiled(variants, model) if compiled else {}
    times = _times(variants, executor.bound.stream)
    rows = []
    for way, step in variants.items():
        count, peak = allocations_of(step, executor.bound.stream)
        held_bytes = planned_bytes(executor) if way in (PLANNED, CALLS) else model.resident_bytes
        rows.append(Measurement(way=way, milliseconds=times[way], allocations=count, peak_bytes=held_bytes + peak))
    return (*rows, *(Measurement(way=way, failed=why) for way, why in failed.items()))


def _add_compiled(variants: dict[str, Callable[[], Any]], model: Model) -> dict[str, str]:
    """One way more, or why there is none: a compiler, a toolchain, whatever it lacks."""
    try:
        step = model.compile_step()
        step()
    except Exception as error:  # noqa: BLE001 - see above
        return {COMPILED: " ".join(f"{type(error).__name__}: {error}".split())[:120]}
    variants[COMPILED] = step
    return {}


def allocations_of(step: Callable[[], Any], stream: ExecutionStream) -> tuple[int, int]:
    """How often a step asks torch's allocator for memory, and the most bytes that it holds of it at once."""
    step()
    with stream.count_allocations() as counter, counter.step_scope(0):
        results = step()
    del results
    return counter.counts(0)


def planned_bytes(executor: Executor) -> int:
    """All that an executor holds between steps: its segments, and the room where inputs are copied to."""
    graph = executor.bound.graph
    staged = [size for size, role in zip(graph.buffers.bytes, graph.buffers.role, strict=True) if role == INPUT]
    return sum(staged) + sum(usage.peak for usage in executor.segments.usage.values())


def _times(variants: Mapping[str, Callable[[], Any]], stream: ExecutionStream) -> dict[str, float]:
    """Milliseconds of a step of each, at the median of rounds in which each has its turn."""
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
    return {way: median(taken) for way, taken in samples.items()}
