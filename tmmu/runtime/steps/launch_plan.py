"""The tape: all that a step of the model runs, in as few pieces as can be."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, TypeAlias

from tmmu.runtime.kernels.code import Run, runner
from tmmu.runtime.steps.build import Step
from tmmu.runtime.steps.execution_stream import Lane

LEAST: Final = 3
"""Calls below which handing them over as one costs more than it saves."""
Hooks: TypeAlias = Mapping[int, Run]
"""By position, what runs before the step there; at the number of steps, what runs after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """``run`` does the steps ``[first, last)``; none, where it is a hook."""

    first: int
    last: int
    run: Run


def tape_of(steps: Sequence[Step], lane: Lane, *, replay: bool, hooks: Hooks | None = None) -> tuple[Piece, ...]:
    """Pieces that do all steps in order, and hooks between; as few as the lane can compose, if ``replay``."""
    calls = hooks or {}
    whole = [replay and step.settled and lane.speaks(step.code) for step in steps]
    cuts = sorted({0, len(steps), *(at for at in calls if 0 < at < len(steps))})
    pieces: list[Piece] = []
    for low, high in pairwise(cuts):
        pieces += _hook(calls, low)
        pieces += [piece for run in _runs(whole, low, high) for piece in _pieces(steps, lane, *run)]
    return (*pieces, *_hook(calls, len(steps)))


def one_by_one(steps: Sequence[Step], first: int, last: int) -> Iterator[Piece]:
    """A piece for each step that does anything."""
    return (Piece(first=at, last=at + 1, run=runner(steps[at].code)) for at in range(first, last) if steps[at].code)


def _hook(hooks: Hooks, at: int) -> list[Piece]:
    return [Piece(first=at, last=at, run=hooks[at])] if at in hooks else []


def _runs(whole: Sequence[bool], low: int, high: int) -> Iterator[tuple[int, int, bool]]:
    at = low
    for together, group in groupby(whole[low:high]):
        count = sum(1 for _ in group)
        yield at, at + count, together
        at += count


def _pieces(steps: Sequence[Step], lane: Lane, first: int, last: int, whole: bool) -> Iterator[Piece]:  # noqa: FBT001
    """One piece, or halves of it where the lane refuses the whole."""
    code = tuple(one for step in steps[first:last] for one in step.code)
    if not whole or len(code) < LEAST:
        yield from one_by_one(steps, first, last)
        return
    run = lane.composed(code)
    middle = (first + last) // 2
    if run is not None:
        yield Piece(first=first, last=last, run=run)
    elif first < middle:
        yield from _pieces(steps, lane, first, middle, whole)
        yield from _pieces(steps, lane, middle, last, whole)
    else:
        yield from one_by_one(steps, first, last)
