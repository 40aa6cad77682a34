"""One step timed and weighed in each way there is to run it, side by side."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final, Protocol

import torch

from tmmu.ir.graph import INPUT
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.steps.execution_stream import Lane

PLANNED, CALLS, EAGER, COMPILED = "tmmu", "tmmu, no replay", "eager", "torch.compile"
ROUNDS: Final = 9
SECONDS: Final = 0.2
"""For one way over all rounds, at least; a step that takes longer runs once a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
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
    def names(self) -> tuple[str, ...]:
        """Its inputs."""

    @property
    def held(self) -> int:
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

    def compiled(self) -> Callable[[], Any]:
        """One step, compiled."""


def measured(
    executor: Executor,
    model: Model,
    weights: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    *,
    compiled: bool,
) -> tuple[Measured, ...]:
    """The plan, the plan without replay, the model eager and, if asked, compiled by torch, in turns."""
    model.load(weights, dict(zip(model.names, inputs.values(), strict=True)))
    calls = Executor(executor.bound, replay=False)
    ways: dict[str, Callable[[], Any]] = {
        PLANNED: lambda: executor.run(inputs, views=True),
        CALLS: lambda: calls.run(inputs, views=True),
        EAGER: model.step,
    }
    failed = _with_compiled(ways, model) if compiled else {}
    times = _times(ways, executor.bound.lane)
    rows = []
    for way, step in ways.items():
        count, peak = allocations_of(step, executor.bound.lane)
        held = planned_bytes(executor) if way in (PLANNED, CALLS) else model.held
        rows.append(Measured(way=way, milliseconds=times[way], allocations=count, peak_bytes=held + peak))
    return (*rows, *(Measured(way=way, failed=why) for way, why in failed.items()))


def _with_compiled(ways: dict[str, Callable[[], Any]], model: Model) -> dict[str, str]:
    """One way more, or why there is none: a compiler, a toolchain, whatever it lacks."""
    try:
        step = model.compiled()
        step()
    except Exception as error:  # noqa: BLE001 - see above
        return {COMPILED: " ".join(f"{type(error).__name__}: {error}".split())[:120]}
    ways[COMPILED] = step
    return {}


def allocations_of(step: Callable[[], Any], lane: Lane) -> tuple[int, int]:
    """How often a step asks torch's allocator for memory, and the most bytes that it holds of it at once."""
    step()
    with lane.counting() as seen, seen.of_step(0):
        kept = step()
    del kept
    return seen.counts(0)


def planned_bytes(executor: Executor) -> int:
    """All that an executor holds between steps: its segments, and the room where inputs are copied to."""
    graph = executor.bound.graph
    staged = [size for size, role in zip(graph.buffers.bytes, graph.buffers.role, strict=True) if role == INPUT]
    return sum(staged) + sum(usage.peak for usage in executor.segments.usage.values())


def _times(ways: Mapping[str, Callable[[], Any]], lane: Lane) -> dict[str, float]:
    """Milliseconds of a step of each, at the median of rounds in which each has its turn."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, step in ways.items():
            best, start = float("inf"), perf_counter()
            while best == float("inf") or perf_counter() - start < SECONDS / ROUNDS:
                begun = perf_counter()
                step()
                lane.settle()
                best = min(best, perf_counter() - begun)
            found[way].append(best * 1e3)
    return {way: median(taken) for way, taken in found.items()}
