"""A request of either kind as jobs for a model's loop, one for each prompt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tmmu.errors import InvalidRequest
from tmmu.server.admission.request_terms import RequestTerms
from tmmu.server.http.bodies import ChatBody, ChatMessage, CompletionBody, GenerationBody
from tmmu.server.served_model import ServedModel
from tmmu.server.settings import ServerSettings
from tmmu.server.texts.generation_job import SEED_RANGE, GenerationJob, TextEvent
from tmmu.wire.stages import StageTimeline

DEFAULT_MAX_TOKENS: Final = 16
"""Of ``/v1/completions``, as documented; a chat goes on to the end of the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """Prompts as tokens, and how many tokens may follow each. ``choices``: texts of each prompt."""

    prompts: Sequence[tuple[int, ...]]
    limits: Sequence[int]
    choices: int

    @property
    def texts(self) -> int:
        """Texts of the whole answer."""
        return len(self.prompts) * self.choices

    @property
    def most_tokens(self) -> int:
        """Tokens of all prompts and of the longest answers to them."""
        return self.prompt_tokens + self.choices * sum(self.limits)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each read once."""
        return sum(map(len, self.prompts))


def read_completion(body: CompletionBody, model: ServedModel, settings: ServerSettings) -> ReadRequest:
    """The prompts of a completion, which fit. Encodes texts: not for the event loop."""
    _require_sense(body, model)
    prompts = _prompts_of(body.prompt)
    _require_count(len(prompts) * (body.n or 1), settings)
    tokens = [_tokens_of(prompt, model) for prompt in prompts]
    return _fit(body, model, tokens, body.max_tokens or DEFAULT_MAX_TOKENS)


def read_chat(body: ChatBody, model: ServedModel, settings: ServerSettings) -> ReadRequest:
    """The prompt of a chat, by the model's template, which fits. Not for the event loop."""
    _require_sense(body, model)
    _require_count(body.n or 1, settings)
    if len(body.messages) > settings.messages:
        raise InvalidRequest(
            f"messages: {len(body.messages)}, and the server takes {settings.messages}",
            fix="send fewer",
            param="messages",
        )
    if model.text is None or model.template is None:
        raise InvalidRequest(
            f"{model.name} has no chat template" if model.text else f"{model.name} has no tokenizer",
            fix="send a prompt to /v1/completions, or serve a folder with a tokenizer and a chat template",
            param="messages",
        )
    rendered = model.template.render([_message_of(message) for message in body.messages])
    tokens = tuple(model.text.encode(rendered, is_whole=False))
    if not tokens:
        raise InvalidRequest("messages: there are no tokens", fix="send a text", param="messages")
    return _fit(body, model, [tokens], body.max_completion_tokens or body.max_tokens)


def jobs_of(
    body: GenerationBody,
    read: ReadRequest,
    on_event: Callable[[TextEvent], object],
    terms: RequestTerms,
    stages: StageTimeline,
) -> list[GenerationJob]:
    """The jobs of a request, which is in ``stages`` so far; choices are numbered prompt by prompt."""
    from tmmu.engine.sampling import Sampling  # noqa: PLC0415 - torch comes with the engine

    top_p = 1.0 if body.top_p is None else body.top_p
    temperature = 1.0 if body.temperature is None else body.temperature
    sampling = Sampling(
        temperature=temperature if top_p else 0.0,  # nothing but the best token is left
        top_k=body.top_k or 0,
        top_p=top_p or 1.0,
    )
    stages.enter("queue")
    return [
        GenerationJob(
            prompt=prompt,
            choices=read.choices,
            first_choice=number * read.choices,
            max_new_tokens=limit,
            sampling=sampling,
            seed=None if body.seed is None else (body.seed + number * read.choices) % SEED_RANGE,
            stop_tokens=tuple(body.stop_token_ids or ()),
            stops=_stops_of(body),
            on_event=on_event,
            terms=terms.queue,
            due=terms.due,
            stages=stages.branch(),
        )
        for number, (prompt, limit) in enumerate(zip(read.prompts, read.limits, strict=True))
    ]


def _prompts_of(prompt: str | Sequence[Any]) -> list[Any]:
    """The prompts of a completion: a text, tokens, texts, or arrays of tokens; nothing mixed."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(each) for each in prompt}
    if len(kinds) != 1:
        what = "prompt: texts, tokens and arrays of tokens are mixed" if kinds else "prompt: it is empty"
        raise InvalidRequest(what, fix="send a text, tokens, or an array of one of them", param="prompt")
    return [prompt] if int in kinds else list(prompt)


def _tokens_of(prompt: Any, model: ServedModel) -> tuple[int, ...]:
    if isinstance(prompt, str):
        if model.text is None:
            raise InvalidRequest(
                f"prompt: {model.name} has no tokenizer", fix="send the prompt as tokens", param="prompt"
            )
        prompt = model.text.encode(prompt)
    if not prompt:
        raise InvalidRequest("prompt: there are no tokens", fix="send at least one", param="prompt")
    vocabulary = model.engine.vocabulary
    if max(prompt) >= vocabulary:
        raise InvalidRequest(
            f"prompt: {max(prompt)} is no token of {model.name}",
            fix=f"tokens are 0 to {vocabulary - 1}",
            param="prompt",
        )
    return tuple(prompt)


def _fit(
    body: GenerationBody, model: ServedModel, prompts: Sequence[tuple[int, ...]], max_tokens: int | None
) -> ReadRequest:
    """The request, where all prompts and what follows them have room; without a number all the room there is."""
    limits = []
    for prompt in prompts:
        if max_tokens is not None:
            model.require_room(len(prompt), max_tokens)
        limits.append(max_tokens or model.room_behind(len(prompt)))
    return ReadRequest(prompts=prompts, limits=limits, choices=body.n or 1)


def _require_count(texts: int, settings: ServerSettings) -> None:
    if texts > settings.max_requests:
        raise InvalidRequest(
            f"{texts} texts in one request, and the server takes {settings.max_requests}",
            fix="send fewer prompts, or a smaller n",
            param="n",
        )


def _require_sense(body: GenerationBody, model: ServedModel) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest(
            "stream_options: without stream", fix="set stream, or leave them out", param="stream_options"
        )
    if body.stop and model.text is None:
        raise InvalidRequest(
            f"stop: {model.name} has no tokenizer, and no texts", fix="send stop_token_ids", param="stop"
        )


def _stops_of(body: GenerationBody) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def _message_of(message: ChatMessage) -> Mapping[str, str]:
    """A message as templates read it: developers speak as the system does."""
    content = message.content if isinstance(message.content, str) else "".join(part.text for part in message.content)
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": content} | ({"name": message.name} if message.name else {})
