"""The scheduler: requests of all sessions in one queue, run as steps by whoever waits for one of them.

A thread that waits for its request, and finds nobody running, runs the queue itself until its own request is done;
the others wait. So one thread alone has no handover, and many share steps. ``start`` adds a thread that runs whatever
is there, for those that do not wait (asyncio). Who is next is the queue's to say (``fair_queue.py``). A request that
is not done by its deadline ends between two of its steps.

With several stacks as many steps run at once. That is of the first stack; each other one has a thread of its own, which
takes a step while all stacks before it have one: so one request alone has no handover either.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from math import ceil
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Any, Final, Generic, TypeAlias, TypeVar

from tmmu.engine.queue.fair_queue import FairQueue
from tmmu.engine.queue.terms import CLASSES, DEFAULT_TERMS, QueueTerms
from tmmu.errors import DeadlineExceeded, InvalidConfig

Owner = TypeVar("Owner")
Result = TypeVar("Result")
JOIN_SECONDS: Final = 60.0
LONGEST_SLEEP: Final = 3600.0
"""Seconds after which whoever waits for a deadline looks again: threads cannot sleep for ever."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request(Generic[Owner, Result]):
    """Tokens that a session is to read. A prompt is read in parts: ``done`` tokens are in the state.

    ``source``: what an encoder reads instead, in one part, as a prompt. ``positions``: what its next step computes;
    ``uncounted``: what the last one has computed beside those.
    ``came``, ``since``: seconds of the scheduler's clock when it was submitted, and when it began to wait for its next
    step; ``waited``: how long it has waited for those that it had. ``due``: when it is too late for another one.
    """

    owner: Owner
    tokens: Sequence[int]
    is_prompt: bool
    source: Any = None
    done: int = 0
    terms: QueueTerms = DEFAULT_TERMS
    positions: int = 1
    uncounted: int = 0
    came: float = 0.0
    since: float = 0.0
    waited: float = 0.0
    due: float | None = None
    stack: int | None = None
    """The stack in which it has begun, and goes on; ``None``: any."""
    is_withdrawn: bool = False
    """Whether it was cancelled while a part of it ran, behind which it ends."""
    future: "Future[Result]" = field(default_factory=Future)


_Fits: TypeAlias = Callable[[Request[Owner, Result]], bool]


@dataclass(slots=True, eq=False)
class _StackTurn(Generic[Owner, Result]):
    """Who runs a step in a stack, while somebody does, what is in it, and what ends his waiting.

    ``worker``: the thread that is there for it. ``read_last``: whether its last step read a part of a prompt.
    """

    number: int
    runner: Thread | None = None
    batch: list[Request[Owner, Result]] = field(default_factory=list)
    has_news: Callable[[], bool] = lambda: False
    worker: Thread | None = None
    read_last: bool | None = None


