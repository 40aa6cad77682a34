"""What the queue runs: parts of prompts, encodings, pieces of paused steps, and rows that decode together."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import Final, Protocol, TypeAlias

import torch

from tmmu.engine.leases import LeaseTable
from tmmu.engine.pause.parts_in_pieces import PartsInPieces
from tmmu.engine.pause.pauses import PauseRequest, Pauses
from tmmu.engine.queue.scheduler import Request
from tmmu.engine.session import Session
from tmmu.engine.steps.step_runner import StepRunner
from tmmu.errors import TmmuError

StepRequest: TypeAlias = Request[Session, torch.Tensor]
_NO_LOGITS: Final = torch.empty(0)
"""The result of an encoding."""


class StepBlock(Protocol):
    """A block in which states of sessions that may run are written, those of the first argument."""

    def __call__(self, written: Sequence[Session], *, is_new: bool = False) -> AbstractContextManager[None]:
        """``is_new``: they begin anew, and follow nothing that was there."""


class RequestRunner:
    """One request or group of rows at a time, under the engine's ``lock``; each renews the leases of its sessions.

    ``require_ready`` raises what a session that cannot run is refused with; ``must_yield`` says whether a request is to
    let others go first. ``pieces``: what reads prompts of class ``batch``; ``None``: they yield between steps alone.
    """

    def __init__(  # noqa: PLR0913 - what a request needs, by name
        self,
        *,
        lock: RLock,
        runner: StepRunner,
        leases: LeaseTable,
        pauses: Pauses,
        pieces: PartsInPieces | None,
        require_ready: Callable[[Session], None],
        must_yield: Callable[[StepRequest], bool],
        step: StepBlock,
    ) -> None:
        self._lock, self._runner, self._leases, self._pauses = lock, runner, leases, pauses
        self._pieces, self._must_yield = pieces, must_yield
        self._require_ready, self._step = require_ready, step

    def count_positions(self, request: StepRequest) -> None:
        """Sets how many positions the next step of a request computes, or its next piece; of a paused step none."""
        remaining = len(request.tokens) - request.done
        if request.source is not None:
            request.positions = self._runner.source_positions(request.source)
        elif isinstance(request, PauseRequest) and (request.paused is not None or request.is_token):
            request.positions = int(request.paused is None)
        elif self._pieces is not None and request.is_prompt and request.terms.qos == "batch":
            request.positions = self._pieces.positions_of_piece(request.owner, remaining)
        else:
            request.positions = self._runner.next_positions(request.owner, remaining) if request.is_prompt else 1

    def read_part(self, request: StepRequest) -> torch.Tensor | None:
        """Runs a part of a prompt, or an encoding; the logits behind it, if it was the last."""
        with self._lock:
            session = request.owner
            self._require_ready(session)
            if request.source is not None:
                with self._step([session], is_new=True):
                    self._runner.encode(session, request.source)
                self._leases.renew(session.capability)
                return _NO_LOGITS
            with self._step([session]):
                if isinstance(request, PauseRequest):
                    logits = self._pauses.run(request)
                    if logits is None:
                        self.count_positions(request)
                    return logits
                request.done += self._read_tokens(request)
            self._leases.renew(session.capability)
            if request.done < len(request.tokens):
                self.count_positions(request)
                return None
            return self._runner.logits_of(session).clone()

    def _read_tokens(self, request: StepRequest) -> int:
        """Reads tokens of a prompt, as many as a step takes; 0 where it has let others go first."""
        session, remaining = request.owner, request.tokens[request.done :]
        if self._pieces is None or request.terms.qos != "batch":
            return self._runner.read_part(session, remaining)
        before = self._pieces.pieces_run
        tokens = self._pieces.read(session, remaining, lambda: self._must_yield(request))
        request.uncounted = request.positions * max(self._pieces.pieces_run - before - 1, 0)
        return tokens

    def decode_rows(self, requests: Sequence[StepRequest]) -> list[torch.Tensor | Exception]:
        """One more token of each session; a refusal is a row's own."""
        with self._lock:
            refusals = {id(request): self._refusal(request) for request in requests}
            results: dict[int, torch.Tensor | Exception] = {key: error for key, error in refusals.items() if error}
            results |= self._decode_group([request for request in requests if refusals[id(request)] is None])
        return [results[id(request)] for request in requests]

    def _refusal(self, request: StepRequest) -> TmmuError | None:
        """Why a session cannot run, if it cannot."""
        try:
            self._require_ready(request.owner)
        except TmmuError as error:
            return error
        return None

    def _decode_group(self, group: Sequence[StepRequest]) -> dict[int, torch.Tensor | Exception]:
        """The logits of sessions that have their arenas, by request; of a step that fails, its error for each row."""
        results: dict[int, torch.Tensor | Exception] = {}
        start = 0
        while start < len(group):
            rows = group[start : start + (1 << ((len(group) - start).bit_length() - 1))]
            start += len(rows)
            owners = [row.owner for row in rows]
            try:
                with self._step(owners):
                    self._runner.decode(owners, [row.tokens[0] for row in rows])
            except Exception as error:  # noqa: BLE001 - it is the error of these rows, and the others go on
                results |= {id(row): error for row in rows}
                continue
            for row in rows:
                self._leases.renew(row.owner.capability)
                results[id(row)] = self._runner.logits_of(row.owner).clone()
        return results

    def can_join(self, first: StepRequest, other: StepRequest) -> bool:
        """Whether another session is at lengths for which the step of the first is made, and may run."""
        lengths = self._runner.step_lengths
        return other.owner.is_open and lengths(first.owner) == lengths(other.owner)
