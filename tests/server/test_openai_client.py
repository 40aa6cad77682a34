"""The official client of OpenAI's API works against the server."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.running import RunningServer


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["text", "ids"]
    assert client.models.retrieve("ids").owned_by == "tmmu"
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.models.retrieve("other")


def test_completions_stream_what_they_are(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {"model": "ids", "prompt": [1, 2, 3], "max_tokens": 6, "temperature": 1, "seed": 4}
    whole = client.completions.create(**settings)
    chunks = list(client.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6


def test_chats_stream_what_they_are(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {
        "model": "text", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "seed": 4, "n": 2,
    }  # fmt: skip
    whole = client.chat.completions.create(**settings)
    chunks = list(client.chat.completions.create(**settings, stream=True))
    for choice in whole.choices:
        parts = [c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(parts) == choice.message.content


def test_refusals_are_exceptions_with_codes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(model="ids", prompt=[1] * 300)
    assert (refusal.value.code, refusal.value.type) == ("PROMPT_TOO_LONG", "invalid_request_error")


def test_many_clients_at_once_have_their_own_texts(server: RunningServer) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            requests = [
                client.completions.create(model="ids", prompt=[token], max_tokens=12, temperature=0)
                for token in range(6)
            ]
            return [answer.choices[0].text for answer in await asyncio.gather(*requests)]

    together = asyncio.run(ask())
    for token, text in enumerate(together):
        body = {"model": "ids", "prompt": [token], "max_tokens": 12, "temperature": 0}
        assert server.post("completions", body).json()["choices"][0]["text"] == text
