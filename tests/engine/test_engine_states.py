"""Whatever is asked of an engine in whatever order: a model of a few lines knows each session's tokens.

After each rule: logits are those of a run of the session's tokens alone; arenas are disjoint; every byte outside of
them is zero; and the bytes of a session change by its own steps and by nothing else.
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
from tmmu.engine.geometry import StateLengths
from tmmu.engine.pause.paused_step import PausedStep
from tmmu.engine.session import Session
from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown

VOCABULARY = 20
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)
NEAR = 1e-4
ROOM = 3
LONG = 10**6
"""Seconds: nobody leaves for nobody's sake while a rule looks at arenas."""
HOST = 4 * 96 * 2 * 2 * 16 * 4
"""Bytes of four sessions of the longest text."""


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Shared:
    """One engine for all examples: binding is what takes time. Its sessions are closed between them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY, n_positions=96)
        self.model = transformers.GPT2LMHeadModel(config).eval()
        self.time = Time()
        self.engine = Engine(self.model, max_tokens=96, max_batch=4, max_sessions=ROOM, host=HOST,
                             time_to_live=LONG, clock=self.time)  # fmt: skip
        self.known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, tokens: list[int]) -> torch.Tensor:
        key = tuple(tokens)
        if key not in self.known:
            self.known[key] = reference_logits(self.model, tokens)
        return self.known[key]


@cache
def shared() -> Shared:
    return Shared()


class EngineMachine(RuleBasedStateMachine):
    """The model: the tokens that each session has read, those of its paused step, and when its lease ends."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.shared = shared()
        self.engine = self.shared.engine
        self.tokens: dict[Session, list[int]] = {}
        self.ends: dict[Session, float] = {}
        self.bytes: dict[Session, torch.Tensor | None] = {}
        self.paused: dict[Session, tuple[PausedStep, list[int]]] = {}
        self.kept: dict[Session, dict[str, torch.Tensor]] = {}

    def teardown(self) -> None:
        for session in self.engine.sessions:
            session.close()

    def changed(self, *sessions: Session) -> None:
        for session in sessions:
            # It may have made room for another one of the same call.
            self.bytes[session] = self.arena(session).clone() if session.is_resident else None
        self.renewed(*sessions)

    def renewed(self, *sessions: Session) -> None:
        """A step was asked for, whether or not there was room for it."""
        for session in sessions:
            if session in self.ends:
                self.ends[session] = self.shared.time.now + 10

    def arena(self, session: Session) -> torch.Tensor:
        assert session.is_resident
        return self.engine.segments.slabs["data"].bytes(session.base, session.arena_bytes)

    def live(self, session: Session) -> torch.Tensor:
        """The bytes of all positions that a session has read."""
        arena, geometry = self.arena(session), self.engine.geometry
        offsets = geometry.offsets(session.capacities)
        sizes = {name: geometry.by_name[name].bytes_for(session.lengths) for name in offsets}
        return torch.cat([arena[offset : offset + sizes[name]] for name, offset in offsets.items()])

    def is_as_before(self, session: Session) -> bool:
        """Whether an arena has the bytes that the session's own last step left, or, after a swap, those that live."""
        before, arena = self.bytes[session], self.arena(session)
        if before is None or arena.equal(before):
            return True
        geometry = self.engine.geometry
        for name, offset in geometry.offsets(session.capacities).items():
            live, whole = (geometry.by_name[name].bytes_for(n) for n in (session.lengths, session.capacities))
            if not arena[offset : offset + live].equal(before[offset : offset + live]):
                return False
            if arena[offset + live : offset + whole].any():
                return False
        return True

    def near(self, logits: torch.Tensor, session: Session) -> None:
        assert logits.sub(self.shared.logits(self.tokens[session])).abs().max() < NEAR

    def alive(self, session: Session) -> bool:
        """Whether a session is open and not paused; one that is not is refused."""
        if session in self.paused:
            for call in (lambda: session.decode(1), session.fork, lambda: self.engine.swap_out(session)):
                with pytest.raises(InvalidConfig, match="paused behind"):
                    call()
            return False
        if session in self.tokens:
            return True
        with pytest.raises(SessionUnknown):
            session.decode(1)
        return False

    @rule(target=sessions, size=st.sampled_from([1, 64, 65, 96]), leased=st.booleans(), keep=st.sampled_from([0, 300]))
    def open(self, size: int, leased: bool, keep: int) -> Any:
        self.expire()
        capacity = 64 if size <= 64 else 96
        lengths = StateLengths(capacity, 0, keep)
        fits = self.engine.geometry.arena_bytes(lengths) <= self.engine.usage["data"].largest_free
        try:
            session = self.engine.open(size, keep=keep, lease=10 if leased else None)
        except SegmentFull:
            assert not fits
            return multiple()
        assert session.capacity == capacity
        self.tokens[session], self.kept[session] = [], {}
        if leased:
            self.ends[session] = 0
        self.changed(session)
        assert not self.arena(session).any()
        return session

    @initialize(target=sessions, sizes=st.lists(st.sampled_from([64, 96]), min_size=1, max_size=3), tokens=TOKENS)
    def begin(self, sizes: list[int], tokens: list[int]) -> Any:
        found = [self.open(size, leased=False, keep=300) for size in sizes]
        for session in found:
            self.prefill(session, tokens)
        return multiple(*found)

    @rule(session=sessions, tokens=TOKENS)
    def prefill(self, session: Session, tokens: list[int]) -> None:
        if not self.alive(session):
            return
        if session.length + len(tokens) > session.capacity:
            with pytest.raises(InvalidConfig, match="do not fit"):
                session.prefill(tokens)
            return
        try:
            logits = session.prefill(tokens)
        except SegmentFull as error:
            self.has_no_room(error)
            self.renewed(session)
            return
        self.tokens[session] += tokens
        self.near(logits, session)
        self.changed(session)

    @rule(chosen=st.lists(sessions, min_size=1, max_size=5, unique=True), token=st.integers(0, VOCABULARY - 1))
    def decode(self, chosen: list[Session], token: int) -> None:
        rows = [s for s in chosen if s in self.tokens and s not in self.paused and s.length < s.capacity]
        if not rows:
            return
        try:
            self.engine.decode(rows, [token] * len(rows))
        except SegmentFull as error:
            self.has_no_room(error)  # those for whom there was room have run
            self.renewed(*rows)
            rows = [session for session in rows if session.length > len(self.tokens[session])]
        for session in rows:
            self.tokens[session].append(token)
            assert session.logits is not None
            self.near(session.logits, session)
        self.changed(*rows)

    @rule(target=sessions, session=sessions)
    def fork(self, session: Session) -> Any:
        if not self.alive(session):
            return multiple()
        try:
            other = session.fork()
        except SegmentFull:
            return multiple()
        self.tokens[other], self.kept[other] = list(self.tokens[session]), dict(self.kept[session])
        self.changed(other)
        if session.is_resident:
            assert self.live(other).equal(self.live(session))
        if 0 < other.length < other.capacity:
            self.decode([other], 1)
        return other

    @rule(session=sessions)
    def swap_out(self, session: Session) -> None:
        if not self.alive(session) or not session.is_resident:
            return
        counts = self.engine.host.counts
        moved = counts.bytes_out
        resident = [other for other in self.tokens if other.is_resident]
        live = sum(len(self.live(other)) for other in resident)  # whoever is idle is copied early
        try:
            self.engine.swap_out(session)
        except SegmentFull as error:
            assert error.fields["segment"] == "host"  # noqa: PT017 - it may have room, too
            return
        assert counts.bytes_out - moved <= live
        assert not session.is_resident

    @rule(
        session=sessions, name=st.sampled_from("ab"), size=st.sampled_from([0, 40, 200, 400]), fill=st.integers(0, 99)
    )
    def keep(self, session: Session, name: str, size: int, fill: int) -> None:
        if session not in self.tokens:
            return
        kept, value = self.kept[session], torch.full((size,), fill, dtype=torch.uint8)
        sizes = [size, *(len(other) for known, other in kept.items() if known != name)]
        padded = sum(-(-each // 256) * 256 for each in sizes)
        self.renewed(session)
        try:
            session.kept[name] = value
        except SegmentFull as error:
            if error.fields["segment"] == session.arena:
                assert padded > session.capacities.kept
            else:
                self.has_no_room(error)
        else:
            assert padded <= session.capacities.kept
            kept.pop(name, None)
            kept[name] = value
            self.changed(session)

    @rule(session=sessions, name=st.sampled_from("ab"))
    def take_out(self, session: Session, name: str) -> None:
        if name not in self.kept.get(session, {}):
            return
        self.renewed(session)
        try:
            assert session.kept[name].equal(self.kept[session][name])
            del session.kept[name]
        except SegmentFull as error:
            self.has_no_room(error)
        else:
            del self.kept[session][name]
            self.changed(session)

    def has_no_room(self, error: SegmentFull) -> None:
        """The host tier is full; or nobody can leave for it, since all who have an arena are paused."""
        assert error.fields["segment"] == "host" or self.paused

    @rule(session=sessions, tokens=TOKENS, layer=st.sampled_from([0, 1]), is_token=st.booleans())
    def pause(self, session: Session, tokens: list[int], layer: int, is_token: bool) -> None:
        tokens = tokens[:1] if is_token else tokens
        if not self.alive(session) or session.length + len(tokens) > session.capacity:
            return
        try:
            paused = session.run_until(f"transformer.h.{layer}", tokens[0] if is_token else tokens)
        except SegmentFull as error:
            self.has_no_room(error)
            self.renewed(session)
            return
        read = session.length - len(self.tokens[session])  # a prompt that took several steps
        self.tokens[session] += tokens[:read]
        self.paused[session] = paused, tokens[read:]
        assert paused.values[f"transformer.h.{layer}"].isfinite().all()
        self.changed(session)

    @rule(session=sessions)
    def resume(self, session: Session) -> None:
        if session not in self.paused:
            return
        paused, tokens = self.paused.pop(session)
        logits = paused.resume()
        assert paused.bytes_restored == paused.bytes_saved
        self.tokens[session] += tokens
        self.near(logits, session)
        self.changed(session)

    @rule(session=sessions)
    def cancel(self, session: Session) -> None:
        if session in self.paused:
            self.paused.pop(session)[0].cancel()

    @rule(session=consumes(sessions))
    def close(self, session: Session) -> None:
        session.close()
        self.gone(session)

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.shared.time.now += seconds

    @rule()
    def expire(self) -> None:
        over = [session for session, end in self.ends.items() if end <= self.shared.time.now]
        assert self.engine.reclaim_expired() == len(over)
        for session in over:
            self.gone(session)

    def gone(self, session: Session) -> None:
        for table in (self.tokens, self.ends, self.bytes, self.paused, self.kept):
            table.pop(session, None)

    @invariant()
    def arenas_have_their_own_bytes(self) -> None:
        assert set(self.engine.sessions) == set(self.tokens)
        whole = self.engine.segments.slabs["data"].bytes(0, self.engine.usage["data"].capacity)
        end, used = 0, 0
        assert all(session.length == len(tokens) for session, tokens in self.tokens.items())
        assert {session for session in self.tokens if session.paused} == set(self.paused)
        swapping = swapping_of(self.engine)
        swapping.wait_until_still()
        with swapping.still():
            assert self.engine.host.used == swapping.copied_bytes <= HOST
        for session, kept in self.kept.items():
            assert list(session.kept) == list(kept)
        resident = [session for session in self.tokens if session.is_resident]
        for session in sorted(resident, key=lambda session: session.base):
            assert session.base >= end
            assert not whole[end : session.base].any()
            assert self.is_as_before(session)
            end, used = session.base + session.arena_bytes, used + session.arena_bytes
        assert not whole[end:].any()
        assert self.engine.usage["data"].used == used


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=12, stateful_step_count=30)


class LongMachine(EngineMachine):
    """The same, for 10^5 steps."""


TestEngineForLong = pytest.mark.long(LongMachine.TestCase)
TestEngineForLong.settings = settings(max_examples=1000, stateful_step_count=100)
