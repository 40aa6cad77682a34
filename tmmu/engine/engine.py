"""The engine: one model, its weights once, and sessions whose state lies in arenas of their own.

    engine = tmmu.Engine(model, budget="2GB")
    with engine.open(max_tokens=256) as session:
        for token in session.generate(ids, max_new_tokens=64): ...

Text holds the weights, the stack is used in turn, and the rest of the budget is the data segment, where each session
reserves its bytes when it is opened. Invariants: the lock is taken while a step runs, and while sessions come and go;
a session waits for one request at a time; an arena is all zeros when it
is reserved, and again before it is free; the state of a session is written by its own steps alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from hmac import compare_digest
from secrets import token_hex
from threading import RLock
from time import monotonic
from typing import Any, Final, TypeAlias

import torch

from tmmu.engine.capture.step import IDS, LAST, POSITIONS, StepShape, probe
from tmmu.engine.checkpoint import Checkpoint, load_checkpoint
from tmmu.engine.geometry import Geometry
from tmmu.engine.leases import Clock, LeaseTable
from tmmu.engine.ready_queue import ReadyQueue
from tmmu.engine.scheduler import Request, Scheduler
from tmmu.engine.session import Session
from tmmu.engine.steps_by_shape import PlannedStep, StepsByShape, plan_step
from tmmu.errors import DeviceMemory, InvalidConfig, SessionUnknown
from tmmu.planner.arenas import parse_size
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.sizing import SegmentSizes, device_memory, device_of
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, Usage, round_up
from tmmu.runtime.memory.zero import zero_tensor
from tmmu.runtime.weights.load import content_key
from tmmu.runtime.weights.sources import ModelTensor, tensor_source

PREFILL_TOKENS: Final = (512, 256, 128, 64, 32, 16)
"""How many tokens of a prompt a step reads at most, longest first; what is behind a prompt's end is padding."""
DEFAULT_SESSIONS: Final = 8
"""Sessions of the longest text for which there is room without a budget."""
DEFAULT_LONGEST: Final = 2048
"""Tokens of the longest text of a model without a limit of its own."""


StepRequest: TypeAlias = Request[Session, torch.Tensor]


