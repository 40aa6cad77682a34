"""The scheduler: requests of all sessions in one queue, run as steps by whoever waits for one of them.

A thread that waits for its request, and finds nobody running, runs the queue itself until its own request is done;
the others wait. So one thread alone has no handover, and many share steps. ``start`` adds a thread that runs whatever
is there, for those that do not wait (asyncio). Parts of prompts and steps of decoding alternate where both wait.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from threading import Condition, Thread, current_thread
from typing import Any, Final, Generic, TypeVar

from tmmu.engine.queue.ready_queue import ReadyQueue
from tmmu.errors import InvalidConfig

Owner = TypeVar("Owner")
Result = TypeVar("Result")
JOIN_SECONDS: Final = 60.0


@dataclass(slots=True, kw_only=True, eq=False)
class Request(Generic[Owner, Result]):
    """Tokens that a session is to read. A prompt is read in parts: ``done`` tokens are in the state.

    ``source``: what an encoder reads instead, in one part, as a prompt.
    """

    owner: Owner
    tokens: Sequence[int]
    is_prompt: bool
    source: Any = None
    done: int = 0
    future: "Future[Result]" = field(default_factory=Future)


class Scheduler(Generic[Owner, Result]):
    """Runs requests. ``read_part`` runs a part of a prompt, and returns the result when it was the last; ``decode``
    runs one token of several requests, and returns a result or a refusal for each; ``can_join`` says whether a
    request may run in the step of another, ``can_run`` whether it may run now: where that changes, call ``wake``. They
    are called by one thread at a time, the last two with the lock of the scheduler.
    """

    def __init__(  # noqa: PLR0913 - what steps are made of, by name
        self,
        *,
        read_part: Callable[[Request[Owner, Result]], Result | None],
        decode: Callable[[Sequence[Request[Owner, Result]]], Sequence[Result | Exception]],
        can_join: Callable[[Request[Owner, Result], Request[Owner, Result]], bool],
        max_batch: int,
        queue: ReadyQueue[Request[Owner, Result]],
        can_run: Callable[[Request[Owner, Result]], bool] = lambda _: True,
    ) -> None:
        self._read_part, self._decode, self._can_join, self._can_run = read_part, decode, can_join, can_run
        self.max_batch = max_batch
        self._queue = queue
        self._prompt: Request[Owner, Result] | None = None
        self._decoded_last = False
        self._changed = Condition()
        self._runner: Thread | None = None
        """Who runs a step, while somebody does."""
        self._worker: Thread | None = None
        self._is_open = True
        self._closed_by: Exception | None = None
        self.steps = 0
        """Steps that were run, parts of prompts among them."""
        self.rows = 0
        """Rows of the steps that decoded: above their number where requests shared steps."""

    @property
    def waiting_requests(self) -> int:
        """Requests that wait for a step."""
        return len(self._queue)

    def submit(self, requests: Sequence[Request[Owner, Result]]) -> None:
        """Adds requests; somebody must run them. Once the scheduler is closed they end at once."""
        with self._changed:
            is_open = self._is_open
            for request in requests if is_open else ():
                self._queue.push(request)
            self._changed.notify_all()
        for request in () if is_open else requests:
            self._end(request)

    def cancel(self, request: Request[Owner, Result]) -> bool:
        """Takes a request out before its next step; false where it is done, or in a step now."""
        with self._changed:
            waits = self._queue.remove(request)
            if self._prompt is request and self._runner is None:
                self._prompt, waits = None, True
        if waits:
            _cancel_future(request.future)
            self.wake()
        return waits

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
        thread = current_thread()
        while not is_over():
            is_mine = False
            try:
                with self._changed:
                    while not is_over() and (self._runner is not None or not self._has_work()):
                        self._require_other_runner(thread)
                        self._changed.wait()
                    if is_over():
                        return
                    self._runner, is_mine = thread, True
                self._run_step()
            finally:  # an interruption may come before the step begins
                if is_mine:
                    with self._changed:
                        self._runner = None if self._runner is thread else self._runner
                        self._changed.notify_all()

    def _require_other_runner(self, thread: Thread) -> None:
        if self._runner is thread:
            raise InvalidConfig("a callback of a step waits for a step", fix="have it submit with Engine.enqueue")

    def start(self) -> None:
        """Has a thread of the scheduler's own run what is submitted. Starting again does nothing."""
        with self._changed:
            if self._worker is None and self._is_open:
                self._worker = Thread(target=self._work, name="tmmu-engine", daemon=True)
                self._worker.start()

    def close(self, error: Exception | None = None) -> None:
        """Stops the thread; what waits fails with ``error``, or is cancelled. Closing again does nothing."""
        waiting: list[Request[Owner, Result]] = []
        with self._changed:
            self._is_open, self._closed_by = False, error
            while (request := self._queue.first()) is not None:
                self._queue.remove(request)
                waiting.append(request)
            if self._prompt is not None and self._runner is None:
                waiting.append(self._prompt)
                self._prompt = None
            worker, self._worker = self._worker, None
            self._changed.notify_all()
        for request in waiting:  # outside of the condition: what is told of it takes locks of its own
            self._end(request)
        self.wake()
        if worker is not None:
            worker.join(JOIN_SECONDS)

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._is_open and (self._runner is not None or not self._has_work()):
                    self._changed.wait()
                if not self._is_open:
                    return
                self._runner = current_thread()
            try:
                self._run_step()
            except BaseException as error:  # noqa: BLE001 - nobody else would tell those who wait for this thread
                self._fail_waiting(error)

    def _fail_waiting(self, error: BaseException) -> None:
        """Fails whatever waits, since what is next cannot be chosen."""
        with self._changed:
            waiting = [] if self._prompt is None else [self._prompt]
            while (request := self._queue.first()) is not None:
                self._queue.remove(request)
                waiting.append(request)
        for request in waiting:  # outside of the condition, as in close
            self._fail(request, error)

    def _has_work(self) -> bool:
        """Whether a step of any request may run."""
        return (self._prompt is not None and self._can_run(self._prompt)) or self._queue.count(self._can_run) > 0

    def _run_step(self) -> None:
        """One step of whatever is next. Nobody else runs meanwhile."""
        batch: list[Request[Owner, Result]] = []
        try:
            with self._changed:
                batch = self._next_batch()
            batch = self._without_cancelled(batch)
            if batch:
                self._run(batch)
        except BaseException as error:
            for request in batch:
                self._fail(request, error)
            if not batch or not (isinstance(error, Exception) or current_thread() is self._worker):
                raise  # nobody's request failed of it, or the thread of a client is to end
        finally:
            with self._changed:
                self._runner = None
                unfinished = None if self._is_open else self._prompt
                self._changed.notify_all()
            if unfinished is not None:  # nobody would read its other parts
                self._end(unfinished)

    def _next_batch(self) -> list[Request[Owner, Result]]:
        """What runs in the next step: a part of a prompt, or one token of each of some requests, by turns."""
        kinds = (self._prompt_part, self._decode_batch)
        for kind in kinds if self._decoded_last else kinds[::-1]:
            batch = kind()
            if batch:
                self._decoded_last = not batch[0].is_prompt
                return batch
        return []

    def _prompt_part(self) -> list[Request[Owner, Result]]:
        if self._prompt is None:
            prompts = self._queue.take(1, lambda request: request.is_prompt and self._can_run(request))
            self._prompt = next(iter(prompts), None)
        return [] if self._prompt is None or not self._can_run(self._prompt) else [self._prompt]

    def _decode_batch(self) -> list[Request[Owner, Result]]:
        """The next request that decodes, and as many that may join it as make a power of two."""
        batch = self._queue.take(1, lambda request: not request.is_prompt and self._can_run(request))
        if not batch:
            return []

        def joins(request: Request[Owner, Result]) -> bool:
            return not request.is_prompt and self._can_run(request) and self._can_join(batch[0], request)

        try:
            rows = min(1 + self._queue.count(joins), self.max_batch)
            size = 1 << (rows.bit_length() - 1)
            return batch + self._queue.take(size - 1, joins)
        except BaseException:
            self._queue.push(batch[0])  # it would wait for ever
            raise

    def _without_cancelled(self, batch: list[Request[Owner, Result]]) -> list[Request[Owner, Result]]:
        """Without requests whose future was cancelled."""
        kept = [
            request for request in batch if request.future.running() or request.future.set_running_or_notify_cancel()
        ]
        if self._prompt is not None and self._prompt.future.cancelled():
            self._prompt = None
        return kept

    def _run(self, batch: list[Request[Owner, Result]]) -> None:
        self.steps += 1
        if not batch[0].is_prompt:
            self.rows += len(batch)
            for request, result in zip(batch, self._decode(batch), strict=True):
                if isinstance(result, Exception):
                    request.future.set_exception(result)
                else:
                    request.future.set_result(result)
            return
        request = batch[0]
        logits = self._read_part(request)
        if logits is not None:
            self._prompt = None
            request.future.set_result(logits)

    def _end(self, request: Request[Owner, Result]) -> None:
        """The end of a request that a closed scheduler does not run."""
        if self._closed_by is None:
            if self._prompt is request:
                self._prompt = None
            _cancel_future(request.future)
        else:
            self._fail(request, self._closed_by)
        self.wake()

    def _fail(self, request: Request[Owner, Result], error: BaseException) -> None:
        if self._prompt is request:
            self._prompt = None
        if not request.future.done():
            request.future.set_exception(error)


def _cancel_future(future: "Future[Result]") -> None:
    """Cancels a future, one that runs too: a prompt of which parts are read."""
    if not future.cancel() and not future.done():
        future.set_exception(CancelledError())
