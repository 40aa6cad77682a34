"""The events of a request's jobs, brought from the thread of a model's loop to the event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from tmmu.server.served_model import ServedModel
from tmmu.server.texts.generation_job import GenerationJob, TextEnd, TextEvent


class TextEvents:
    """What comes of one request. Nobody in a loop waits for a client: events are kept until they are read.

    Their number is bounded by the tokens that the request may have.
    """

    def __init__(self, model: ServedModel, texts: int) -> None:
        self._model, self._missing = model, texts
        self._jobs: Sequence[GenerationJob] = ()
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[TextEvent] = asyncio.Queue()

    def put(self, event: TextEvent) -> None:
        """Adds an event, from any thread."""
        with suppress(RuntimeError):  # the event loop has ended, and nobody reads any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    def start(self, jobs: Sequence[GenerationJob]) -> None:
        """Has the jobs run."""
        self._jobs = jobs
        for job in jobs:
            self._model.loop.submit(job)

    def cancel(self) -> None:
        """Has all jobs end, and their sessions be closed; nothing where they are over."""
        if self._missing:
            for job in self._jobs:
                self._model.loop.cancel(job)

    async def __aiter__(self) -> AsyncIterator[TextEvent]:
        """The events that were not read yet, up to the end of the last text."""
        while self._missing:
            event = await self._queue.get()
            self._missing -= isinstance(event, TextEnd)
            yield event