class Engine:
    """Sessions of one model on one device; threads that use it share steps.

    ``model``: a model or configuration of transformers, or a folder. ``weights``: tensors by name, in place of the
    model's. ``budget``: bytes, or text such as ``2GB``, of weights, stack and sessions together. ``max_tokens``: the
    longest session. ``max_batch``: sessions that a step decodes at most. ``max_sessions``: without a budget, how
    many of the longest there is room for. ``queue``: who is served next. ``clock``: seconds, for leases.
    """

    def __init__(  # noqa: PLR0913 - what an engine is made of, by name
        self,
        model: Any,
        *,
        weights: Mapping[str, torch.Tensor] | None = None,
        device: str | torch.device = "cpu",
        budget: int | str | None = None,
        max_tokens: int | None = None,
        max_batch: int = 8,
        max_sessions: int = DEFAULT_SESSIONS,
        queue: ReadyQueue[StepRequest] | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._device = device_of(device)
        checkpoint = load_checkpoint(model, weights)
        self.stop = checkpoint.stop
        self.subject = probe(checkpoint.config, checkpoint.dtype, device=self._device.type, alignment=DEFAULT_ALIGNMENT)
        self.max_batch = _whole("max_batch", max_batch)
        self._max_sessions = _whole("max_sessions", max_sessions)
        longest = self.geometry.longest or DEFAULT_LONGEST
        self.max_tokens = longest if max_tokens is None else _whole("max_tokens", max_tokens)
        self._vocabulary = int(checkpoint.config.get_text_config(decoder=True).vocab_size)
        largest = self._largest_steps()
        self.segments = Segments(self._sizes(largest, budget), self._device)
        self._steps = StepsByShape(self.subject, self.segments, checkpoint.weights, _weight_keys(checkpoint))
        for shape, planned in largest.items():
            self._steps.keep(shape, planned)
        self._lock = RLock()
        self._pending: dict[str, StepRequest] = {}
        self._leases = LeaseTable(clock)
        self.scheduler: Scheduler[Session, torch.Tensor] = Scheduler(
            read_part=self._read_part,
            decode=self._decode_rows,
            can_join=self._can_join,
            max_batch=self.max_batch,
            queue=ReadyQueue() if queue is None else queue,
        )
        self._sessions: dict[str, Session] = {}
        self._views: dict[tuple[str, StepShape, int], tuple[torch.Tensor, ...]] = {}
        self._is_open = True

    # -- sessions

    def open(self, max_tokens: int | None = None, *, lease: float | None = None) -> Session:
        """A session with room for ``max_tokens``; its bytes are reserved. ``SEGMENT_FULL`` where there is no room.

        ``lease``: seconds after which it is closed if nothing is asked of it, not even a ``heartbeat``.
        """
        with self._lock:
            self._require_open()
            self.reclaim_expired()
            tokens = self.max_tokens if max_tokens is None else _whole("max_tokens", max_tokens)
            if tokens > self.max_tokens:
                raise InvalidConfig(
                    f"a session of {tokens} tokens, in an engine for {self.max_tokens} at most",
                    fix="make the engine with a larger max_tokens=",
                    tokens=tokens,
                )
            session = self._reserve(self.geometry.capacity_for(tokens))
            if lease is not None:
                try:
                    self._leases.grant(session.capability, lease)
                except InvalidConfig:
                    self.close_session(session)
                    raise
            return session

    def heartbeat(self, session: Session) -> None:
        """Renews the lease of a session that is still needed."""
        with self._lock:
            self._require_session(session)
            self._leases.renew(session.capability)

    def reclaim_expired(self) -> int:
        """Closes sessions whose lease has run out, unless they wait for a step; returns how many."""
        with self._lock:
            expired = [self._sessions[key] for key in self._leases.expired() if not self._waits(key)]
            for session in expired:
                self.close_session(session)
            return len(expired)

    def session(self, capability: str) -> Session:
        """The open session of a capability; ``SESSION_UNKNOWN`` for any other text. Takes the same time for each."""
        matching = None
        with self._lock:
            for known, session in self._sessions.items():
                if compare_digest(known.encode(), str(capability).encode()):
                    matching = session
        if matching is None:
            raise SessionUnknown("no session has that capability", fix="open a session")
        return matching

    def fork(self, session: Session) -> Session:
        """A session of its own with a copy of the live bytes of this one."""
        with self._lock:
            self._require_session(session)
            other = self._reserve(session.capacity)
            slab = self.segments.slabs["data"]
            for name, offset in self.geometry.offsets(session.capacity).items():
                size = self.geometry.by_name[name].bytes_for(session.length)
                slab.bytes(other.base + offset, size).copy_(slab.bytes(session.base + offset, size))
            other.length = session.length
            other.logits = None if session.logits is None else session.logits.clone()
            return other

    def close_session(self, session: Session) -> None:
        """Zeroes the arena of a session and frees it."""
        with self._lock:
            if session.is_open:
                session.is_open = False
                session.logits = None
                self._leases.end(session.capability)
                zero_tensor(self.segments.slabs["data"].bytes(session.base, session.arena_bytes))
                self.segments.data.reclaim(session.capability)
                del self._sessions[session.capability]
                for key in [key for key in self._views if key[0] == session.capability]:
                    del self._views[key]

    # -- steps

    def prefill(self, session: Session, tokens: Sequence[int]) -> torch.Tensor:
        """``dtype[vocabulary]``: the logits behind the last token, after all of them are in the state."""
        return self.scheduler.wait([self._submit(session, tokens, is_prompt=True)])[0]

    def decode(self, sessions: Sequence[Session], tokens: Sequence[int]) -> list[torch.Tensor]:
        """``dtype[vocabulary]`` for each session: the logits behind one more token of it.

        Sessions whose states are about as long run in one step, a row each, with those of other threads.
        ``INVALID_CONFIG`` before anything has run where a session is there twice or full, or a token is none of the
        model's.
        """
        if len(sessions) != len(tokens) or len(set(map(id, sessions))) < len(sessions):
            raise InvalidConfig("a step takes one token of each session", fix="give each session once, and its token")
        with self._lock:
            for session, token in zip(sessions, tokens, strict=True):
                self._require_readable(session, [token])
            requests = [
                self._submit(session, [token], is_prompt=False) for session, token in zip(sessions, tokens, strict=True)
            ]
        return self.scheduler.wait(requests)

    def submit(self, session: Session, tokens: Sequence[int]) -> "Future[torch.Tensor]":
        """The logits behind these tokens, from a thread of the engine's own; cancelling it is ``cancel``."""
        request = self._submit(session, tokens, is_prompt=len(tokens) > 1)
        self.scheduler.start()
        return request.future

    def cancel(self, session: Session) -> bool:
        """Takes back what a session waits for; what of it is in the state already stays. False where it is done."""
        with self._lock:
            request = self._pending.get(session.capability)
        return request is not None and self.scheduler.cancel(request)

    def _submit(self, session: Session, tokens: Sequence[int], *, is_prompt: bool) -> StepRequest:
        with self._lock:
            self._require_readable(session, tokens)
            request = StepRequest(owner=session, tokens=list(tokens), is_prompt=is_prompt)
            self._pending[session.capability] = request
            self._leases.renew(session.capability)
            request.future.add_done_callback(lambda _: self._forget(session, request))
            self.scheduler.submit([request])
            return request

    def _waits(self, capability: str) -> bool:
        """Whether a session waits for a request; one that is done may not be forgotten yet."""
        request = self._pending.get(capability)
        return request is not None and not request.future.done()

    def _forget(self, session: Session, request: StepRequest) -> None:
        with self._lock:
            if self._pending.get(session.capability) is request:
                del self._pending[session.capability]

    def _read_part(self, request: StepRequest) -> torch.Tensor | None:
        """Runs a part of a prompt; the logits behind it, if it was the last."""
        with self._lock:
            session = request.owner
            self._require_session(session)
            remaining = len(request.tokens) - request.done
            count = self._chunk(session, remaining)
            tokens = list(request.tokens[request.done : request.done + count])
            logits = self._read(session, tokens, count)
            request.done += len(tokens)
            self._leases.renew(session.capability)
            if request.done < len(request.tokens):
                return None
            session.logits = logits
            return logits.clone()

    def _decode_rows(self, requests: Sequence[StepRequest]) -> list[torch.Tensor]:
        """One more token of each session, in one step."""
        with self._lock:
            sessions = [request.owner for request in requests]
            for session in sessions:
                self._require_session(session)
            shape = StepShape(rows=len(sessions), tokens=1, kv_length=self._kv_length(sessions[0]))
            step = self._steps.step(shape)
            inputs = {
                IDS: torch.tensor([list(request.tokens) for request in requests], device=self._device),
                POSITIONS: torch.tensor([[session.length] for session in sessions], device=self._device),
            }
            rows = [self._views_of(session, shape, row) for row, session in enumerate(sessions)]
            with _marking_broken(sessions if self.geometry.recurs else ()):
                logits = step.run(inputs, rows)
            for row, session in enumerate(sessions):
                session.length += 1
                session.logits = logits[row].clone()
                self._leases.renew(session.capability)
            return [_logits_of(session) for session in sessions]

    def _kv_length(self, session: Session) -> int:
        return self.geometry.kv_length_for(session.length + 1)

    def _can_join(self, first: StepRequest, other: StepRequest) -> bool:
        """Whether another session is at a length for which the step of the first is made, and may run."""
        return other.owner.is_open and self._kv_length(first.owner) == self._kv_length(other.owner)

    def _chunk(self, session: Session, remaining: int) -> int:
        """How many positions the next step of a prompt writes: the fewest that hold what remains, if there is room.

        Of state that recurs nothing is padded: the first step takes as many tokens as fill it, each other one token.
        """
        if self.geometry.recurs:
            fresh = [tokens for tokens in PREFILL_TOKENS if tokens <= remaining and session.length == 0]
            return fresh[0] if fresh else 1
        room = session.capacity - session.length
        fitting = [tokens for tokens in PREFILL_TOKENS if tokens <= room]
        enough = [tokens for tokens in fitting if tokens >= remaining]
        whole = [tokens for tokens in fitting if tokens <= remaining]
        return enough[-1] if enough else whole[0] if whole else 1

    def _read(self, session: Session, tokens: list[int], count: int) -> torch.Tensor:
        """The logits behind the last of ``tokens``, in a step of ``count`` positions, those behind them padding."""
        shape = self._prefill_shape(count, session.length + count)
        step = self._steps.step(shape)
        inputs = {
            IDS: torch.tensor([tokens + [0] * (count - len(tokens))], device=self._device),
            POSITIONS: torch.arange(session.length, session.length + count, device=self._device)[None],
        }
        if count > 1:
            inputs[LAST] = torch.tensor([len(tokens) - 1], device=self._device)
        with _marking_broken([session] if self.geometry.recurs else ()):
            logits = step.run(inputs, [self._views_of(session, shape, 0)])
        session.length += len(tokens)
        return logits[0].clone()

    def _views_of(self, session: Session, shape: StepShape, row: int) -> tuple[torch.Tensor, ...]:
        key = (session.capability, shape, row)
        if key not in self._views:
            offsets = self.geometry.offsets(session.capacity)
            step = self._steps.step(shape)
            self._views[key] = step.row_views(row, self.segments.slabs["data"], session.base, offsets)
        return self._views[key]

    # -- what there is

    @property
    def geometry(self) -> Geometry:
        """The state of a session of this model."""
        return self.subject.geometry

    @property
    def usage(self) -> dict[str, Usage]:
        """By segment: capacity, used, peak and largest free run, in bytes."""
        return self.segments.usage

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The open sessions, in the order in which they were opened."""
        with self._lock:
            return tuple(self._sessions.values())

    def close(self) -> None:
        """Closes every session and releases the weights. Closing again does nothing."""
        self.scheduler.close()
        with self._lock:
            self._is_open = False
            for session in self.sessions:
                self.close_session(session)
            self._steps.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # -- sizes and checks

    def _largest_steps(self) -> dict[StepShape, PlannedStep]:
        """The steps that need most of the stack: all rows over the longest state, and the longest part of a prompt."""
        kv_length = self.geometry.kv_length_for(self.max_tokens)
        room = self.geometry.capacity_for(self.max_tokens)
        tokens = next((count for count in PREFILL_TOKENS if count <= room), 1)
        shapes = (StepShape(rows=self.max_batch, tokens=1, kv_length=kv_length), self._prefill_shape(tokens, kv_length))
        return {shape: plan_step(self.subject, shape) for shape in shapes}

    def _prefill_shape(self, tokens: int, end: int) -> StepShape:
        """The shape of a step of one row that writes ``tokens`` positions, the last of them before ``end``."""
        is_fresh = self.geometry.recurs and tokens > 1
        return StepShape(rows=1, tokens=tokens, kv_length=self.geometry.kv_length_for(end), is_fresh=is_fresh)

    def _sizes(self, largest: Mapping[StepShape, PlannedStep], budget: int | str | None) -> SegmentSizes:
        """Text and stack as the steps need them; data is what is left of the budget."""
        longest = self.geometry.arena_bytes(self.geometry.capacity_for(self.max_tokens))
        padding = DEFAULT_ALIGNMENT * max(len(planned.plan.buffers.id) for planned in largest.values())
        # Each step has constants of its own, which are small, beside the weights.
        text = round_up(max(planned.text_bytes for planned in largest.values()) + padding, DEFAULT_ALIGNMENT)
        stack = round_up(max(planned.stack_bytes for planned in largest.values()), DEFAULT_ALIGNMENT)
        free, _ = device_memory(self._device)
        if budget is None:
            data = min(self._max_sessions * longest, max(free - text - stack, longest))
        else:
            data = (parse_size(budget) if isinstance(budget, str) else budget) - text - stack
        smallest = self.geometry.arena_bytes(self.geometry.kv_length_for(1))
        if data < smallest or text + stack + data > free:
            raise DeviceMemory(
                f"weights take {text} bytes, the stack {stack}, the smallest session {smallest}: "
                f"{min(free, text + stack + data)} are there",
                fix="give a larger budget=, or a smaller max_tokens= or max_batch=",
                text=text,
                stack=stack,
                data=max(data, 0),
                free=free,
            )
        return SegmentSizes(text=text, stack=stack, data=data // DEFAULT_ALIGNMENT * DEFAULT_ALIGNMENT)

    def _reserve(self, capacity: int) -> Session:
        capability, size = token_hex(16), self.geometry.arena_bytes(capacity)
        base = self.segments.data.reserve(capability, size)
        session = Session(self, capability, capacity=capacity, base=base, arena_bytes=size)
        self._sessions[capability] = session
        return session

    def _require_open(self) -> None:
        if not self._is_open:
            raise InvalidConfig("the engine is closed", fix="make another one")

    def _require_session(self, session: Session) -> None:
        session.require_open()
        if session.engine is not self:
            raise SessionUnknown("the session is of another engine", fix="use the engine that opened it")
        if session.is_broken:
            raise SessionUnknown("a step of the session failed half way", fix="close it, and open another one")

    def _require_readable(self, session: Session, tokens: Sequence[int]) -> None:
        """What every request needs: an open session that waits for nothing else, tokens of the model, and room."""
        self._require_session(session)
        if self._waits(session.capability):
            raise InvalidConfig("the session waits for a step already", fix="wait for that, or cancel it")
        self._require_tokens(tokens)
        self._require_room(session, len(tokens))

    def _require_room(self, session: Session, tokens: int) -> None:
        if session.length + tokens > session.capacity:
            raise InvalidConfig(
                f"{tokens} tokens behind {session.length} do not fit in a session of {session.capacity}",
                fix=f"open it with max_tokens={session.length + tokens}",
                tokens=tokens,
                length=session.length,
                capacity=session.capacity,
            )

    def _require_tokens(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise InvalidConfig("there are no tokens", fix="give at least one")
        for token in tokens:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._vocabulary:
                raise InvalidConfig(
                    f"{token!r:.40} is no token of the model", fix=f"tokens are 0 to {self._vocabulary - 1}"
                )


@contextmanager
def _marking_broken(sessions: Sequence[Session]) -> Iterator[None]:
    """Block whose failure leaves the state of these sessions between two tokens, so that they are not used again."""
    try:
        yield
    except BaseException:
        for session in sessions:
            session.is_broken = True
        raise


def _logits_of(session: Session) -> torch.Tensor:
    assert session.logits is not None
    return session.logits.clone()


def _weight_keys(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The content key of each weight, by name, computed once for all steps."""
    keys = {}
    for name, weight in checkpoint.weights.items():
        tensor = weight.tensor if isinstance(weight, ModelTensor) else weight
        assert isinstance(tensor, torch.Tensor)
        size = tensor.untyped_storage().nbytes()
        if size == tensor.numel() * tensor.element_size():
            keys[name] = content_key(tensor_source(name, tensor, size), size)
    return keys


def _whole(name: str, value: int) -> int:
    """``value``, a whole number of at least 1; ``INVALID_CONFIG`` for any other."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidConfig(f"{name} is {value!r:.40}", fix="give a whole number of at least 1")
    return value
