"""What sessions wait for: one request each, in the queue of the scheduler."""

from collections.abc import Callable, Sequence
from threading import RLock

import torch

from tmmu.engine.fixed_arenas import FixedArenas
from tmmu.engine.leases import Clock, LeaseTable
from tmmu.engine.queue.fair_queue import FairQueue
from tmmu.engine.queue.scheduler import Scheduler
from tmmu.engine.requests.request_runner import RequestRunner, StepRequest
from tmmu.engine.session import Session
from tmmu.engine.step_claims import StepClaims
from tmmu.engine.step_stack import StepStack
from tmmu.engine.swap.swapping import SessionSwapping


class SessionRequests:
    """A session is needed, and its lease is renewed, from when its request is pushed until that is done.

    ``lock`` is the engine's, and is held where a request is pushed. ``require_ready`` raises what a session that cannot
    run is refused with.
    """

    def __init__(  # noqa: PLR0913 - what requests need, by name
        self,
        *,
        lock: RLock,
        claims: StepClaims,
        stacks: Sequence[StepStack],
        leases: LeaseTable,
        arenas: FixedArenas | SessionSwapping,
        require_ready: Callable[[Session], None],
        queue: FairQueue[StepRequest],
        max_batch: int,
        clock: Clock,
    ) -> None:
        self._lock, self._stacks, self._leases, self._arenas = lock, stacks, leases, arenas
        self._pending = dict[str, StepRequest]()
        self._runner = RequestRunner(
            lock=lock,
            claims=claims,
            stacks=stacks,
            leases=leases,
            must_yield=self._must_yield,
            require_ready=require_ready,
            step=arenas.step,
        )
        self.scheduler: Scheduler[Session, torch.Tensor] = Scheduler(
            read_part=self._runner.read_part,
            decode=self._runner.decode_rows,
            can_join=self._runner.can_join,
            max_batch=max_batch,
            queue=queue,
            can_run=self._can_run,
            clock=clock,
            stacks=len(stacks),
        )

    def push(self, request: StepRequest) -> StepRequest:
        """Queues the request of a session that may have one."""
        session = request.owner
        request.terms = session.terms
        self._runner.count_positions(request)
        self._pending[session.capability] = request
        self._arenas.need(session)
        self._leases.renew(session.capability)
        request.future.add_done_callback(lambda _: self._forget(session, request))
        self.scheduler.submit([request])
        return request

    def waits(self, capability: str) -> bool:
        """Whether a session waits for a request; one that is done may not be forgotten yet."""
        request = self._pending.get(capability)
        if request is not None and request.future.done():
            self._forget(request.owner, request)
            request = None
        return request is not None

    def cancel(self, session: Session) -> bool:
        """Takes back what a session waits for; what of it is in the state already stays. False where it is done."""
        with self._lock:
            request = self._pending.get(session.capability)
        return request is not None and self.scheduler.cancel(request)

    def drop_begun(self, session: Session) -> None:
        """Gives up a part of a prompt that has yielded, where there is one; the lock is held."""
        for stack in self._stacks:
            if stack.pieces is not None:
                stack.pieces.drop(session)

    def _forget(self, session: Session, request: StepRequest) -> None:
        """The end of a request, which is done; nothing at the second time."""
        with self._lock:
            if self._pending.get(session.capability) is not request:
                return
            del self._pending[session.capability]
            self.drop_begun(session)
            if request.future.cancelled():
                self.scheduler.cancel(request)  # by its future: it is in the queue still
            self._arenas.rest(session)

    def _must_yield(self, request: StepRequest) -> bool:
        return self.scheduler.must_yield(request)

    def _can_run(self, request: StepRequest) -> bool:
        """Whether the state of a session is on the device, or it is refused. Called with the scheduler's lock."""
        return self._arenas.may_run(request.owner)
