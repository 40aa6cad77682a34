"""``/v1/completions``: texts are those of the model itself, and what is not done is refused in OpenAI's form."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from tests.engine.models import reference_tokens
from tests.server.running import RunningServer
from tmmu.engine.text import Text


@pytest.fixture(scope="session")
def reference(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def body_of(**changes: Any) -> dict[str, Any]:
    return {"model": "ids", "prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0} | changes


def events_of(text: str) -> list[Any]:
    """The objects of a stream of events; its end as text."""
    lines = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_tokens_are_those_of_the_model(server: RunningServer, reference: Any) -> None:
    answer = server.post("completions", body_of()).json()
    expected = reference_tokens(reference, [1, 2, 3], 6)
    assert len(set(expected)) > 2
    assert answer["choices"] == [
        {"text": " ".join(map(str, expected)), "index": 0, "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    assert (answer["object"], answer["model"], answer["id"][:5]) == ("text_completion", "ids", "cmpl-")


def test_drawn_tokens_are_those_after_manual_seed(server: RunningServer, reference: Any) -> None:
    drawn = body_of(temperature=0.9, top_p=0.8, seed=5, n=2, prompt=[[1, 2, 3], [4, 5]], max_tokens=5)
    answer = server.post("completions", drawn).json()
    settings = {"temperature": 0.9, "top_p": 0.8}
    expected = [
        reference_tokens(reference, prompt, 5, seed=seed, **settings)
        for prompt, seed in (([1, 2, 3], 5), ([1, 2, 3], 6), ([4, 5], 7), ([4, 5], 8))
    ]
    assert [choice["text"] for choice in answer["choices"]] == [" ".join(map(str, tokens)) for tokens in expected]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}


def test_texts_come_and_go_by_the_tokenizer(server: RunningServer, reference: Any, folder: Path) -> None:
    text = Text(folder)
    answer = server.post("completions", body_of(model="text", prompt="memory", max_tokens=9)).json()
    expected = text.decode(reference_tokens(reference, text.encode("memory"), 9))
    assert answer["choices"][0]["text"] == expected


@pytest.mark.parametrize("choices", [1, 2])
def test_stream_has_the_text_of_the_whole_answer(server: RunningServer, choices: int) -> None:
    body = body_of(temperature=1, seed=3, n=choices)
    whole = server.post("completions", body).json()
    streamed = server.post("completions", body | {"stream": True, "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, end = events_of(streamed.text)
    assert end == "[DONE]"
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None and chunk["id"] == usage["id"] for chunk in chunks)
    for choice in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
        assert len(parts) > 2


def test_stream_without_the_option_says_nothing_of_usage(server: RunningServer) -> None:
    events = events_of(server.post("completions", body_of(stream=True, max_tokens=2)).text)
    assert all("usage" not in event for event in events[:-1])


def test_text_ends_before_a_stop_text(server: RunningServer) -> None:
    body = body_of(model="text", prompt="memory", max_tokens=12)
    whole = server.post("completions", body).json()["choices"][0]["text"]
    stop = whole[4:6]
    place = whole.find(stop)
    stopped = server.post("completions", body | {"stop": ["never there", stop]}).json()
    assert stopped["choices"][0] == {
        "text": whole[:place], "index": 0, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip
    events = events_of(server.post("completions", body | {"stop": stop, "stream": True}).text)
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == whole[:place]


def test_text_ends_before_a_stop_token(server: RunningServer) -> None:
    tokens = server.post("completions", body_of()).json()["choices"][0]["text"].split()
    last = next(index for index, token in enumerate(tokens) if token != tokens[0])
    answer = server.post("completions", body_of(stop_token_ids=[int(tokens[last])])).json()
    assert answer["choices"][0]["text"] == " ".join(tokens[:last])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == last + 1


def test_default_is_sixteen_tokens_drawn_at_temperature_one(server: RunningServer) -> None:
    answers = [server.post("completions", {"model": "ids", "prompt": [9]}).json() for _ in range(2)]
    assert answers[0]["usage"]["completion_tokens"] == 16
    assert answers[0]["choices"][0]["text"] != answers[1]["choices"][0]["text"]


def test_seeds_of_choices_go_on_behind_the_last_one(server: RunningServer) -> None:
    drawn = body_of(temperature=1, seed=-1, n=2)
    texts = [choice["text"] for choice in server.post("completions", drawn).json()["choices"]]
    assert texts[1] == server.post("completions", drawn | {"seed": 0, "n": 1}).json()["choices"][0]["text"]
    assert texts[0] != texts[1]


def test_text_ends_before_a_token_that_ends_the_models_texts(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = server.post("completions", body_of()).json()["choices"][0]["text"].split()
    last = next(index for index, token in enumerate(tokens) if token != tokens[0])
    monkeypatch.setattr(server.engine("ids"), "stop", (int(tokens[last]),))
    (choice,) = server.post("completions", body_of()).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" ".join(tokens[:last]), "stop")


def calls_of(monkeypatch: pytest.MonkeyPatch, engine: Any, name: str) -> list[tuple[Any, ...]]:
    """The arguments of each call of a method of an engine, from now on."""
    calls, original = list[tuple[Any, ...]](), getattr(engine, name)
    monkeypatch.setattr(engine, name, lambda *a, **k: (calls.append(a), original(*a, **k))[1])
    return calls


def test_choices_are_forks_of_a_session_with_room_for_the_text_alone(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = server.engine("ids")
    opened, forked, reads = (calls_of(monkeypatch, engine, name) for name in ("open", "fork", "enqueue"))
    assert server.post("completions", body_of(n=3)).status_code == 200
    assert (opened, len(forked)) == ([(9,)], 2)
    assert len([tokens for _, tokens in reads if len(tokens) > 1]) == 1, "the prompt is read once"


def test_choice_without_room_for_a_fork_reads_the_prompt_itself(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = server.engine("ids")
    opened, forked = (calls_of(monkeypatch, engine, name) for name in ("open", "fork"))
    body = body_of(prompt=[7] * 240, temperature=1, seed=3, max_tokens=5)
    answer = server.post("completions", body | {"n": 12}).json()
    assert len(forked) == 11
    assert 1 < len(opened) < 12, "there is room for some of the forks"
    alone = [server.post("completions", body | {"seed": 3 + i}).json()["choices"][0]["text"] for i in (1, 11)]
    assert [answer["choices"][i]["text"] for i in (1, 11)] == alone
    server.wait_for(lambda: server.data_used("ids") == 0)


def test_top_p_of_nothing_is_the_best_token(server: RunningServer) -> None:
    best = server.post("completions", body_of()).json()["choices"]
    assert server.post("completions", body_of(temperature=2, top_p=0, seed=1)).json()["choices"] == best
    assert server.post("completions", body_of(temperature=2, top_k=1, seed=1)).json()["choices"] == best


def test_texts_of_many_clients_share_steps(server: RunningServer) -> None:
    steps, rows = server.engine("ids").scheduler.steps, server.engine("ids").scheduler.rows
    answer = server.post("completions", body_of(prompt=[[token] for token in range(8)], max_tokens=20)).json()
    assert len(answer["choices"]) == 8
    steps, rows = server.engine("ids").scheduler.steps - steps, server.engine("ids").scheduler.rows - rows
    assert rows == 8 * 20  # a prompt of one token is a row too
    assert steps <= 60
    server.wait_for(lambda: server.data_used("ids") == 0)


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"model": "other"}, "model", "there are text, ids"),
        ({"prompt": "x"}, "prompt", "ids has no tokenizer"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "at least one"),
        ({"prompt": [1, [2]]}, "prompt", "mixed"),
        ({"prompt": [256]}, "prompt", "tokens are 0 to 255"),
        ({"prompt": [-1]}, "prompt[0]", ">= 0"),
        ({"prompt": [1.5]}, "prompt[0]", "float"),
        ({"prompt": None}, "prompt", "null"),
        ({"prompt": [1] * 251}, None, "room for 256"),
        ({"prompt": [1] * 256, "max_tokens": 1}, None, "room for 256"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"n": 13}, "n", "the server takes 12"),
        ({"n": 4, "prompt": [[1]] * 4}, "n", "16 texts"),
        ({"temperature": 1e-320}, None, "higher temperature"),
        ({"temperature": 2.1}, "temperature", "<= 2"),
        ({"top_p": -0.1}, "top_p", ">= 0"),
        ({"stop": "x"}, "stop", "send stop_token_ids"),
        ({"model": "text", "stop": ["a"] * 5}, "stop", "length <= 4"),
        ({"stream_options": {}}, "stream_options", "without stream"),
        ({"echo": True}, "echo", "does not do that"),
        ({"logprobs": 0}, "logprobs", "does not do that"),
        ({"best_of": 2}, "best_of", "does not do that"),
        ({"suffix": "x"}, "suffix", "does not do that"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "does not do that"),
        ({"presence_penalty": 0.5}, "presence_penalty", "does not do that"),
        ({"prompts": [1]}, None, "prompts"),
    ],
)
def test_what_is_not_done_is_refused_by_name(
    server: RunningServer, changes: dict[str, Any], param: str | None, words: str
) -> None:
    opened = server.metric("tmmu_sessions_opened_total", model="ids")
    answer = server.post("completions", body_of(**changes))
    error = answer.json()["error"]
    assert answer.status_code == (404 if param == "model" else 400), error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert words in error["message"]
    if "temperature" in words:  # what no draw can do is known when there are scores
        assert error["code"] == "INVALID_CONFIG"
    else:
        assert error["code"] in ("INVALID_REQUEST", "MODEL_UNKNOWN", "PROMPT_TOO_LONG")
        assert server.metric("tmmu_sessions_opened_total", model="ids") == opened


def test_fields_that_ask_for_nothing_are_taken(server: RunningServer) -> None:
    nothing = {
        "best_of": 1, "echo": False, "suffix": None, "logprobs": None, "logit_bias": {}, "presence_penalty": 0.0,
        "frequency_penalty": 0, "user": "somebody", "n": 1, "stop": None, "stream": False, "stream_options": None,
    }  # fmt: skip
    assert server.post("completions", body_of(**nothing)).status_code == 200


def test_longest_text_fits(server: RunningServer) -> None:
    answer = server.post("completions", body_of(prompt=[1] * 250))
    assert (answer.status_code, answer.json()["usage"]["total_tokens"]) == (200, 256)
