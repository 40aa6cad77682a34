"""Answers as OpenAI's API has them: whole, or in chunks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from time import time
from typing import Any, ClassVar

from tmmu.server.texts.generation_job import FinishReason


@dataclass(slots=True)
class ChoiceText:
    """A choice as it has come so far."""

    text: str = ""
    tokens: int = 0
    reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm(ABC):
    """How requests to one path are answered. ``has_usage``: chunks have that field, which the last one fills.

    ``tier``: what OpenAI's API calls the class that a request has, where it named one.
    """

    prefix: ClassVar[str]
    """Of ids."""
    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    model: str
    has_usage: bool
    tier: str | None = None
    number: str = field(default_factory=lambda: token_hex(12))
    created: int = field(default_factory=lambda: int(time()))

    def whole(self, choices: Sequence[ChoiceText], usage: dict[str, int]) -> dict[str, Any]:
        """The answer to a request without ``stream``."""
        listed = [_choice(index, self.whole_part(each.text), each.reason) for index, each in enumerate(choices)]
        return self._answer(self.whole_kind, listed) | {"usage": usage}

    def first_chunks(self, choices: int) -> Iterator[dict[str, Any]]:
        """The chunks before any text."""
        return (self._chunk(index, part, None) for index in range(choices) for part in self.first_parts())

    def text_chunk(self, index: int, text: str) -> dict[str, Any]:
        """A chunk with text of a choice."""
        return self._chunk(index, self.chunk_part(text), None)

    def end_chunk(self, index: int, reason: str) -> dict[str, Any]:
        """The last chunk of a choice."""
        return self._chunk(index, self.chunk_part(""), reason)

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk that says how many tokens there were."""
        return self._answer(self.chunk_kind, []) | {"usage": usage}

    @abstractmethod
    def whole_part(self, text: str) -> dict[str, Any]:
        """The text of a choice, whole."""

    @abstractmethod
    def chunk_part(self, text: str) -> dict[str, Any]:
        """A part of the text of a choice; nothing more comes where it is empty."""

    def first_parts(self) -> Sequence[dict[str, Any]]:
        """What comes before the text of a choice."""
        return ()

    def _chunk(self, index: int, part: dict[str, Any], reason: str | None) -> dict[str, Any]:
        answer = self._answer(self.chunk_kind, [_choice(index, part, reason)])
        return answer | ({"usage": None} if self.has_usage else {})

    def _answer(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"{self.prefix}-{self.number}"
        answer = {"id": name, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return answer if self.tier is None else answer | {"service_tier": self.tier}


class CompletionForm(AnswerForm):
    """Answers of ``/v1/completions``."""

    __slots__ = ()
    prefix, whole_kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def whole_part(self, text: str) -> dict[str, Any]:
        """The text itself."""
        return {"text": text}

    def chunk_part(self, text: str) -> dict[str, Any]:
        """The text itself."""
        return {"text": text}


class ChatForm(AnswerForm):
    """Answers of ``/v1/chat/completions``."""

    __slots__ = ()
    prefix, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def whole_part(self, text: str) -> dict[str, Any]:
        """A message of the assistant."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def chunk_part(self, text: str) -> dict[str, Any]:
        """What is new of the message."""
        return {"delta": {"content": text} if text else {}}

    def first_parts(self) -> Sequence[dict[str, Any]]:
        """Who speaks."""
        return ({"delta": {"role": "assistant", "content": ""}},)


def usage_of(prompt_tokens: int, choices: Sequence[ChoiceText]) -> dict[str, int]:
    """Tokens of the prompts, each counted once, and of all choices."""
    completion = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
    }


def _choice(index: int, part: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": index, **part, "logprobs": None, "finish_reason": reason}
