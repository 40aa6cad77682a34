"""Answers as OpenAI's API has them: whole, or in chunks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from time import time
from typing import Any, Protocol

from tmmu.server.texts.generation_job import FinishReason


@dataclass(slots=True)
class ChoiceText:
    """A choice as it has come so far."""

    text: str = ""
    tokens: int = 0
    reason: FinishReason | None = None


class AnswerForm(Protocol):
    """How one kind of request is answered."""

    def whole(self, choices: Sequence[ChoiceText], usage: dict[str, int]) -> dict[str, Any]:
        """The answer to a request without ``stream``."""

    def first_chunks(self, choices: int) -> Iterator[dict[str, Any]]:
        """The chunks before any text."""

    def text_chunk(self, index: int, text: str) -> dict[str, Any]:
        """A chunk with text of a choice."""

    def end_chunk(self, index: int, reason: str) -> dict[str, Any]:
        """The last chunk of a choice."""

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk that says how many tokens there were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionForm:
    """Answers of ``/v1/completions``."""

    model: str
    has_usage: bool
    id: str = field(default_factory=lambda: f"cmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time()))

    def whole(self, choices: Sequence[ChoiceText], usage: dict[str, int]) -> dict[str, Any]:
        """The answer to a request without ``stream``."""
        return self._answer([_completion(i, c.text, c.reason) for i, c in enumerate(choices)]) | {"usage": usage}

    def first_chunks(self, choices: int) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - chats have such
        """Nothing."""
        return iter(())

    def text_chunk(self, index: int, text: str) -> dict[str, Any]:
        """A chunk with text of a choice."""
        return self._chunk([_completion(index, text, None)])

    def end_chunk(self, index: int, reason: str) -> dict[str, Any]:
        """The last chunk of a choice."""
        return self._chunk([_completion(index, "", reason)])

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk that says how many tokens there were."""
        return self._answer([]) | {"usage": usage}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._answer(choices) | ({"usage": None} if self.has_usage else {})

    def _answer(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return head | {"choices": choices}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatForm:
    """Answers of ``/v1/chat/completions``."""

    model: str
    has_usage: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time()))

    def whole(self, choices: Sequence[ChoiceText], usage: dict[str, int]) -> dict[str, Any]:
        """The answer to a request without ``stream``."""
        messages = [{"role": "assistant", "content": choice.text, "refusal": None} for choice in choices]
        listed = [
            {"index": index, "message": message, "logprobs": None, "finish_reason": choice.reason}
            for index, (message, choice) in enumerate(zip(messages, choices, strict=True))
        ]
        return self._answer("chat.completion", listed) | {"usage": usage}

    def first_chunks(self, choices: int) -> Iterator[dict[str, Any]]:
        """Who speaks, for each choice."""
        for index in range(choices):
            yield self._chunk(index, {"role": "assistant", "content": ""}, None)

    def text_chunk(self, index: int, text: str) -> dict[str, Any]:
        """A chunk with text of a choice."""
        return self._chunk(index, {"content": text}, None)

    def end_chunk(self, index: int, reason: str) -> dict[str, Any]:
        """The last chunk of a choice."""
        return self._chunk(index, {}, reason)

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk that says how many tokens there were."""
        return self._answer("chat.completion.chunk", []) | {"usage": usage}

    def _chunk(self, index: int, delta: dict[str, str], reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._answer("chat.completion.chunk", [choice]) | ({"usage": None} if self.has_usage else {})

    def _answer(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return head | {"choices": choices}


def usage_of(prompt_tokens: int, choices: Sequence[ChoiceText]) -> dict[str, int]:
    """Tokens of the prompts, each counted once, and of all choices."""
    completion = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
    }


def _completion(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}
