"""The tape: all that a step of the model runs, in as few pieces as can be."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, TypeAlias

from tmmu.runtime.kernels.code import Runnable, runnable_of
from tmmu.runtime.steps.build import CompiledStep
from tmmu.runtime.steps.execution_stream import ExecutionStream

MIN_CAPTURED_CALLS: Final = 3
"""Calls below which handing them over as one costs more than it saves."""
Hooks: TypeAlias = Mapping[int, Runnable]
"""By position, what runs before the step there; at the number of steps, what runs after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """``run`` does the steps ``[first, last)``; none, where it is a hook."""

    first: int
    last: int
    run: Runnable


def launch_plan_of(
    steps: Sequence[CompiledStep], stream: ExecutionStream, *, replay: bool, hooks: Hooks | None = None
) -> tuple[Launch, ...]:
    """Pieces that do all steps in order, and hooks between; as few as the lane can compose, if ``replay``."""
    positions = hooks or {}
    capturable = [replay and step.is_settled and stream.can_capture(step.code) for step in steps]
    cuts = sorted({0, len(steps), *(position for position in positions if 0 < position < len(steps))})
    launches: list[Launch] = []
    for low, high in pairwise(cuts):
        launches += _hook(positions, low)
        launches += [
            launch for run in _capturable_runs(capturable, low, high) for launch in _launches(steps, stream, *run)
        ]
    return (*launches, *_hook(positions, len(steps)))


def single_launches(steps: Sequence[CompiledStep], first: int, last: int) -> Iterator[Launch]:
    """A piece for each step that does anything."""
    return (
        Launch(first=index, last=index + 1, run=runnable_of(steps[index].code))
        for index in range(first, last)
        if steps[index].code
    )


def _hook(hooks: Hooks, position: int) -> list[Launch]:
    return [Launch(first=position, last=position, run=hooks[position])] if position in hooks else []


def _capturable_runs(capturable: Sequence[bool], low: int, high: int) -> Iterator[tuple[int, int, bool]]:
    start = low
    for is_capturable, group in groupby(capturable[low:high]):
        count = sum(1 for _ in group)
        yield start, start + count, is_capturable
        start += count


def _launches(
    steps: Sequence[CompiledStep], stream: ExecutionStream, first: int, last: int, is_capturable: bool
) -> Iterator[Launch]:  # noqa: FBT001
    """One piece, or halves of it where the lane refuses the whole."""
    code = tuple(instr for step in steps[first:last] for instr in step.code)
    if not is_capturable or len(code) < MIN_CAPTURED_CALLS:
        yield from single_launches(steps, first, last)
        return
    run = stream.capture(code)
    middle = (first + last) // 2
    if run is not None:
        yield Launch(first=first, last=last, run=run)
    elif first < middle:
        yield from _launches(steps, stream, first, middle, is_capturable)
        yield from _launches(steps, stream, middle, last, is_capturable)
    else:
        yield from single_launches(steps, first, last)
