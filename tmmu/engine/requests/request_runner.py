"""What the queue runs: parts of prompts, encodings, pieces of paused steps, and rows that decode together."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import Final, Protocol, TypeAlias

import torch

from tmmu.engine.leases import LeaseTable
from tmmu.engine.pause.pauses import PauseRequest
from tmmu.engine.queue.scheduler import Request
from tmmu.engine.session import Session
from tmmu.engine.step_claims import StepClaims
from tmmu.engine.step_stack import StepStack
from tmmu.errors import TmmuError

StepRequest: TypeAlias = Request[Session, torch.Tensor]
_NO_LOGITS: Final = torch.empty(0)
"""The result of an encoding."""


class StepBlock(Protocol):
    """A block in which states of sessions that may run are written, those of the first argument."""

    def __call__(self, written: Sequence[Session], *, is_new: bool = False) -> AbstractContextManager[None]:
        """``is_new``: they begin anew, and follow nothing that was there."""


class RequestRunner:
    """One request or group of rows at a time in each of the ``stacks``; each renews the leases of its sessions.

    ``lock`` is the engine's: a step takes it when it begins and ends. ``require_ready`` raises what a session that
    cannot run is refused with; ``must_yield`` says whether a request is to let others go first.
    """

    def __init__(  # noqa: PLR0913 - what a request needs, by name
        self,
        *,
        lock: RLock,
        claims: StepClaims,
        stacks: Sequence[StepStack],
        leases: LeaseTable,
        require_ready: Callable[[Session], None],
        must_yield: Callable[[StepRequest], bool],
        step: StepBlock,
    ) -> None:
        self._lock, self._claims, self._stacks, self._leases = lock, claims, stacks, leases
        self._require_ready, self._must_yield, self._step = require_ready, must_yield, step
        self._runner = stacks[0].runner

    def count_positions(self, request: StepRequest) -> None:
        """Sets how many positions the next step of a request computes, or its next piece; of a paused step none."""
        remaining = len(request.tokens) - request.done
        pieces = self._stacks[request.stack or 0].pieces
        if request.source is not None:
            request.positions = self._runner.source_positions(request.source)
        elif isinstance(request, PauseRequest) and (request.paused is not None or request.is_token):
            request.positions = int(request.paused is None)
        elif pieces is not None and request.is_prompt and request.terms.qos == "batch":
            request.positions = pieces.positions_of_piece(request.owner, remaining)
        else:
            request.positions = self._runner.next_positions(request.owner, remaining) if request.is_prompt else 1

    def read_part(self, request: StepRequest, number: int) -> torch.Tensor | None:
        """Runs a part of a prompt, or an encoding, in a stack; the logits behind it, if it was the last."""
        stack, session = self._stacks[number], request.owner
        with self._claims.claimed(lambda: self._ready(request)):
            with stack.stream.activate():
                is_over = self._run_part(stack, request)
            if not isinstance(request, PauseRequest):
                with self._lock:
                    self._leases.renew(session.capability)
            if not is_over:
                self.count_positions(request)
                return None
            has_logits = request.source is None and session.paused is None
            return stack.runner.logits_of(session).clone() if has_logits else _NO_LOGITS

    def _ready(self, request: StepRequest) -> list[Session]:
        self._require_ready(request.owner)
        return [request.owner]

    def _run_part(self, stack: StepStack, request: StepRequest) -> bool:
        """Whether that was all of the request."""
        session = request.owner
        if request.source is not None:
            with self._step([session], is_new=True):
                stack.runner.encode(session, request.source)
            return True
        with self._step([session]):
            if isinstance(request, PauseRequest):
                return stack.pauses.run(request) is not None
            request.done += self._read_tokens(stack, request)
        return request.done == len(request.tokens)

    def _read_tokens(self, stack: StepStack, request: StepRequest) -> int:
        """Reads tokens of a prompt, as many as a step takes; 0 where it has let others go first, and stays here."""
        session, remaining = request.owner, request.tokens[request.done :]
        if stack.pieces is None or request.terms.qos != "batch":
            return stack.runner.read_part(session, remaining)
        before = stack.pieces.pieces_run
        tokens = stack.pieces.read(session, remaining, lambda: self._must_yield(request))
        request.uncounted = request.positions * max(stack.pieces.pieces_run - before - 1, 0)
        request.stack = None if tokens else stack.number
        return tokens

    def decode_rows(self, requests: Sequence[StepRequest], number: int) -> list[torch.Tensor | Exception]:
        """One more token of each session, in a stack; a refusal is a row's own."""
        results: dict[int, torch.Tensor | Exception] = {}

        def begin() -> list[Session]:
            refusals = {id(request): self._refusal(request) for request in requests}
            results.update((key, error) for key, error in refusals.items() if error is not None)
            return [request.owner for request in requests if id(request) not in results]

        with self._claims.claimed(begin):
            group = [request for request in requests if id(request) not in results]
            results |= self._decode_group(self._stacks[number], group)
        return [results[id(request)] for request in requests]

    def _refusal(self, request: StepRequest) -> TmmuError | None:
        """Why a session cannot run, if it cannot."""
        try:
            self._require_ready(request.owner)
        except TmmuError as error:
            return error
        return None

    def _decode_group(self, stack: StepStack, group: Sequence[StepRequest]) -> dict[int, torch.Tensor | Exception]:
        """The logits of sessions that have their arenas, by request; of a step that fails, its error for each row."""
        results: dict[int, torch.Tensor | Exception] = {}
        start = 0
        while start < len(group):
            rows = group[start : start + (1 << ((len(group) - start).bit_length() - 1))]
            start += len(rows)
            owners = [row.owner for row in rows]
            try:
                with stack.stream.activate(), self._step(owners):
                    stack.runner.decode(owners, [row.tokens[0] for row in rows])
            except Exception as error:  # noqa: BLE001 - it is the error of these rows, and the others go on
                results |= {id(row): error for row in rows}
                continue
            with self._lock:
                for row in rows:
                    self._leases.renew(row.owner.capability)
            results |= {id(row): stack.runner.logits_of(row.owner).clone() for row in rows}
        return results

    def can_join(self, first: StepRequest, other: StepRequest) -> bool:
        """Whether another session is at lengths for which the step of the first is made, and may run."""
        lengths = self._runner.step_lengths
        return other.owner.is_open and lengths(first.owner) == lengths(other.owner)
