"""``/v1/chat/completions``: messages by the folder's template, answers whole and in chunks."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.folders import save_tokenizer
from tests.server.running import RunningServer
from tests.server.test_completions import calls_of, events_of
from tmmu.server.texts.chat_template import read_chat_template

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
RENDERED = "system: Be brief.\nuser: Hello\nassistant: "


def body_of(**changes: Any) -> dict[str, Any]:
    return {"model": "text", "messages": MESSAGES, "max_tokens": 8, "temperature": 0} | changes


def test_answer_is_what_follows_the_rendered_messages(server: RunningServer) -> None:
    answer = server.post("chat/completions", body_of()).json()
    plain = {"model": "text", "prompt": RENDERED, "max_tokens": 8, "temperature": 0}
    expected = server.post("completions", plain).json()
    message = {"role": "assistant", "content": expected["choices"][0]["text"], "refusal": None}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == expected["usage"]
    assert answer["object"] == "chat.completion"


def test_developers_and_parts_of_messages_are_read(server: RunningServer) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    answers = [server.post("chat/completions", body_of(messages=m)).json() for m in (MESSAGES, messages)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_stream_says_who_speaks_then_what_then_why_it_ends(server: RunningServer) -> None:
    body = body_of(max_completion_tokens=5, temperature=1, seed=2)
    whole = server.post("chat/completions", body).json()
    events = events_of(server.post("chat/completions", body | {"stream": True}).text)
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert (deltas[0], deltas[-1]) == ({"role": "assistant", "content": ""}, {})
    assert "".join(delta.get("content", "") for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert {event["object"] for event in events[:-1]} == {"chat.completion.chunk"}


def test_answer_without_a_limit_takes_the_room_there_is(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = calls_of(monkeypatch, server.engine("text"), "open")
    assert server.post("chat/completions", body_of(max_tokens=None)).status_code == 200
    assert server.post("chat/completions", body_of(max_completion_tokens=5)).json()["usage"]["completion_tokens"] == 5
    assert opened == [(256,), (len(RENDERED) + 5,)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "ids"}, "ids has no tokenizer"),
        ({"messages": []}, "length >= 1"),
        ({"messages": MESSAGES * 5}, "takes 8"),
        ({"messages": [MESSAGES[1], MESSAGES[0]]}, "a system message comes first"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "tool"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "room for 256"),
        ({"tools": [{"type": "function"}]}, "tools: this server does not do that"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_is_not_done_is_refused(server: RunningServer, changes: dict[str, Any], words: str) -> None:
    answer = server.post("chat/completions", body_of(**changes))
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_fields_that_ask_for_nothing_are_taken(server: RunningServer) -> None:
    nothing = {
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"],
        "logprobs": False, "store": False, "service_tier": "auto", "metadata": {"a": "b"}, "parallel_tool_calls": True,
    }  # fmt: skip
    assert server.post("chat/completions", body_of(**nothing)).status_code == 200


def test_folder_without_a_template_takes_no_chat(server: RunningServer, tmp_path: Path) -> None:
    assert read_chat_template(save_tokenizer(tmp_path, template=None)) is None
