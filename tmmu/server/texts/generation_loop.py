"""The loop of a model: one thread that opens sessions, has the engine's queue run, and chooses tokens, for all clients.

Whatever a client wants goes to the engine's queue at once, and this thread alone runs it: tokens of all texts that
have their logits are submitted together, so that they share steps. Where several steps run at once each stack has a
thread, and this one chooses tokens alone. It waits nowhere but in the queue. A job that is cancelled has its sessions
closed before the next step.
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from tmmu.errors import InternalError, SegmentFull, ServerBusy, TmmuError
from tmmu.server.logs import log_event
from tmmu.server.pressure.watch import PressureWatch
from tmmu.server.texts.generation_job import FinishReason, GenerationJob, TextEnd, TextPiece
from tmmu.server.texts.text_track import TextTrack, text_to_recompute
from tmmu.server.texts.text_writer import TextWriter

if TYPE_CHECKING:
    import torch

    from tmmu.engine.engine import Engine
    from tmmu.engine.queue.terms import QosClass
    from tmmu.engine.requests.request_runner import StepRequest
    from tmmu.engine.session import Session
    from tmmu.engine.text import Text

JOIN_SECONDS: Final = 60.0


class LoopObserver(Protocol):
    """What is told of texts, for metrics; called by the loop's thread."""

    def session_opened(self) -> None:
        """A session was opened."""

    def session_closed(self, seconds: float) -> None:
        """A session was closed, so many seconds after it was opened."""

    def first_token(self, seconds: float) -> None:
        """A text has its first token, so many seconds after its job came."""

    def next_token(self, seconds: float) -> None:
        """A text has another token, so many seconds after the one before."""

    def text_recomputed(self) -> None:
        """A text gave its room to others, and will be read again."""

    def step_begins(self, qos: "QosClass", seconds: float) -> None:
        """A step of a request of this class begins, for which it has waited so many seconds."""


