"""The tape: all that a step of the model runs, in as few pieces as can be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tmmu.runtime.code import Run, runner
from tmmu.runtime.interpreter import interpreted, speakable
from tmmu.runtime.steps import Step

LEAST: int = 3
"""Calls below which entering the interpreter costs more than it saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """``run`` does the steps ``[first, last)``."""

    first: int
    last: int
    run: Run


def tape_of(steps: Sequence[Step], *, replay: bool) -> tuple[Piece, ...]:
    """Pieces that do all steps in order: runs of them in torch's interpreter, if ``replay``, the others one by one."""
    return tuple(piece for run in _runs(steps, replay=replay) for piece in _pieces(steps, run))


def one_by_one(steps: Sequence[Step], first: int, last: int) -> Iterator[Piece]:
    """A piece for each step that does anything."""
    return (Piece(first=at, last=at + 1, run=runner(steps[at].code)) for at in range(first, last) if steps[at].code)


def _runs(steps: Sequence[Step], *, replay: bool) -> Iterator[tuple[int, int, bool]]:
    at = 0
    for whole, group in groupby(steps, lambda step: replay and step.settled and speakable(step.code)):
        count = sum(1 for _ in group)
        yield at, at + count, whole
        at += count


def _pieces(steps: Sequence[Step], run: tuple[int, int, bool]) -> Iterator[Piece]:
    first, last, whole = run
    code = tuple(one for step in steps[first:last] for one in step.code)
    together = interpreted(code) if whole and len(code) >= LEAST else None
    if together is None:
        yield from one_by_one(steps, first, last)
    else:
        yield Piece(first=first, last=last, run=together)
