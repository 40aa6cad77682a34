"""Runs steps on the state of sessions: which shape, which inputs, which tensors of whose arena."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from tmmu.engine.capture.encoder import EncodingShape
from tmmu.engine.capture.model_call import IDS, LAST, POSITIONS, SOURCE, SOURCE_LENGTHS
from tmmu.engine.capture.step import StepShape
from tmmu.engine.geometry import LOGITS, Geometry, StateLengths
from tmmu.engine.session import Session
from tmmu.engine.steps.planned_steps import Shape
from tmmu.engine.steps.steps_by_shape import StepsByShape
from tmmu.runtime.memory.segments import Segments

PREFILL_TOKENS: Final = (512, 256, 128, 64, 32, 16)
"""How many tokens of a prompt a step may read, most first; what is behind a prompt's end is padding."""


def prefill_shape(geometry: Geometry, tokens: int, ends: StateLengths) -> StepShape:
    """The shape of a step of one row that writes ``tokens`` positions, the last of them before the end of the text."""
    return StepShape(
        rows=1,
        tokens=tokens,
        kv_length=geometry.kv_length_for(ends.text),
        source_length=geometry.source_length_for(ends.source),
        is_fresh=geometry.recurs and tokens > 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfText:
    """A step of one session: its shape, its inputs, and how many tokens it reads; what is behind them is padding."""

    shape: StepShape
    inputs: Mapping[str, torch.Tensor]
    tokens: int


class StepRunner:
    """Of one stack, for one thread at a time, ``forget`` apart. ``buckets``: how many tokens of a prompt a step may
    read, most first.

    A session's state and length change together: a step that fails leaves both, unless its
    state recurs; then the session is broken.
    """

    def __init__(self, steps: StepsByShape, segments: Segments, buckets: Sequence[int]) -> None:
        self._steps, self._segments, self._buckets = steps, segments, tuple(buckets)
        self._geometry = steps.subject.geometry
        self._views: dict[tuple[str, Shape, int], tuple[torch.Tensor, ...]] = {}
        self._logits: dict[str, torch.Tensor] = {}

    def step_lengths(self, session: Session) -> StateLengths:
        """The KV length of a step that decodes the next token of a session, and the length of its source there."""
        geometry = self._geometry
        return StateLengths(
            geometry.kv_length_for(session.length + 1), geometry.source_length_for(session.source_length)
        )

    def encode(self, session: Session, source: torch.Tensor) -> None:
        """Reads a source, ``int64[n]`` tokens or features as the encoder has them; the text begins anew.

        A session whose encoding fails has no source.
        """
        positions = self._geometry.source_positions or source.shape[0]
        shape = EncodingShape(source_length=self.source_positions(source))
        device = self._segments.device
        if not self._geometry.source_positions:
            source = torch.nn.functional.pad(source, (0, shape.source_length - positions))
        inputs = {SOURCE: source.to(device)[None], SOURCE_LENGTHS: torch.tensor([positions], device=device)}
        session.length = session.source_length = 0
        self._steps.step(shape).run(inputs, [self.views_of(session, shape, 0)])
        session.source_length = positions

    def source_positions(self, source: torch.Tensor) -> int:
        """How many positions the step computes that encodes a source."""
        return self._geometry.source_length_for(self._geometry.source_positions or source.shape[0])

    def read_part(self, session: Session, tokens: Sequence[int]) -> int:
        """Reads the first of these tokens, as many as a step takes; returns their number."""
        return self.run_part(session, self.prompt_part(session, tokens))

    def run_part(self, session: Session, part: PartOfText) -> int:
        """Reads a part; returns the number of its tokens."""
        with self._break_on_failure([session]):
            logits = self._steps.step(part.shape).run(part.inputs, [self.views_of(session, part.shape, 0)])
        self.finish_part(session, part, logits)
        return part.tokens

    def finish_part(self, session: Session, part: PartOfText, logits: torch.Tensor) -> None:
        """Has a session be behind a part whose step has run; logits are ``dtype[1, vocabulary]``."""
        session.length += part.tokens
        self.logits_of(session).copy_(logits[0])

    def prompt_part(self, session: Session, tokens: Sequence[int]) -> PartOfText:
        """The step that reads the first of these tokens, as many as a step takes."""
        return self._part(session, tokens, self.next_positions(session, len(tokens)))

    def token_part(self, session: Session, token: int) -> PartOfText:
        """The step that decodes one token."""
        return self._part(session, [token], 1)

    def _part(self, session: Session, tokens: Sequence[int], positions: int) -> PartOfText:
        part = list(tokens[:positions])
        shape = prefill_shape(
            self._geometry, positions, StateLengths(session.length + positions, session.source_length)
        )
        device = self._segments.device
        inputs = {
            IDS: torch.tensor([part + [0] * (positions - len(part))], device=device),
            POSITIONS: torch.arange(session.length, session.length + positions, device=device)[None],
            SOURCE_LENGTHS: torch.tensor([session.source_length], device=device),
        }
        if positions > 1:
            inputs[LAST] = torch.tensor([len(part) - 1], device=device)
        return PartOfText(shape=shape, inputs=inputs, tokens=len(part))

    def decode(self, sessions: Sequence[Session], tokens: Sequence[int]) -> None:
        """Reads one token of each session, a power of two of them, for which a step has the same lengths."""
        lengths = self.step_lengths(sessions[0])
        shape = StepShape(rows=len(sessions), tokens=1, kv_length=lengths.text, source_length=lengths.source)
        step = self._steps.step(shape)
        inputs = {
            IDS: torch.tensor([[token] for token in tokens], device=self._segments.device),
            POSITIONS: torch.tensor([[session.length] for session in sessions], device=self._segments.device),
            SOURCE_LENGTHS: torch.tensor([session.source_length for session in sessions], device=self._segments.device),
        }
        rows = [self.views_of(session, shape, row) for row, session in enumerate(sessions)]
        with self._break_on_failure(sessions):
            logits = step.run(inputs, rows)
        for row, session in enumerate(sessions):
            session.length += 1
            self.logits_of(session).copy_(logits[row])

    def logits_of(self, session: Session) -> torch.Tensor:
        """``dtype[vocabulary]`` behind the last token of a session, in its arena."""
        if session.capability not in self._logits:
            form = self._geometry.logits
            assert form is not None
            offset = session.base + self._geometry.offsets(session.capacities)[LOGITS]
            self._logits[session.capability] = self._segments.slabs["data"].view(offset, form.shape, (1,), form.dtype)
        return self._logits[session.capability]

    def forget(self, session: Session) -> None:
        """Drops the tensors of a session that moves or ends."""
        self._logits.pop(session.capability, None)
        for key in tuple(self._views):  # a step of other sessions may add some meanwhile
            if key[0] == session.capability:
                del self._views[key]

    def next_positions(self, session: Session, remaining: int) -> int:
        """How many positions the next step of a prompt writes: the fewest that hold what remains, if there is room.

        Of state that recurs nothing is padded: the first step takes as many tokens as fill it, each other one token.
        """
        if self._geometry.recurs:
            fresh = [tokens for tokens in self._buckets if tokens <= remaining and session.length == 0]
            return fresh[0] if fresh else 1
        room = session.capacity - session.length
        fitting = [tokens for tokens in self._buckets if tokens <= room]
        enough = [tokens for tokens in fitting if tokens >= remaining]
        whole = [tokens for tokens in fitting if tokens <= remaining]
        return enough[-1] if enough else whole[0] if whole else 1

    def views_of(self, session: Session, shape: Shape, row: int) -> tuple[torch.Tensor, ...]:
        """What the step of a shape takes of the state of a session that is its ``row``."""
        key = (session.capability, shape, row)
        if key not in self._views:
            offsets = self._geometry.offsets(session.capacities)
            step = self._steps.step(shape)
            self._views[key] = step.row_views(row, self._segments.slabs["data"], session.base, offsets)
        return self._views[key]

    @contextmanager
    def _break_on_failure(self, sessions: Sequence[Session]) -> Iterator[None]:
        """Block whose failure leaves state that recurs between two tokens: such sessions are not used again."""
        try:
            yield
        except BaseException:
            for session in sessions:
                session.is_broken = session.is_broken or self._geometry.recurs
            raise
