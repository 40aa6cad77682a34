"""The engine: one model, its weights once, and sessions whose state lies in arenas of their own.

    engine = tmmu.Engine(model, budget="2GB")
    with engine.open(max_tokens=256) as session:
        for token in session.generate(ids, max_new_tokens=64): ...

Text holds the weights, the stack is used in turn, and the rest of the budget is the data segment, where each session
reserves its bytes when it is opened. A session of an encoder-decoder reads a source first (``encode``).

Invariants: the lock is taken when a step begins and ends, and while sessions come and go; who has it, and has waited
until a session is in no step (``StepClaims``), has its state alone; a session waits for one request at a time; an arena
is all zeros when it is reserved, and again before it is free; the state of a session is written by its own steps alone.
With a host tier sessions have arenas while they need them: a session is needed from when it is asked for a step until
it has no other to do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from hmac import compare_digest
from itertools import count
from secrets import token_hex
from threading import RLock
from time import monotonic
from typing import Any, Final

import torch

from tmmu.engine.arguments import bytes_of, clock_of, require_tokens, time_of, tokens_of, whole_of
from tmmu.engine.capture.step import StepModel, probe
from tmmu.engine.checkpoint import Checkpoint, load_checkpoint
from tmmu.engine.fixed_arenas import FixedArenas
from tmmu.engine.geometry import Geometry, StateLengths
from tmmu.engine.leases import Clock, LeaseTable
from tmmu.engine.limits import DEFAULT_SESSIONS, engine_limits
from tmmu.engine.pause.parts_in_pieces import PartsInPieces
from tmmu.engine.pause.paused_step import PausedStep
from tmmu.engine.pause.pauses import PauseCounts, PauseRequest, Pauses, require_module, require_paused
from tmmu.engine.queue.fair_queue import FairQueue, queue_of
from tmmu.engine.queue.terms import QueueTerms, queue_terms
from tmmu.engine.requests.request_runner import StepRequest
from tmmu.engine.requests.session_requests import SessionRequests
from tmmu.engine.session import Session
from tmmu.engine.session_checks import require_no_pause, require_own, require_room, require_session
from tmmu.engine.source import room_for_source, source_tensor
from tmmu.engine.step_claims import StepClaims
from tmmu.engine.step_stack import StackStream, StepStack
from tmmu.engine.steps.build import build_steps
from tmmu.engine.steps.step_runner import StepRunner
from tmmu.engine.steps.step_summary import StepSummary
from tmmu.engine.steps.steps_by_shape import StepsByShape
from tmmu.engine.swap.build import TIME_TO_LIVE, build_swapping, headroom_bytes, seconds_of
from tmmu.engine.swap.swapping import SessionSwapping
from tmmu.errors import InvalidConfig, SessionUnknown, UnsupportedOp
from tmmu.runtime.memory.sizing import device_of
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, Usage, round_up, sum_usage

_NUMBERS: Final = count(1)
"""Of arenas, in the order in which sessions of any engine are opened."""


class Engine:
    """Sessions of one model on one device; threads that use it share steps.

    ``model``: a model or configuration of transformers, or a folder. ``weights``: tensors by name, in place of the
    model's. ``budget``: bytes, or text such as ``2GB``, of weights, stack and sessions together. ``max_tokens``: the
    longest session. ``max_source``: tokens of the longest source that an encoder reads, 512 by default. ``max_batch``:
    sessions that a step decodes at most. ``max_sessions``: without a budget, how many of the longest there is room for.
    ``host``: bytes of host memory for sessions that make room for others; 0: none does. ``policy``: who leaves and who
    comes back, when (``tmmu.engine.policies``); without one ``lru``, if there is a host tier. ``time_to_live``: seconds
    until an idle session leaves though nobody needs its room. ``ring``: bytes of the device through which the weights
    stream from the host; ``None``: they stay. ``heap``: bytes for sessions, in place of what the budget leaves.
    ``reserve``: bytes of the device that others keep. ``headroom``: with ``hold``, the part of the sessions' room that
    a class keeps from those below it. ``queue``: who is served next. ``stacks``: steps that run at once, each in a
    stack of its own, as many as there is room for; ``self.stacks`` says how many those are. ``fuse``: ops run as
    compiled kernels on a CPU, with results that are near, not the same bits. ``clock``: seconds, for leases and
    policies.
    """

    def __init__(  # noqa: PLR0913 - what an engine is made of, by name
        self,
        model: Any,
        *,
        weights: Mapping[str, torch.Tensor] | None = None,
        device: str | torch.device = "cpu",
        budget: int | str | None = None,
        max_tokens: int | None = None,
        max_source: int | None = None,
        max_batch: int = 8,
        max_sessions: int = DEFAULT_SESSIONS,
        host: int | str = 0,
        policy: str | None = None,
        time_to_live: float = TIME_TO_LIVE,
        headroom: float | Sequence[float] = 0.0,
        ring: int | str | None = None,
        heap: int | str | None = None,
        reserve: int | str = 0,
        queue: FairQueue[StepRequest] | None = None,
        stacks: int = 1,
        fuse: bool = False,
        clock: Clock = monotonic,
    ) -> None:
        self._device = _fusible_device(device_of(device), fuse=fuse, ring=ring)
        checkpoint = load_checkpoint(model, weights)
        self.stop, self.start, self.suppression = checkpoint.stop, checkpoint.start, checkpoint.suppression
        self.subject = replace(_subject_of(checkpoint, self._device), fuse=fuse)
        self.limits = engine_limits(
            self.geometry,
            max_tokens=max_tokens,
            max_source=max_source,
            max_batch=max_batch,
            max_sessions=max_sessions,
            budget=budget,
            heap=heap,
            ring=ring,
            reserve=reserve,
            stacks=stacks,
        )
        built = build_steps(self.subject, self.limits, checkpoint, self._device, clock_of(clock))
        self.segments, self.stream, self.prefill_buckets = built.segments, built.stream, built.buckets
        self._lock, self._is_open = RLock(), True
        self._claims, self._leases, self._sessions = StepClaims(self._lock), LeaseTable(clock), dict[str, Session]()
        self._planned, self._stacks = built.planned, self._make_stacks(built.by_stack)
        swapping = build_swapping(
            policy=policy,
            host=bytes_of("host", host),
            time_to_live=time_to_live,
            geometry=self.geometry,
            segments=self.segments,
            clock=clock,
            wake=lambda: self.scheduler.wake(),  # noqa: PLW0108 - it is made below
            headroom=headroom,
        )
        self._arenas: FixedArenas | SessionSwapping = swapping or FixedArenas(self.segments)
        self.host = self._arenas.host
        if self.stream is not None and swapping is not None:
            self.stream.before_piece = swapping.wait_for_weights_turn
        self._requests = self._make_requests(queue_of(queue), clock)
        self.scheduler = self._requests.scheduler

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self.subject.config.get_text_config(decoder=True).vocab_size)

    def _make_requests(self, queue: FairQueue[StepRequest], clock: Clock) -> SessionRequests:
        return SessionRequests(
            lock=self._lock,
            claims=self._claims,
            stacks=self._stacks,
            leases=self._leases,
            arenas=self._arenas,
            require_ready=self._require_ready,
            queue=queue,
            max_batch=self.limits.max_batch,
            clock=clock,
        )

    def _make_stacks(self, by_stack: Sequence[StepsByShape]) -> tuple[StepStack, ...]:
        counts, is_alone = PauseCounts(), len(by_stack) == 1
        return tuple(
            self._make_stack(number, steps, counts, is_alone=is_alone) for number, steps in enumerate(by_stack)
        )

    def _make_stack(self, number: int, steps: StepsByShape, counts: PauseCounts, *, is_alone: bool) -> StepStack:
        """``counts``: of the pauses of all stacks."""
        runner = StepRunner(steps, steps.segments, self.prefill_buckets)
        pauses = Pauses(
            steps=steps,
            runner=runner,
            lock=self._lock,
            touch=self.heartbeat,
            hold=self._hold,
            writing=lambda session: self._arenas.step([session]),
            settle=self._claims.wait_for,
            stack=number,
            counts=counts,
        )
        can_yield = self.stream is None and not self.geometry.recurs
        return StepStack(
            number=number,
            steps=steps,
            runner=runner,
            pauses=pauses,
            pieces=PartsInPieces(pauses, runner) if can_yield else None,
            stream=StackStream(self._device, is_alone=is_alone),
        )

    # -- sessions

    def open(  # noqa: PLR0913 - what a session is to be, by name
        self,
        max_tokens: int | None = None,
        *,
        source: int | None = None,
        keep: int | str = 0,
        lease: float | None = None,
        qos: str | None = None,
        client: str = "",
        weight: int = 1,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Session:
        """A session with room for ``max_tokens``; its bytes are reserved. ``SEGMENT_FULL`` where there is no room.

        ``source``: tokens of the longest source that it encodes, by default the engine's ``max_source``. ``keep``:
        bytes for values that ``Session.kept`` holds. ``lease``: seconds after which it is closed if nothing is asked
        of it, not even a ``heartbeat``. The others are the terms on which its requests wait (``QueueTerms``): ``qos``
        is ``realtime``, ``interactive`` or ``batch``, by the ``deadline`` where none is named. With a host tier this
        waits for copies that make room, but for no step: where all sessions that are there have one to do, it gets its
        room when it is first used.
        """
        with self._lock:
            self._require_open()
            self.reclaim_expired()
            tokens = self.limits.max_tokens if max_tokens is None else whole_of("max_tokens", max_tokens)
            if tokens > self.limits.max_tokens:
                raise InvalidConfig(
                    f"a session of {tokens} tokens, in an engine for {self.limits.max_tokens} at most",
                    fix="make the engine with a larger max_tokens=",
                    tokens=tokens,
                )
            source_room = room_for_source(self.geometry, source, self.limits.max_source)
            keep_bytes = round_up(bytes_of("keep", keep), self.geometry.alignment)
            terms = queue_terms(qos=qos, client=client, weight=weight, priority=priority, deadline=deadline)
            session = self._reserve(self.geometry.capacities_for(tokens, source_room, keep_bytes), terms)
        with self._closed_on_failure(session):
            if lease is not None:
                self._leases.grant(session.capability, lease)
            refusal = self._arenas.settle(session)
            if refusal is not None:
                raise refusal
            self._arenas.rest(session)
        return session

    def grant_lease(self, session: Session, seconds: float) -> None:
        """A lease from now on, in place of the one that the session has; a fork has none."""
        with self._lock:
            require_session(self, session)
            self._leases.grant(session.capability, seconds)

    def heartbeat(self, session: Session) -> None:
        """Renews the lease of a session that is still needed."""
        with self._lock:
            require_session(self, session)
            self._leases.renew(session.capability)

    def reclaim_expired(self) -> int:
        """Closes sessions whose lease has run out, unless they wait for a step; returns how many."""
        with self._lock:
            expired = [self._sessions[key] for key in self._leases.expired_keys() if not self._requests.waits(key)]
            for session in expired:
                self.close_session(session)
            return len(expired)

    def session(self, capability: str) -> Session:
        """The open session of a capability; ``SESSION_UNKNOWN`` for any other text. Takes the same time for each."""
        matching = None
        with self._lock:
            for known, session in self._sessions.items():
                if compare_digest(known.encode(), str(capability).encode(errors="surrogatepass")):
                    matching = session
        if matching is None:
            raise SessionUnknown("no session has that capability", fix="open a session")
        return matching

    def fork(self, session: Session) -> Session:
        """A session of its own with a copy of the live bytes of this one. ``SEGMENT_FULL`` where both have no room."""
        with self._on_device(session):
            with self._lock:
                require_session(self, session)
                require_no_pause(session)
                other = self._reserve(session.capacities, session.terms)
            with self._closed_on_failure(other):
                self._arenas.require_room(other)
                with self._lock:
                    self._claims.wait_for(session)
                    for each in (session, other):
                        require_session(self, each)  # either may have been closed meanwhile
                    with self._arenas.step([other], [session]):
                        self._copy_state(session, other)
                self._arenas.rest(other)
                return other

    def _copy_state(self, session: Session, other: Session) -> None:
        slab = self.segments.slabs["data"]
        for name, offset in self.geometry.offsets(session.capacities).items():
            size = self.geometry.by_name[name].bytes_for(session.lengths)
            slab.bytes(other.base + offset, size).copy_(slab.bytes(session.base + offset, size))
        other.length, other.source_length = session.length, session.source_length
        other.kept.take_over(session.kept)

    def close_session(self, session: Session) -> None:
        """Zeroes the arena of a session and frees it, with a host tier once copies of it have landed."""
        require_own(self, session)
        with self._lock:
            self._claims.wait_for(session)
            if session.capability in self._sessions:  # to the end: an interrupted closing is taken up by the next
                self.pauses.drop(session)
                self._requests.drop_begun(session)
                session.is_open = False
                self._leases.end(session.capability)
                self._forget_views(session)
                self._arenas.close(session)
                del self._sessions[session.capability]

    def _forget_views(self, session: Session) -> None:
        for stack in self._stacks:
            stack.runner.forget(session)

    @contextmanager
    def _closed_on_failure(self, session: Session) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close_session(session)
            raise

    # -- steps

    def encode(self, session: Session, source: Sequence[int] | torch.Tensor) -> None:
        """Has the encoder read a source, tokens or features; the text of the session begins anew."""
        self.scheduler.wait([self._submit_source(session, source)])

    def submit_source(self, session: Session, source: Sequence[int] | torch.Tensor) -> "Future[torch.Tensor]":
        """``encode`` in a thread of the engine's own; the result says nothing."""
        request = self._submit_source(session, source)
        self.scheduler.start()
        return request.future

    def prefill(self, session: Session, tokens: Sequence[int]) -> torch.Tensor:
        """``dtype[vocabulary]``: the logits behind the last token, after all of them are in the state."""
        return self.scheduler.wait([self._submit(session, tokens, is_prompt=True)])[0]

    def decode(self, sessions: Sequence[Session], tokens: Sequence[int]) -> list[torch.Tensor]:
        """``dtype[vocabulary]`` for each session: the logits behind one more token of it.

        Sessions whose states are about as long run in one step, a row each, with those of other threads.
        ``INVALID_CONFIG`` before anything has run where a session is there twice or full, or a token is none of the
        model's.
        """
        if not isinstance(sessions, Sequence) or not isinstance(tokens, Sequence):
            raise InvalidConfig("a step takes sessions and tokens", fix="give a list of each")
        if len(sessions) != len(tokens) or len(set(map(id, sessions))) < len(sessions):
            raise InvalidConfig("a step takes one token of each session", fix="give each session once, and its token")
        with self._lock:
            for session, token in zip(sessions, tokens, strict=True):
                self._require_readable(session, [token])
            requests = [
                self._enqueue(session, [token], is_prompt=False)
                for session, token in zip(sessions, tokens, strict=True)
            ]
        return self.scheduler.wait(requests)

    def submit(self, session: Session, tokens: Sequence[int]) -> "Future[torch.Tensor]":
        """The logits behind these tokens, from a thread of the engine's own; cancelling it is ``cancel``."""
        request = self._submit(session, tokens)
        self.scheduler.start()
        return request.future

    def enqueue(self, session: Session, tokens: Sequence[int], *, due: float | None = None) -> "Future[torch.Tensor]":
        """As ``submit``, without that thread: whoever is in ``scheduler.run_until`` runs the step.

        ``due``: when it is too late, in seconds of the engine's clock, beside the deadline of the session's terms.
        """
        return self._submit(session, tokens, due=due).future

    def enqueue_source(
        self, session: Session, source: Sequence[int] | torch.Tensor, *, due: float | None = None
    ) -> "Future[torch.Tensor]":
        """As ``submit_source``, without a thread; ``due`` as of ``enqueue``."""
        return self._submit_source(session, source, due=due).future

    def run_until(self, session: Session, module: str, tokens: Sequence[int], *, is_token: bool) -> PausedStep:
        """Reads tokens up to the end of a module in their last step; ``is_token``: the only one, as ``decode`` does."""
        if self.stream is not None:
            raise UnsupportedOp("a step whose weights stream does not pause", fix="make the engine without ring=")
        if self.subject.fuse:
            raise UnsupportedOp(
                "a fused step does not pause: its kernels go over the ends of modules",
                fix="make the engine without fuse=",
            )
        with self._lock:
            self._require_readable(session, tokens)
            request = PauseRequest(
                owner=session, tokens=list(tokens), is_prompt=True, until=require_module(module), is_token=is_token
            )
            self._requests.push(request)
        try:
            self.scheduler.wait([request])
        except BaseException:
            if request.paused is not None:
                self.pauses.cancel(request.paused)
            raise
        assert request.paused is not None
        return request.paused

    def resume(self, paused: PausedStep) -> torch.Tensor:
        """``dtype[vocabulary]``: the logits behind a paused step, whose rest runs now."""
        return self.scheduler.wait([self._submit_rest(paused, None)])[0]

    def resume_until(self, paused: PausedStep, module: str) -> None:
        """Has a paused step run on to the end of a later module."""
        self.scheduler.wait([self._submit_rest(paused, require_module(module))])

    def _submit_rest(self, paused: PausedStep, until: str | None) -> StepRequest:
        with self._lock:
            require_paused(paused)
            self._require_idle(paused.session)
            return self._requests.push(
                PauseRequest(
                    owner=paused.session, tokens=[], is_prompt=True, until=until, paused=paused, stack=paused.stack
                )
            )

    def logits_of(self, session: Session) -> torch.Tensor:
        """A copy, ``dtype[vocabulary]``, of the logits behind the last token of a session that has one."""
        with self.state_of(session):
            return self._stacks[0].runner.logits_of(session).clone()

    @contextmanager
    def state_of(self, session: Session, is_changed: Callable[[], bool] | None = None) -> Iterator[None]:
        """Block in which the arena of a session is there to be read, or written; no step of it runs. Renews its lease.

        ``is_changed``: that it is written, and whether what was there changes or is only followed by more.
        """
        self.heartbeat(session)
        with self._on_device(session), self._lock:
            self._claims.wait_for(session)
            require_session(self, session)
            if is_changed is None:
                with self._arenas.step([], [session]):
                    yield
            else:
                with self._arenas.step([session], is_new=is_changed()):
                    yield

    def cancel(self, session: Session) -> bool:
        """Takes back what a session waits for; what of it is in the state already stays. False where it is done."""
        require_own(self, session)
        return self._requests.cancel(session)

    def _submit(
        self, session: Session, tokens: Sequence[int], *, is_prompt: bool = False, due: float | None = None
    ) -> StepRequest:
        read = tokens_of(tokens)
        with self._lock:
            self._require_readable(session, read)
            return self._enqueue(session, read, is_prompt=is_prompt or len(read) > 1, due=due)

    def _submit_source(
        self, session: Session, source: Sequence[int] | torch.Tensor, due: float | None = None
    ) -> StepRequest:
        with self._lock:
            self._require_free(session)
            tensor = source_tensor(self.subject.source, source, session, self.vocabulary)
            return self._enqueue(session, (), is_prompt=True, source=tensor, due=due)

    def _enqueue(
        self,
        session: Session,
        tokens: Sequence[int],
        *,
        is_prompt: bool,
        source: torch.Tensor | None = None,
        due: float | None = None,
    ) -> StepRequest:
        """A request of a session that may have one; the lock is held."""
        due = None if due is None else time_of("due", due)
        return self._requests.push(
            StepRequest(owner=session, tokens=list(tokens), is_prompt=is_prompt, source=source, due=due)
        )

    # -- making room

    def begin_wait(self, session: Session, expected: float | None = None, kind: str = "") -> None:
        """The client of a session wants no step for now: ``Session.wait``."""
        if not isinstance(kind, str):
            raise InvalidConfig(f"a wait of kind {kind!r:.40}", fix="give a text, such as tool")
        seconds = None if expected is None else seconds_of("expected", expected)
        with self._lock:
            self._require_free(session)
            self._arenas.wait(session, kind=kind, expected=seconds)

    def expect(self, session: Session, seconds: float) -> None:
        """The client of a session will want a step so soon: ``Session.resume_soon``."""
        within = seconds_of("within", seconds)
        with self._lock:
            require_session(self, session)
            self._arenas.expect(session, within)

    def swap_out(self, session: Session) -> None:
        """Moves the live bytes of a session to the host, and frees its arena; they come back when it is used.

        Nothing where it has left already. ``SEGMENT_FULL`` where the host tier has no room.
        """
        with self._lock:
            self._require_free(session)
        self._arenas.evict(session)

    def evict_idle(self) -> int:
        """Has all idle sessions leave for the host, as far as that has room, and waits for none; how many go."""
        return self._arenas.evict_idle()

    def keep_room(self, headroom: float | Sequence[float]) -> None:
        """Changes the ``headroom`` of classes."""
        self._arenas.keep_room(headroom_bytes(self.segments.data.capacity, headroom))

    def is_resident(self, session: Session) -> bool:
        """Whether the state of a session is whole on the device; not once it is closed."""
        require_own(self, session)
        return session.is_open and self._arenas.is_on_device(session)

    def waits_for_room(self, session: Session) -> bool:
        """Whether a session is needed and has no room; a closed one does not."""
        require_own(self, session)
        return self._arenas.waits_for_room(session)

    def _hold(self, session: Session, *, ends: bool) -> None:
        """Has the state of a session stay on the device, or need not any more; the lock is held."""
        (self._arenas.release if ends else self._arenas.hold)(session)

    @contextmanager
    def _on_device(self, session: Session) -> Iterator[None]:
        """Block in which the state of a session stays on the device. Runs steps of others until it is there."""
        with self._lock:
            require_session(self, session)
            self._arenas.need(session)
        try:
            self.scheduler.run_until(lambda: self._arenas.may_run(session))
            with self._lock:
                self._require_ready(session)
            yield
        finally:
            self._arenas.rest(session)

    # -- what there is

    @property
    def geometry(self) -> Geometry:
        """The state of a session of this model."""
        return self.subject.geometry

    @property
    def summaries(self) -> tuple[StepSummary, ...]:
        """What each planned step is and takes, in the order in which they were planned."""
        return tuple(self._planned.summaries.values())

    @property
    def usage(self) -> dict[str, Usage]:
        """By segment: capacity, used, peak and largest free run, in bytes; of the stacks together."""
        with self._arenas.still():
            return self.segments.usage | {
                "stack": sum_usage([stack.steps.segments.stack.usage for stack in self._stacks])
            }

    @property
    def live_state_bytes(self) -> int:
        """Bytes of sessions' arenas that their tokens need so far, wherever they lie. Waits for no step."""
        sessions = tuple(self._sessions.values())
        return sum(tensor.bytes_for(each.lengths) for each in sessions for tensor in self.geometry.tensors)

    @property
    def bound_shapes(self) -> int:
        """Shapes of steps that were planned, judged and bound so far, in any stack; each later step of one there is a
        look-up.
        """
        return sum(len(stack.steps.shapes) for stack in self._stacks)

    @property
    def shape_hits(self) -> int:
        """Runs of steps whose shape was bound already, pieces of paused ones not among them."""
        return sum(stack.steps.hits for stack in self._stacks)

    @property
    def evictions(self) -> tuple[int, int]:
        """Sessions that left early, before anybody needed their room, and late."""
        return self._arenas.evictions

    @property
    def waiting_sessions(self) -> int:
        """Sessions that are needed and have no room."""
        return self._arenas.missed

    @property
    def room_state(self) -> tuple[int, int]:
        """Another value whenever a session has got or left its room, or one more or less waits for some; no lock."""
        return self.segments.data.changes, self.waiting_sessions

    @property
    def yields(self) -> int:
        """How often a part of a batch prompt has let others go first."""
        return sum(stack.pieces.yields for stack in self._stacks if stack.pieces is not None)

    @property
    def lookup_seconds(self) -> float:
        """Seconds of the clock in which shapes were planned, judged and bound."""
        return sum(stack.steps.lookup_seconds for stack in self._stacks)

    @property
    def pauses(self) -> Pauses:
        """Of the first stack; ``counts`` are of all."""
        return self._stacks[0].pauses

    @property
    def stacks(self) -> int:
        """How many steps may run at once, each in a stack of its own: as many as had room of those asked for."""
        return len(self._stacks)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The open sessions, in the order in which they were opened."""
        with self._lock:
            return tuple(self._sessions.values())

    def close(self) -> None:
        """Closes every session and gives memory back; requests that wait are refused. Again it does nothing.

        With a host tier on a CPU the data segment goes with the engine itself.
        """
        # No cancellation: a task of asyncio that nobody cancelled would end without a word.
        self.scheduler.close(SessionUnknown("the engine was closed meanwhile", fix="make another one"))
        with self._lock:
            was_open, self._is_open = self._is_open, False
            for session in self.sessions:
                self.close_session(session)
            for stack in self._stacks:
                stack.steps.close()
        if was_open:
            self._arenas.shut_down()
        for stack in self._stacks:
            stack.steps.segments.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # -- sizes and checks

    def _reserve(self, capacities: StateLengths, terms: QueueTerms) -> Session:
        """A session that has its arena; with a host tier, one that is needed and will get its arena."""
        capability, size = token_hex(16), self.geometry.arena_bytes(capacities)
        arena = f"session {next(_NUMBERS)}"  # errors name it, so it is no secret
        session = Session(self, capability, arena=arena, capacities=capacities, base=0, arena_bytes=size, terms=terms)
        self._arenas.open(session)  # nothing that may fail behind it
        self._sessions[capability] = session
        return session

    def _require_open(self) -> None:
        if not self._is_open:
            raise InvalidConfig("the engine is closed", fix="make another one")

    def _require_idle(self, session: Session) -> None:
        require_session(self, session)
        if self._requests.waits(session.capability):
            raise InvalidConfig("the session waits for a step already", fix="wait for that, or cancel it")

    def _require_ready(self, session: Session) -> None:
        """What a step needs: an open session whose state is on the device; views of where it was before are gone."""
        require_session(self, session)
        refusal = self._arenas.refusal(session)
        if refusal is not None:
            raise refusal
        if self._arenas.take_moved(session):
            self._forget_views(session)

    def _require_free(self, session: Session) -> None:
        """What every request needs: an open session that waits for nothing else, and is not paused."""
        self._require_idle(session)
        require_no_pause(session)

    def _require_readable(self, session: Session, tokens: Sequence[int]) -> None:
        """What reading needs beside: tokens of the model, room, and a source where there is an encoder."""
        self._require_free(session)
        require_tokens(tokens, self.vocabulary)
        require_room(session, len(tokens), self.geometry.longest)
        if self.geometry.has_source and not session.source_length:
            raise InvalidConfig("the session has no source", fix="have it encode one first")


def _fusible_device(device: torch.device, *, fuse: bool, ring: int | str | None) -> torch.device:
    """The device; ``INVALID_CONFIG`` where steps are to be fused on it, and cannot be."""
    if not isinstance(fuse, bool):
        raise InvalidConfig(f"fuse={fuse!r:.40} is not a bool", fix="give True or False")
    if fuse and ring is not None:
        raise InvalidConfig("fuse: kernels read weights that stay", fix="leave it out, or ring")
    return device


def _subject_of(checkpoint: Checkpoint, device: torch.device) -> StepModel:
    return probe(
        checkpoint.config,
        checkpoint.dtype,
        device=device.type,
        alignment=DEFAULT_ALIGNMENT,
        architecture=checkpoint.architecture,
        dtypes=checkpoint.dtypes,
    )
