"""Bodies of requests, as OpenAI's API documents them. Decoding allocates nothing that the types do not name.

Fields that ask for what is not done are kept as raw bytes: ``NEUTRAL`` has the values that ask for nothing.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from tmmu.errors import InvalidRequest

Unsupported: TypeAlias = msgspec.Raw
_NOTHING: Final = msgspec.Raw(b"null")
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Token: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
StopText: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Stops: TypeAlias = StopText | Annotated[list[StopText], msgspec.Meta(max_length=4)] | None
Label: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]
"""Text that a client has for its own use; it changes nothing."""


class StreamBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``include_usage``: a last chunk says how many tokens there were."""

    include_usage: bool = False
    include_obfuscation: Unsupported = _NOTHING


class GenerationBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What both kinds of requests say. ``top_k`` and ``stop_token_ids`` are not of OpenAI's API."""

    model: Annotated[str, msgspec.Meta(max_length=512)]
    max_tokens: Count | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: Stops = None
    stop_token_ids: Annotated[list[Token], msgspec.Meta(max_length=64)] | None = None
    stream: bool | None = None
    stream_options: StreamBody | None = None
    user: Label | None = None
    frequency_penalty: Unsupported = _NOTHING
    logit_bias: Unsupported = _NOTHING
    logprobs: Unsupported = _NOTHING
    presence_penalty: Unsupported = _NOTHING


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """``POST /v1/completions``. ``prompt``: a text, tokens, or an array of either."""

    prompt: str | list[str | Token | list[Token]]
    best_of: Unsupported = _NOTHING
    echo: Unsupported = _NOTHING
    suffix: Unsupported = _NOTHING


class TextPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a message; texts alone are read."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A message of a chat."""

    role: Literal["developer", "system", "user", "assistant"]
    content: str | list[TextPart]
    name: Label | None = None
    refusal: Unsupported = _NOTHING


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    metadata: Annotated[dict[Label, Label], msgspec.Meta(max_length=16)] | None = None
    prompt_cache_key: Label | None = None
    safety_identifier: Label | None = None
    parallel_tool_calls: bool | None = None
    audio: Unsupported = _NOTHING
    function_call: Unsupported = _NOTHING
    functions: Unsupported = _NOTHING
    modalities: Unsupported = _NOTHING
    moderation: Unsupported = _NOTHING
    prediction: Unsupported = _NOTHING
    prompt_cache_options: Unsupported = _NOTHING
    prompt_cache_retention: Unsupported = _NOTHING
    reasoning_effort: Unsupported = _NOTHING
    response_format: Unsupported = _NOTHING
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    store: Unsupported = _NOTHING
    tool_choice: Unsupported = _NOTHING
    tools: Unsupported = _NOTHING
    top_logprobs: Unsupported = _NOTHING
    verbosity: Unsupported = _NOTHING
    web_search_options: Unsupported = _NOTHING


NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_obfuscation": (False,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
"""Values beside ``null`` that ask for nothing; ``logprobs`` of a completion is a number, where 0 asks for something."""
_LONGEST_NEUTRAL: Final = 64
_PLACE: Final = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
Body = TypeVar("Body", bound=GenerationBody)


def decode_body(body: bytes, kind: type[Body]) -> Body:
    """The request of a body. ``INVALID_REQUEST`` names the field that is wrong, or asks for what is not done."""
    try:
        decoded = msgspec.json.decode(body, type=kind)
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply", fix="send a flatter one") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is no UTF-8", fix="send JSON in UTF-8") from error
    except msgspec.DecodeError as error:
        place = _PLACE.search(str(error))
        field = place[1] if place else ""
        what = str(error)[: place.start()] if place else str(error)
        raise InvalidRequest(
            f"{field}: {what}" if field else f"the body: {what}", fix="see docs/spec/serve.md", param=field or None
        ) from error
    _require_neutral(decoded)
    if decoded.stream_options is not None:
        _require_neutral(decoded.stream_options)
    for message in decoded.messages if isinstance(decoded, ChatBody) else ():
        _require_neutral(message)
    return decoded


def _require_neutral(decoded: GenerationBody | StreamBody | ChatMessage) -> None:
    for name in decoded.__struct_fields__:
        raw = getattr(decoded, name)
        if isinstance(raw, msgspec.Raw) and not _asks_nothing(name, bytes(raw)):
            raise InvalidRequest(f"{name}: this server does not do that", fix=f"leave {name} out", param=name)


def _asks_nothing(name: str, raw: bytes) -> bool:
    if len(raw) > _LONGEST_NEUTRAL:
        return False
    value = msgspec.json.decode(raw)
    neutral = NEUTRAL.get(name, ())
    return value is None or any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)
