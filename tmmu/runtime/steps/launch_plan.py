"""The launch plan: the steps of a run, in order, in as few launches as the execution stream can capture.

Invariant: the launches cover every step once, in order. A run of steps that the stream cannot capture as one is halved,
and its halves again, down to single calls from Python; a half is shorter than the whole, so this ends.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, TypeAlias

import torch

from tmmu.runtime.kernels.code import Runnable, runnable_with_arguments
from tmmu.runtime.steps.build import CompiledStep
from tmmu.runtime.steps.execution_stream import ExecutionStream

MIN_CAPTURED_CALLS: Final = 3
"""Calls below which capturing them costs more than it saves."""
Hooks: TypeAlias = Mapping[int, Runnable]
"""By position, what runs before the step at it; at the number of steps, after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """``run`` executes the steps ``[first, last)``; a hook has ``first == last``, and takes no arguments."""

    first: int
    last: int
    run: Runnable


def launch_plan_of(  # noqa: PLR0913 - steps and a stream, and what each binding settles
    steps: Sequence[CompiledStep],
    stream: ExecutionStream,
    *,
    replay: bool,
    hooks: Hooks | None = None,
    single: Container[int] = (),
    arguments: Sequence[torch.Tensor] = (),
    span: tuple[int, int] | None = None,
) -> tuple[Launch, ...]:
    """Launches of all steps in order, or of those of the half-open ``span``, with the hooks between them.

    Steps are captured only with ``replay``. Each position in ``single`` has a launch of its own, to be exchanged. Every
    launch of steps takes a tensor in place of each of ``arguments``.
    """
    hooks = hooks or {}
    start, end = span or (0, len(steps))

    def can_capture(position: int) -> bool:
        step = steps[position]
        return replay and step.is_settled and position not in single and stream.can_capture(step.code)

    cuts = sorted({start, end, *(position for position in hooks if start < position < end)})
    launches: list[Launch] = []
    for low, high in pairwise(cuts):
        launches += _hook(hooks, low)
        for first, last, is_capturable in _uniform_runs(can_capture, low, high):
            launches += _launches(steps, stream if is_capturable else None, first, last, arguments)
    return (*launches, *_hook(hooks, end))


def single_launches(
    steps: Sequence[CompiledStep], first: int, last: int, arguments: Sequence[torch.Tensor] = ()
) -> Iterator[Launch]:
    """A launch for each step of ``[first, last)`` that has code."""
    codes = ((index, steps[index].code) for index in range(first, last))
    return (
        Launch(first=index, last=index + 1, run=runnable_with_arguments(code, arguments))
        for index, code in codes
        if code
    )


def _hook(hooks: Hooks, position: int) -> list[Launch]:
    return [Launch(first=position, last=position, run=hooks[position])] if position in hooks else []


def _uniform_runs(can_capture: Callable[[int], bool], low: int, high: int) -> Iterator[tuple[int, int, bool]]:
    """(first, last, is capturable) of each longest run of steps alike in that."""
    start = low
    for is_capturable, group in groupby(map(can_capture, range(low, high))):
        count = sum(1 for _ in group)
        yield start, start + count, is_capturable
        start += count


def _launches(
    steps: Sequence[CompiledStep],
    stream: ExecutionStream | None,
    first: int,
    last: int,
    arguments: Sequence[torch.Tensor],
) -> Iterator[Launch]:
    """One launch on ``stream``, or those of its halves where that cannot capture it; without a stream, single calls."""
    code = tuple(instr for step in steps[first:last] for instr in step.code)
    middle = (first + last) // 2
    if stream is None or len(code) < MIN_CAPTURED_CALLS:
        yield from single_launches(steps, first, last, arguments)
    elif run := stream.capture(code, arguments):
        yield Launch(first=first, last=last, run=run)
    elif middle == first:
        yield from single_launches(steps, first, last, arguments)
    else:
        yield from _launches(steps, stream, first, middle, arguments)
        yield from _launches(steps, stream, middle, last, arguments)
