"""Parts of prompts that yield: read piece by piece, and between two pieces whoever is to go first goes first.

A part that yields is a paused run: its live bytes stay in the stack until somebody else needs their place, its bits are
those of a whole step. The session is needed all the while, so its state stays on the device. What is given up half way
has written positions behind the session's length alone, which the next step writes again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tmmu.engine.pause.pauses import Pauses
from tmmu.engine.session import Session
from tmmu.engine.steps.step_runner import PartOfText, StepRunner
from tmmu.runtime.execute.pieces import PausedRun, PieceRunner

PIECES: Final = 4
"""How many pieces a step is read in, of as many ops each: who waits does so for a quarter of it."""
FEWEST_POSITIONS: Final = 64
"""A smaller step takes little longer than one that decodes, and runs as a whole."""


@dataclass(slots=True, kw_only=True)
class _BegunPart:
    """A part that has yielded, and where it may do so again."""

    part: PartOfText
    run: PausedRun
    cuts: list[int]


class PartsInPieces:
    """Begun parts in one stack, one at most for each session, whose calls come one after the other."""

    def __init__(self, pauses: Pauses, runner: StepRunner) -> None:
        self._pauses, self._runner = pauses, runner
        self._begun: dict[str, _BegunPart] = {}
        self.pieces_run = 0
        """In all calls so far."""
        self.yields = 0
        """How often a part has let others go first."""

    def has_begun(self, session: Session) -> bool:
        """Whether a part of its prompt waits between two pieces."""
        return session.capability in self._begun

    def positions_of_piece(self, session: Session, remaining: int) -> int:
        """How many positions the next piece of a prompt computes, by the part of the step's ops that it has."""
        begun = self._begun.get(session.capability)
        positions = self._runner.next_positions(session, remaining) if begun is None else begun.part.shape.tokens
        return positions if positions < FEWEST_POSITIONS else positions // PIECES

    def read(self, session: Session, tokens: Sequence[int], must_yield: Callable[[], bool]) -> int:
        """Reads the first of these tokens, as many as a step takes; their number, or 0 where it yields before its end.

        A session whose part has yielded is called with the same tokens again. A part that fails is given up.
        """
        begun = self._begun.get(session.capability)
        try:
            if begun is None:
                part = self._runner.prompt_part(session, tokens)
                if part.shape.tokens < FEWEST_POSITIONS:
                    return self._runner.run_part(session, part)
                return self._go_on(session, self._start(session, part), must_yield)
            return self._go_on(session, begun, must_yield, is_resumed=True)
        except BaseException:
            self.drop(session)
            raise

    def _start(self, session: Session, part: PartOfText) -> _BegunPart:
        pieces = self._pauses.piece_runner(part.shape)
        first, *others = cuts_of(pieces)
        self.pieces_run += 1
        run = pieces.start(self._pauses.inputs_of(part), first, state=self._state_of(session, part))
        begun = self._begun[session.capability] = _BegunPart(part=part, run=run, cuts=others)
        return begun

    def _go_on(
        self, session: Session, begun: _BegunPart, must_yield: Callable[[], bool], *, is_resumed: bool = False
    ) -> int:
        """Runs to the end, or until it must yield; who is resumed runs a piece at least, whoever waits."""
        state = self._state_of(session, begun.part)
        while is_resumed or not must_yield():
            is_resumed = False
            self.pieces_run += 1
            if begun.cuts:
                begun.run.advance(begun.cuts.pop(0), state=state)
                continue
            (logits,) = begun.run.finish(state=state)
            del self._begun[session.capability]
            self._runner.finish_part(session, begun.part, logits)
            return begun.part.tokens
        self.yields += 1
        return 0

    def _state_of(self, session: Session, part: PartOfText) -> tuple[torch.Tensor, ...]:
        return self._runner.views_of(session, part.shape, 0)

    def drop(self, session: Session) -> None:
        """Gives up what a session has begun; nothing where there is none."""
        begun = self._begun.pop(session.capability, None)
        if begun is not None:
            begun.run.discard()


def cuts_of(pieces: PieceRunner) -> tuple[int, ...]:
    """Positions behind which a step may yield: they make pieces of as many ops each."""
    ops = len(pieces.executor.order)
    return tuple(sorted({ops * piece // PIECES for piece in range(1, PIECES)} - {0}))