class Scheduler(Generic[Owner, Result]):
    """Runs requests in as many ``stacks``. ``read_part`` runs a part of a prompt in a stack, and returns the result
    when it was the last; ``decode`` runs one token of several requests, and returns a result or a refusal for each;
    ``can_join`` says whether a request may run in the step of another, ``can_run`` whether it may run now: where that
    changes, call ``wake``. They are called by one thread at a time for each stack, the last two with the lock of the
    scheduler.
    """

    def __init__(  # noqa: PLR0913 - what steps are made of, by name
        self,
        *,
        read_part: Callable[[Request[Owner, Result], int], Result | None],
        decode: Callable[[Sequence[Request[Owner, Result]], int], Sequence[Result | Exception]],
        can_join: Callable[[Request[Owner, Result], Request[Owner, Result]], bool],
        max_batch: int,
        queue: FairQueue[Request[Owner, Result]],
        can_run: Callable[[Request[Owner, Result]], bool] = lambda _: True,
        clock: Callable[[], float] = monotonic,
        stacks: int = 1,
    ) -> None:
        self._read_part, self._decode, self._can_join, self._can_run = read_part, decode, can_join, can_run
        self.max_batch = max_batch
        self.queue, self._clock = queue, clock
        self._changed = Condition()
        self._turns: list[_StackTurn[Owner, Result]] = [_StackTurn(number) for number in range(stacks)]
        self._is_open = True
        self._closed_by: Exception | None = None
        self.steps = 0
        """Steps that were run, parts of prompts among them."""
        self.rows = 0
        """Rows of the steps that decoded: above their number where requests shared steps."""
        self.phase_switches = 0
        """Steps that decoded where the one before read a part of a prompt, and the other way round."""
        self.late = 0
        """Requests that were not done by their deadline."""
        self.on_step: Callable[[Request[Owner, Result], float], object] = lambda _request, _seconds: None
        """Told of each request whose step begins, and how long it has waited for it; may not raise or wait."""

    @property
    def waiting_requests(self) -> int:
        """Requests that wait for a step."""
        return len(self.queue)

    def submit(self, requests: Sequence[Request[Owner, Result]]) -> None:
        """Adds requests; somebody must run them. Once the scheduler is closed they end at once."""
        with self._changed:
            is_open, now = self._is_open, self._clock()
            self._start_workers(self._turns[1:])  # first: where the system has no thread, nothing was submitted
            for request in requests if is_open else ():
                request.came = request.since = now
                request.due = _earlier(request.due, now, request.terms.deadline)
                self.queue.push(request)
            self._changed.notify_all()
        for request in () if is_open else requests:
            self._end(request)

    def cancel(self, request: Request[Owner, Result]) -> bool:
        """Takes a request out before its next step; false where it is done, or its only step runs.

        A prompt of which a part runs, or a piece, ends behind that.
        """
        with self._changed:
            waits = self.queue.remove(request)
            if not waits and request.is_prompt and self._turn_of(request) is not None:
                request.is_withdrawn = True
                return True
        if waits:
            _cancel_future(request.future)
            self.wake()
        return waits

    def must_yield(self, request: Request[Owner, Result]) -> bool:
        """Whether a request whose step may pause lets go: a higher class waits, it is over, or the runner has news."""
        with self._changed:
            is_over = request.is_withdrawn or not self._is_open
            is_over = is_over or (request.due is not None and request.due <= self._clock())
            turn = self._turn_of(request)
            has_news = turn is not None and turn.has_news()
            return is_over or has_news or self.queue.outranks(request, self._can_run)

    def _turn_of(self, request: Request[Owner, Result]) -> _StackTurn[Owner, Result] | None:
        """The stack in which a step of a request runs."""
        return next((turn for turn in self._turns if any(each is request for each in turn.batch)), None)

    def wake(self) -> None:
        """Has everybody who waits look again: a request may run that could not, or is no more."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, requests: Sequence[Request[Owner, Result]]) -> list[Result]:
        """The results of submitted requests, once all are done; raises what one of them raised.

        Whoever is interrupted meanwhile takes his requests back.
        """
        try:
            self.run_until(lambda: all(request.future.done() for request in requests))
        except BaseException:
            for request in requests:
                self.cancel(request)
            raise
        return [request.future.result() for request in requests]

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """Runs whatever may run until ``is_over``; waits where nothing may, or somebody else runs it.

        ``INVALID_CONFIG`` in a callback of a step, which would wait for its own end.
        """
        thread, turn = current_thread(), self._turns[0]
        while not is_over():
            is_mine = False
            try:
                with self._changed:
                    while not (is_over() or self._is_late() or self._may_begin(turn)):
                        self._require_other_runner(thread)
                        self._changed.wait(self._seconds_to_due())
                    if is_over():
                        return
                    late = self._take_late()
                    if not late:
                        turn.runner, is_mine, turn.has_news = thread, True, is_over
                self._end_late(late)
                if is_mine:
                    self._run_step(turn)
            finally:  # an interruption may come before the step begins
                if is_mine:
                    with self._changed:
                        turn.runner = None if turn.runner is thread else turn.runner
                        self._changed.notify_all()

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Waits until ``is_over``, and runs nothing: threads of the scheduler's own do (``start``)."""
        with self._changed:
            self._changed.wait_for(is_over)

    def _may_begin(self, turn: _StackTurn[Owner, Result]) -> bool:
        """Whether a step may begin in a stack that has none: all before it have one, and there is a request for it; or
        there is one that has begun in it.
        """
        if turn.runner is not None:
            return False
        if all(other.runner is not None for other in self._turns[: turn.number]):
            return self._has_work(turn)
        return self.queue.count(lambda request: request.stack == turn.number and self._can_run(request)) > 0

    def _is_late(self) -> bool:
        due = self.queue.next_due
        return due is not None and due <= self._clock()

    def _seconds_to_due(self) -> float | None:
        """How long to wait at most before somebody is to be told that it is too late."""
        due = self.queue.next_due
        return None if due is None else min(max(0.0, due - self._clock()), LONGEST_SLEEP)

    def _take_late(self) -> list[Request[Owner, Result]]:
        return self.queue.take_late(self._clock()) if self._is_late() else []

    def _end_late(self, late: Sequence[Request[Owner, Result]]) -> None:
        """Tells requests that it is too late: outside of the condition, since what is told of it takes locks."""
        for request in late:
            self.late += 1
            self._fail(request, self._lateness(request))
        if late:
            self.wake()

    def _lateness(self, request: Request[Owner, Result]) -> DeadlineExceeded:
        milliseconds = ceil(1000 * (self._clock() - request.came))
        is_highest = request.terms.qos == CLASSES[0]
        return DeadlineExceeded(
            f"a request of class {request.terms.qos} was not done {milliseconds} ms after it came",
            fix="give a later deadline" if is_highest else "give a later deadline, or a higher class",
            milliseconds=milliseconds,
            qos=request.terms.qos,
        )

    def _require_other_runner(self, thread: Thread) -> None:
        if any(turn.runner is thread for turn in self._turns):
            raise InvalidConfig("a callback of a step waits for a step", fix="have it submit with Engine.enqueue")

    def start(self) -> None:
        """Has threads of the scheduler's own run what is submitted. Starting again does nothing."""
        with self._changed:
            self._start_workers(self._turns)

    def _start_workers(self, turns: Sequence[_StackTurn[Owner, Result]]) -> None:
        for turn in turns if self._is_open else ():
            if turn.worker is None:
                name = f"tmmu-engine-{turn.number}"
                worker = Thread(target=self._work, args=(turn,), name=name, daemon=True)
                worker.start()
                turn.worker = worker

    def close(self, error: Exception | None = None) -> None:
        """Stops the threads; what waits fails with ``error``, or is cancelled. Closing again does nothing."""
        with self._changed:
            self._is_open, self._closed_by = False, error
            waiting = self.queue.clear()
            workers = [turn.worker for turn in self._turns if turn.worker is not None]
            self._changed.notify_all()
        for request in waiting:  # outside of the condition: what is told of it takes locks of its own
            self._end(request)
        self.wake()
        for worker in workers:
            worker.join(JOIN_SECONDS)

    def _work(self, turn: _StackTurn[Owner, Result]) -> None:
        while True:
            with self._changed:
                while self._is_open and not self._is_late() and not self._may_begin(turn):
                    self._changed.wait(self._seconds_to_due())
                if not self._is_open:
                    return
                late = self._take_late()
                if not late:
                    turn.runner = current_thread()
            self._end_late(late)
            if late:
                continue
            try:
                self._run_step(turn)
            except BaseException as error:  # noqa: BLE001 - nobody else would tell those who wait for this thread
                self._fail_waiting(error)

    def _fail_waiting(self, error: BaseException) -> None:
        """Fails whatever waits, since what is next cannot be chosen."""
        with self._changed:
            waiting = self.queue.clear()
        for request in waiting:  # outside of the condition, as in close
            self._fail(request, error)

    def _has_work(self, turn: _StackTurn[Owner, Result]) -> bool:
        """Whether a step of any request may run in a stack."""
        return self.queue.count(self._can_run_in(turn)) > 0

    def _can_run_in(self, turn: _StackTurn[Owner, Result]) -> _Fits[Owner, Result]:
        if len(self._turns) == 1:
            return self._can_run
        return lambda request: request.stack in (None, turn.number) and self._can_run(request)

    def _run_step(self, turn: _StackTurn[Owner, Result]) -> None:
        """One step of whatever is next. Nobody else runs in that stack meanwhile."""
        batch: list[Request[Owner, Result]] = []
        try:
            with self._changed:
                batch = self._next_batch(turn)
                if len(self._turns) > 1:
                    self._changed.notify_all()  # the next stack's turn has come
            batch = self._without_cancelled(batch)
            if batch:
                self._run(turn, batch)
        except BaseException as error:
            for request in batch:
                self._fail(request, error)
            if not batch or not (isinstance(error, Exception) or current_thread() is turn.worker):
                raise  # nobody's request failed of it, or the thread of a client is to end
        finally:
            unfinished = self._end_step(turn, batch)
            for request in unfinished:  # nobody would read its other parts
                self._end(request)

    def _end_step(
        self, turn: _StackTurn[Owner, Result], batch: Sequence[Request[Owner, Result]]
    ) -> list[Request[Owner, Result]]:
        """What of a step is not done waits again; the requests that are to end in place of that."""
        with self._changed:
            turn.batch, turn.runner, turn.has_news = [], None, _never
            for request in batch:
                self.queue.charge(request, request.uncounted)
                request.uncounted = 0
            going_on = [request for request in batch if not request.future.done()]
            unfinished = [request for request in going_on if request.is_withdrawn or not self._is_open]
            for request in going_on:
                if request.is_withdrawn or not self._is_open:
                    continue
                request.since = self._clock()
                self.queue.put_back(request)
            self._changed.notify_all()
        return unfinished

    def _next_batch(self, turn: _StackTurn[Owner, Result]) -> list[Request[Owner, Result]]:
        """What runs in the next step: a part of a prompt, or one token of each of some requests."""
        first = self.queue.take_next(self._clock(), self._can_run_in(turn))
        if first is None:
            return []
        try:
            batch = [first] if first.is_prompt else [first, *self._take_beside(first)]
        except BaseException:
            self.queue.put_back(first)  # it would wait for ever
            raise
        self.queue.charge_step(batch)
        turn.batch = batch
        return batch

    def _take_beside(self, first: Request[Owner, Result]) -> list[Request[Owner, Result]]:
        """As many that decode with the first as make a power of two."""

        def joins(request: Request[Owner, Result]) -> bool:
            return not request.is_prompt and self._can_run(request) and self._can_join(first, request)

        rows = min(1 + self.queue.count(joins), self.max_batch)
        return self.queue.take_beside((1 << (rows.bit_length() - 1)) - 1, joins)

    def _without_cancelled(self, batch: list[Request[Owner, Result]]) -> list[Request[Owner, Result]]:
        """Without requests whose future was cancelled."""
        return [
            request for request in batch if request.future.running() or request.future.set_running_or_notify_cancel()
        ]

    def _run(self, turn: _StackTurn[Owner, Result], batch: list[Request[Owner, Result]]) -> None:
        is_prompt = batch[0].is_prompt
        with self._changed:
            self.steps += 1
            self.rows += 0 if is_prompt else len(batch)
            self.phase_switches += turn.read_last not in (None, is_prompt)
            turn.read_last = is_prompt
        now = self._clock()
        for request in batch:
            request.waited += now - request.since
            self.on_step(request, now - request.since)
        if not is_prompt:
            for request, result in zip(batch, self._decode(batch, turn.number), strict=True):
                if isinstance(result, Exception):
                    request.future.set_exception(result)
                else:
                    request.future.set_result(result)
            return
        request = batch[0]
        logits = self._read_part(request, turn.number)
        with self._changed:
            is_withdrawn, turn.batch = request.is_withdrawn, []
        if logits is not None and not is_withdrawn:
            request.future.set_result(logits)

    def _end(self, request: Request[Owner, Result]) -> None:
        """The end of a request that was withdrawn, or that a closed scheduler does not run."""
        if self._closed_by is None or request.is_withdrawn:
            _cancel_future(request.future)
        else:
            self._fail(request, self._closed_by)
        self.wake()

    def _fail(self, request: Request[Owner, Result], error: BaseException) -> None:
        if not request.future.done():
            request.future.set_exception(error)


def _cancel_future(future: "Future[Result]") -> None:
    """Cancels a future, one that runs too: a prompt of which parts are read."""
    if not future.cancel() and not future.done():
        future.set_exception(CancelledError())


def _earlier(due: float | None, now: float, seconds: float | None) -> float | None:
    """The earlier of a time and so many seconds from now; ``None``: no end."""
    times = [time for time in (due, None if seconds is None else now + seconds) if time is not None]
    return min(times, default=None)


def _never() -> bool:
    return False
