"""The requests that generate: read, admitted, run by the model's loop, and answered whole or as a stream of events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

import msgspec
from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import Response

from tmmu.errors import ServerBusy, TmmuError
from tmmu.server.admission.request_terms import RequestTerms, read_terms
from tmmu.server.http.answers import AnswerForm, ChatForm, ChoiceText, CompletionForm, usage_of
from tmmu.server.http.bodies import ChatBody, CompletionBody, GenerationBody, decode_body
from tmmu.server.http.event_stream import EventStream
from tmmu.server.http.jobs import ReadRequest, jobs_of, read_chat, read_completion
from tmmu.server.http.receive import read_body, until_disconnected
from tmmu.server.http.refusals import error_object
from tmmu.server.http.text_events import TextEvents
from tmmu.server.model_table import ModelTable
from tmmu.server.served_model import ServedModel
from tmmu.server.settings import ServerSettings
from tmmu.server.texts.generation_job import TextEnd, TextEvent, TextPiece
from tmmu.wire.stages import StageTimeline

Body = TypeVar("Body", bound=GenerationBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKind(Generic[Body]):
    """What sets requests to one path apart."""

    body: type[Body]
    read: Callable[[Body, ServedModel, ServerSettings], ReadRequest]
    form: Callable[..., AnswerForm]


COMPLETION: RequestKind[CompletionBody] = RequestKind(body=CompletionBody, read=read_completion, form=CompletionForm)
CHAT: RequestKind[ChatBody] = RequestKind(body=ChatBody, read=read_chat, form=ChatForm)


class CompletionDoor:
    """Answers requests of both kinds on the models of a table."""

    def __init__(self, models: ModelTable, settings: ServerSettings) -> None:
        self._models, self._settings = models, settings

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        return await self._answer(request, COMPLETION)

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._answer(request, CHAT)

    async def _answer(self, request: Request, kind: RequestKind[Body]) -> Response:
        came, stages = monotonic(), request.state.stages
        content = await read_body(request, self._settings)
        stages.enter("serialize")
        body = decode_body(content, kind.body)
        model = self._models.find(body.model)
        terms = self._terms_of(request, body, came)
        read = await asyncio.to_thread(kind.read, body, model, self._settings)
        request.state.log |= {"model": model.name, "prompt_tokens": read.prompt_tokens, "texts": read.texts}
        run = _Run(self._models, model, read, terms, request.state)
        has_usage = body.stream_options is not None and body.stream_options.include_usage
        form = kind.form(model=model.name, has_usage=has_usage, tier=terms.tier if _tier_of(body) else None)
        run.begin(body)
        try:
            if not body.stream:
                choices = await until_disconnected(request, run.collect())
                answer = form.whole(choices, usage_of(read.prompt_tokens, choices))
                content = msgspec.json.encode(answer)
                stages.enter("network")
                return Response(content, media_type="application/json")
            first = await until_disconnected(request, run.first())
        except BaseException:
            await run.end()
            raise
        stream = run.stream(first, form, has_usage=has_usage)
        return EventStream(stream, run.end, send_seconds=self._settings.send_seconds)

    def _terms_of(self, request: Request, body: GenerationBody, came: float) -> RequestTerms:
        """The terms of a request; its class is in the log, and a header of the answer."""
        terms = read_terms(
            request.headers,
            _tier_of(body),
            client=request.state.log.get("client", ""),
            rights=request.state.rights,
            came=came,
            has_classes=self._settings.qos,
        )
        request.state.log["class"] = terms.queue.qos
        return terms


class _Run:
    """One request that was admitted, until ``end``."""

    def __init__(
        self, models: ModelTable, model: ServedModel, read: ReadRequest, terms: RequestTerms, state: State
    ) -> None:
        self._models, self._model, self._read, self._terms = models, model, read, terms
        self._log: dict[str, Any] = state.log
        self._stages: StageTimeline = state.stages
        self._events = TextEvents(model, read.texts)
        self._choices = [ChoiceText() for _ in range(read.texts)]
        self._is_over = False

    def begin(self, body: GenerationBody) -> None:
        """Admits the request and has its jobs run. ``SERVER_BUSY`` where there are as many as the server takes."""
        read = self._read
        jobs = jobs_of(body, read, self._events.put, self._terms, self._stages)
        self._models.admit(self._model, read.texts, read.prompt_tokens, most=read.most_tokens, terms=self._terms)
        self._events.start(jobs)

    async def collect(self) -> list[ChoiceText]:
        """All choices as they are in the end; raises what one of them failed of."""
        async for event in self._events:
            self._note(event)
        await self.end()
        return self._choices

    async def first(self) -> TextEvent:
        """The first event, before which the answer has no status yet; raises what it says."""
        async for event in self._events:
            self._note(event)
            return event
        raise ServerBusy("there is no text", fix="send the request again")

    async def stream(self, first: TextEvent, form: AnswerForm, *, has_usage: bool) -> AsyncIterator[bytes]:
        """The lines of a stream of events. A failure after its beginning is its last event."""
        for chunk in form.first_chunks(len(self._choices)):
            yield _line(chunk)
        try:
            for chunk in self._chunks(first, form):
                yield _line(chunk)
            async with aclosing(aiter(self._events)) as events:  # type: ignore[type-var]
                async for event in events:
                    self._note(event)
                    for chunk in self._chunks(event, form):
                        yield _line(chunk)
        except TmmuError as error:
            self._log["code"] = error.code
            yield _line(error_object(error))
            return
        self._stages.enter("network")
        if has_usage:
            yield _line(form.usage_chunk(usage_of(self._read.prompt_tokens, self._choices)))
        yield b"data: [DONE]\n\n"

    async def end(self) -> None:
        """Closes what is left of the request, and makes room for another one. Again it does nothing."""
        if self._is_over:
            return
        self._is_over = True
        self._events.cancel()
        completion = self._log["completion_tokens"] = sum(choice.tokens for choice in self._choices)
        unused = self._read.most_tokens - self._read.prompt_tokens - completion
        try:
            await asyncio.shield(self._drain())
        finally:
            self._models.release(self._model, self._read.texts, unused=unused, terms=self._terms)

    async def _drain(self) -> None:
        """Waits for the end of all texts, whatever comes."""
        async for event in self._events:
            self._note_stages(event)

    def _note_stages(self, event: TextEvent) -> None:
        """The request goes on where the text is that has ended."""
        if isinstance(event, TextEnd) and event.stages is not None:
            self._stages.take_over(event.stages)

    def _note(self, event: TextEvent) -> None:
        self._note_stages(event)
        choice = self._choices[event.choice]
        choice.tokens = event.tokens
        if isinstance(event, TextPiece):
            choice.text += event.text
        elif event.error is not None:
            raise event.error
        else:
            choice.reason = event.reason

    def _chunks(self, event: TextEvent, form: AnswerForm) -> list[dict[str, Any]]:
        if isinstance(event, TextEnd):
            return [form.end_chunk(event.choice, event.reason or "length")]
        return [form.text_chunk(event.choice, event.text)] if event.text else []


def _tier_of(body: GenerationBody) -> str | None:
    return body.service_tier if isinstance(body, ChatBody) else None


def _line(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