class GenerationLoop:
    """Runs jobs on one engine. ``encodes``: the prompt is read by an encoder. ``text``: the tokenizer, where one is."""

    def __init__(  # noqa: PLR0913 - by name
        self,
        engine: "Engine",
        *,
        name: str,
        text: "Text | None",
        encodes: bool,
        observer: LoopObserver,
        watch: PressureWatch,
    ) -> None:
        self._engine, self._text, self._encodes, self._observer = engine, text, encodes, observer
        self._inbox: deque[GenerationJob] = deque()
        self._tracks: list[TextTrack] = []
        self._by_session: dict[str, TextTrack] = {}
        self._lock = Lock()
        self._has_news = False
        self._watch = watch
        engine.scheduler.on_step = self._begin_step
        self._wait_until = engine.scheduler.run_until
        if engine.stacks > 1:
            engine.scheduler.start()
            self._wait_until = engine.scheduler.wait_until
        self._ending: TmmuError | None = None
        """What jobs end with from now on: the loop was closed, or has failed."""
        self._thread = Thread(target=self._run, name=f"tmmu-serve {name}", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether jobs are run; not once it was closed, or has failed."""
        return self._ending is None

    def submit(self, job: GenerationJob) -> None:
        """Has a job run; its events say how it goes. Where the loop runs none any more it ends at once."""
        with self._lock:
            ending = self._ending
            if ending is None:
                self._inbox.append(job)
        if ending is None:
            self._wake()
        else:
            _end_all(job, ending)

    def cancel(self, job: GenerationJob) -> None:
        """Has a job end before the next step, and its sessions be closed; nothing where it is over."""
        job.is_cancelled = True
        self._wake()

    def close(self) -> None:
        """Ends what is under way, and the thread. Closing again does nothing."""
        self._stop(ServerBusy("the server is about to end", fix="send the request to another one"))
        self._wake()
        self._thread.join(JOIN_SECONDS)

    def _stop(self, ending: TmmuError) -> None:
        """Takes no more jobs on; the first reason stays."""
        with self._lock:
            self._ending = self._ending or ending

    def _wake(self, *_: object) -> None:
        self._has_news = True
        self._engine.scheduler.wake()

    def _run(self) -> None:
        try:
            while self._ending is None:
                self._has_news = False
                self._begin_jobs()
                for track in tuple(self._tracks):
                    if track.job.is_cancelled:
                        self._finish(track, ServerBusy("the request was cancelled", fix="send it again"))
                    elif track.future is None or track.future.done():
                        self._guard(track, self._advance)
                self._watch_room()
                self._wait_until(lambda: self._has_news or self._watch.has_news)
        except BaseException as error:  # noqa: BLE001 - nobody else would tell those who wait for this thread
            log_event("loop_failed", level=logging.ERROR, failure=error)
            self._stop(InternalError(f"the loop of the model has failed: {error}", fix="restart the server"))
        if self._ending is not None:
            self._end_everything(self._ending)

    def _watch_room(self) -> None:
        """Looks at the room of sessions where one came or went, or it is not as it should be."""
        if self._watch.has_news or self._watch.gauge.level != "normal":
            self._watch.note()
            if self._watch.recomputes and not self._encodes:
                track = text_to_recompute(self._tracks, self._engine)
                if track is not None:
                    self._guard(track, self._give_room)

    def _give_room(self, track: TextTrack) -> None:
        """Closes the session of a text; another one reads what it has read, once there is room, and goes on."""
        self._engine.cancel(track.session)
        self._by_session.pop(track.session.capability, None)
        track.session.close()
        self._observer.session_closed(monotonic() - track.opened)
        track.recomputed += 1
        track.session, track.opened = self._session_for(track.job), monotonic()
        self._observer.session_opened()
        tokens = (*track.job.prompt, *track.chosen)
        self._wait_for(track, lambda: self._engine.enqueue(track.session, tokens, due=track.job.due))
        self._observer.text_recomputed()

    def _begin_jobs(self) -> None:
        while self._inbox:
            job = self._inbox.popleft()
            try:
                if job.is_cancelled:
                    raise ServerBusy("the request was cancelled", fix="send it again")
                track = self._open(job, 0) if job.session is None else self._take_over(job, job.session)
            except Exception as error:  # noqa: BLE001 - a job that fails is its own
                _end_all(job, _as_tmmu_error(error))
                continue
            self._guard(track, self._read_prompt)

    def _open(self, job: GenerationJob, index: int) -> TextTrack:
        """A session for a choice that is to read the prompt itself."""
        return self._add(TextTrack(job, index, self._session_for(job), None))

    def _session_for(self, job: GenerationJob) -> "Session":
        tokens = len(self._engine.start) + job.max_new_tokens if self._encodes else len(job.prompt) + job.max_new_tokens
        return self._engine.open(
            min(tokens, self._engine.limits.max_tokens),
            source=len(job.prompt) if self._encodes else None,
            qos=job.terms.qos,
            client=job.terms.client,
            weight=job.terms.weight,
        )

    def _take_over(self, job: GenerationJob, session: "Session") -> TextTrack:
        """A choice in a session that is there; what its encoder is to read was read."""
        track = TextTrack(job, 0, session, None)
        track.is_encoded = True
        self._tracks.append(track)
        return track

    def _add(self, track: TextTrack) -> TextTrack:
        self._tracks.append(track)
        self._observer.session_opened()
        return track

    def _read_prompt(self, track: TextTrack) -> None:
        job = track.job
        if job.session is not None and not job.prompt:
            logits = self._engine.logits_of(job.session)
            self._wait_for(track, lambda: _done(logits))
        elif self._encodes and job.session is None:
            self._wait_for(track, lambda: self._engine.enqueue_source(track.session, job.prompt, due=job.due))
        else:
            self._wait_for(track, lambda: self._engine.enqueue(track.session, job.prompt, due=job.due))

    def _wait_for(self, track: TextTrack, enqueue: "Callable[[], Future[torch.Tensor]]") -> None:
        track.stages.enter("queue")
        self._by_session[track.session.capability] = track  # its step may begin at once
        track.future = future = enqueue()
        future.add_done_callback(lambda _: self._end_wait(track))

    def _begin_step(self, request: "StepRequest", seconds: float) -> None:
        """A step begins that a text has waited for, so many seconds."""
        self._observer.step_begins(request.terms.qos, seconds)
        track = self._by_session.get(request.owner.capability)
        if track is not None:
            if track.stages.stage == "execute":  # parts of a prompt: it has waited since the one before
                track.stages.move("execute", "queue", seconds)
            track.stages.enter("execute")
            track.lookups = self._engine.lookup_seconds if track.lookups is None else track.lookups

    def _end_wait(self, track: TextTrack) -> None:
        """The logits are there, or will never be."""
        if track.lookups is not None:
            track.stages.move("execute", "lookup", self._engine.lookup_seconds - track.lookups)
            track.lookups = None
        track.stages.enter("result")
        self._has_news = True

    def _guard(self, track: TextTrack, step: Callable[[TextTrack], None]) -> None:
        """Runs a step of a choice; where it fails, the choice does."""
        try:
            step(track)
        except Exception as error:  # noqa: BLE001 - a choice that fails is its own
            self._finish(track, _as_tmmu_error(error))

    def _advance(self, track: TextTrack) -> None:
        """Chooses the next token of a choice that has its logits, and has it read, if another one follows."""
        assert track.future is not None
        logits = track.future.result()
        if self._encodes and not track.is_encoded:
            track.is_encoded = True
            self._wait_for(track, lambda: self._engine.enqueue(track.session, self._engine.start, due=track.job.due))
            return
        if track.generation is None:
            self._begin_text(track)
            if track.index == 0:
                self._open_others(track)
        self._choose(track, logits)

    def _begin_text(self, track: TextTrack) -> None:
        job = track.job
        ends = (*(self._engine.stop if job.has_own_ends else ()), *job.stop_tokens)
        generation = track.session.generation(job.max_new_tokens, job.sampling, job.seed_of(track.index), ends)
        generation.is_first = bool(job.prompt)
        track.writer = TextWriter(self._text if job.session is None else None, ends=generation.ends, stops=job.stops)
        track.generation = generation

    def _open_others(self, first: TextTrack) -> None:
        """Sessions for the other choices of a job: forks, or such as read the prompt themselves, once there is room."""
        for index in range(1, first.job.choices):
            try:
                self._open_fork(first, index)
            except Exception as error:  # noqa: BLE001 - a choice that fails is its own
                self._end_choice(first.job, index, _as_tmmu_error(error))

    def _open_fork(self, first: TextTrack, index: int) -> None:
        try:
            track = self._add(TextTrack(first.job, index, self._engine.fork(first.session), first.future))
        except SegmentFull:
            self._guard(self._open(first.job, index), self._read_prompt)
        else:
            track.is_encoded = True
            self._guard(track, self._advance)

    def _choose(self, track: TextTrack, logits: "torch.Tensor") -> None:
        assert track.generation is not None
        assert track.writer is not None
        token = track.generation.choose(logits)
        track.chosen.append(token)
        self._time_token(track)
        text = track.writer.add(token)
        goes_on = track.generation.goes_on and not track.writer.is_over
        if goes_on:
            self._wait_for(track, lambda: self._engine.enqueue(track.session, [token], due=track.job.due))
        else:
            text += track.writer.flush()
        track.job.on_event(TextPiece(choice=track.choice, text=text, tokens=track.tokens, token=token))
        if not goes_on:
            self._finish(track, None)

    def _time_token(self, track: TextTrack) -> None:
        now = monotonic()
        track.tokens += 1
        if track.tokens == 1:
            self._observer.first_token(now - track.job.came)
        else:
            self._observer.next_token(now - track.last_token)
        track.last_token = now

    def _finish(self, track: TextTrack, error: TmmuError | None) -> None:
        """Closes the session of a choice, then says that it is over."""
        self._tracks.remove(track)
        self._by_session.pop(track.session.capability, None)
        try:
            self._engine.cancel(track.session)
            if track.job.session is None:
                track.session.close()
        except Exception as failure:  # noqa: BLE001 - the others go on
            error = error or _as_tmmu_error(failure)
        if track.job.session is None:
            self._observer.session_closed(monotonic() - track.opened)
        if track.index == 0 and track.generation is None:  # the others were not opened yet
            for index in range(1, track.job.choices):
                self._end_choice(track.job, index, error)
        reason: FinishReason | None = (
            None if error else "stop" if track.writer is not None and track.writer.is_over else "length"
        )
        track.stages.enter("result")
        track.job.on_event(
            TextEnd(choice=track.choice, tokens=track.tokens, reason=reason, error=error, stages=track.stages)
        )

    def _end_choice(self, job: GenerationJob, index: int, error: TmmuError | None) -> None:
        """The end of a choice that never had a session."""
        _end_without_session(job, index, error)

    def _end_everything(self, error: TmmuError) -> None:
        for track in tuple(self._tracks):
            self._finish(track, error)
        while self._inbox:
            _end_all(self._inbox.popleft(), error)


def _done(logits: "torch.Tensor") -> "Future[torch.Tensor]":
    """Logits that are there already."""
    future: Future[torch.Tensor] = Future()
    future.set_result(logits)
    return future


def _end_all(job: GenerationJob, error: TmmuError) -> None:
    """The end of a job of which no session was opened."""
    for index in range(job.choices):
        _end_without_session(job, index, error)


def _end_without_session(job: GenerationJob, index: int, error: TmmuError | None) -> None:
    job.stages.enter("result")
    job.on_event(
        TextEnd(choice=job.first_choice + index, tokens=0, reason=None, error=error, stages=job.stages.branch())
    )


def _as_tmmu_error(error: Exception) -> TmmuError:
    """What a client is told: a coded error as it is, of any other that it was ours. The log has its traceback."""
    if isinstance(error, TmmuError):
        return error
    log_event("step_failed", level=logging.ERROR, failure=error)
    return InternalError(f"{type(error).__name__} in a step", fix="the server's log has more")
