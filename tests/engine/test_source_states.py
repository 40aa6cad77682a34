"""Whatever sessions with a source are asked for in whatever order: logits are those of their source and tokens alone.

In double precision, so that a position of another source, or of the one before, is never within rounding.
"""

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from tests.engine.models import reference_logits
from tests.engine.swaps import swapping_of
from tmmu.engine.engine import Engine
from tmmu.engine.session import Session
from tmmu.errors import InvalidConfig, SegmentFull

VOCABULARY = 20
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)
SOURCES = st.sampled_from([[1], [2, 3], [4] * 63, [5, 6] * 32, [7] * 65, list(range(VOCABULARY)) * 4])
NEAR = 1e-9
ROOM = 3


class Shared:
    """One engine for all examples: binding is what takes time. Its sessions are closed between them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = transformers.T5Config(
            d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, vocab_size=VOCABULARY, decoder_start_token_id=0
        )
        self.model = transformers.T5ForConditionalGeneration(config).double().eval()
        self.engine = Engine(self.model, max_tokens=64, max_source=96, max_batch=4, max_sessions=ROOM, host="64MiB")
        self.known: dict[tuple[tuple[int, ...], tuple[int, ...]], torch.Tensor] = {}

    def logits(self, source: list[int], tokens: list[int]) -> torch.Tensor:
        key = tuple(source), tuple(tokens)
        if key not in self.known:
            self.known[key] = reference_logits(self.model, tokens, source)
        return self.known[key]


@cache
def shared() -> Shared:
    return Shared()


class SourceMachine(RuleBasedStateMachine):
    """The model: the source and the tokens that each session has read; no source before the first."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.shared = shared()
        self.engine = self.shared.engine
        self.read: dict[Session, tuple[list[int], list[int]]] = {}

    def teardown(self) -> None:
        for session in self.engine.sessions:
            session.close()

    def near(self, session: Session, logits: torch.Tensor) -> None:
        assert logits.sub(self.shared.logits(*self.read[session])).abs().max() < NEAR

    @rule(target=sessions, source=st.sampled_from([64, 65]))
    def open(self, source: int) -> Any:
        try:
            session = self.engine.open(source=source)
        except SegmentFull:
            return multiple()
        self.read[session] = [], []
        return session

    @initialize(target=sessions)
    def begin(self) -> Any:
        found = [self.open(64), self.open(65)]
        for session, source in zip(found, ([1, 2], [3]), strict=True):
            self.encode(session, source)
            self.prefill(session, [0])
        return multiple(*found)

    @rule(session=sessions, source=SOURCES)
    def encode(self, session: Session, source: list[int]) -> None:
        if len(source) > session.capacities.source:
            with pytest.raises(InvalidConfig, match="does not fit"):
                session.encode(source)
            return
        session.encode(source)
        self.read[session] = source, []

    @rule(session=sessions, tokens=TOKENS)
    def prefill(self, session: Session, tokens: list[int]) -> None:
        source, read = self.read[session]
        if not source or len(read) + len(tokens) > session.capacity:
            with pytest.raises(InvalidConfig, match=r"has no source|do not fit"):
                session.prefill(tokens)
            return
        self.read[session] = source, [*read, *tokens]
        self.near(session, session.prefill(tokens))

    @rule(chosen=st.lists(sessions, min_size=1, max_size=4, unique=True), token=st.integers(0, VOCABULARY - 1))
    def decode(self, chosen: list[Session], token: int) -> None:
        rows = [s for s in chosen if self.read[s][0] and s.length < s.capacity]
        if not rows:
            return
        logits = self.engine.decode(rows, [token] * len(rows))
        for session, row in zip(rows, logits, strict=True):
            source, read = self.read[session]
            self.read[session] = source, [*read, token]
            self.near(session, row)

    @rule(target=sessions, session=sessions)
    def fork(self, session: Session) -> Any:
        try:
            other = session.fork()
        except SegmentFull:
            return multiple()
        self.read[other] = self.read[session]
        return other

    @rule(session=sessions)
    def swap_out(self, session: Session) -> None:
        self.engine.swap_out(session)
        assert not session.is_resident

    @rule(session=consumes(sessions))
    def close(self, session: Session) -> None:
        session.close()
        del self.read[session]

    @invariant()
    def lengths_are_those_that_were_read(self) -> None:
        for session, (source, tokens) in self.read.items():
            assert (session.source_length, session.length) == (len(source), len(tokens))
        swapping = swapping_of(self.engine)
        swapping.wait_until_still()
        resident = sum(session.arena_bytes for session in self.read if session.is_resident)
        assert self.engine.usage["data"].used == resident


TestSources = SourceMachine.TestCase
TestSources.settings = settings(max_examples=8, stateful_step_count=30)


class LongSourceMachine(SourceMachine):
    """The same, for 10^4 steps."""


TestSourcesForLong = pytest.mark.long(LongSourceMachine.TestCase)
TestSourcesForLong.settings = settings(max_examples=200, stateful_step_count=50)
