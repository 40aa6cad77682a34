"""Classes over HTTP: by header, tier and key; deadlines, quotas, and slots that are kept."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import RunningServer, running
from tmmu.client.remote_session import tokens_payload
from tmmu.errors import QuotaExceeded
from tmmu.server.settings import load_settings
from tmmu.wire.session_messages import ForwardTokens

KEYS = {"first": "a" * 16, "slow": "b" * 16, "poor": "c" * 16}
BODY = {"model": "text", "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def guarded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with keys of different rights."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"{KEYS['first']} weight=3\n{KEYS['slow']} class=batch\n{KEYS['poor']} quota=20\n")
    options = {"models": {"text": folder}, "listen": "127.0.0.1:0", "budget": "8MiB", "keys": path,
               "max_requests": 10, "headroom": 0.2}  # fmt: skip
    with running(load_settings(options)) as server:
        yield server


def post(server: RunningServer, key: str, path: str = "completions", **changes: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEYS[key]}"} | changes.pop("headers", {})
    return server.post(path, BODY | changes, headers=headers)


def terms_of_sessions(server: RunningServer, key: str, **changes: Any) -> list[Any]:
    """The terms of the sessions that a request had."""
    engine, terms = server.engine("text"), []
    original = engine.open

    def note(*values: Any, **options: Any) -> Any:
        session = original(*values, **options)
        terms.append(session.terms)
        return session

    engine.open = note
    try:
        assert post(server, key, **changes).status_code == 200
    finally:
        del engine.open
    return terms


def test_sessions_wait_on_the_terms_of_their_key_and_header(guarded: RunningServer) -> None:
    (terms,) = terms_of_sessions(guarded, "first", headers={"x-tmmu-class": "realtime"})
    assert (terms.qos, terms.client, terms.weight) == ("realtime", "key-1", 3)
    (terms,) = terms_of_sessions(guarded, "slow", headers={"x-tmmu-class": "realtime"})
    assert (terms.qos, terms.client, terms.weight) == ("batch", "key-2", 1)


def test_answer_says_the_class_that_it_had(guarded: RunningServer) -> None:
    answer = post(guarded, "slow", headers={"x-tmmu-class": "realtime"})
    assert answer.headers["x-tmmu-class"] == "batch"
    assert "service_tier" not in answer.json()
    assert post(guarded, "first").headers["x-tmmu-class"] == "interactive"
    refusal = post(guarded, "first", headers={"x-tmmu-class": "urgent"})
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    chat = {"messages": [{"role": "user", "content": "one"}], "prompt": None}
    body = {name: value for name, value in (BODY | chat).items() if value is not None}
    headers = {"authorization": f"Bearer {KEYS['first']}"}
    answer = guarded.post("chat/completions", body | {"service_tier": "priority"}, headers=headers)
    assert (answer.json()["service_tier"], answer.headers["x-tmmu-class"]) == ("priority", "realtime")
    streamed = guarded.post("chat/completions", body | {"service_tier": "flex", "stream": True}, headers=headers)
    chunks = [json.loads(block.removeprefix("data: ")) for block in streamed.text.split("\n\n")[:-2]]
    assert {chunk["service_tier"] for chunk in chunks} == {"flex"}


def test_text_that_is_late_ends_by_its_code(guarded: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = post(guarded, "first", headers={"x-tmmu-deadline": "1e-9"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "DEADLINE_EXCEEDED")
    assert answer.headers["x-should-retry"] == "false"
    engine = guarded.engine("text")
    guarded.wait_for(lambda: guarded.data_used("text") == 0)
    clock, steps = engine.scheduler._clock, engine.scheduler.steps
    monkeypatch.setattr(
        engine.scheduler, "_clock", lambda: clock() + (1e6 if engine.scheduler.steps > steps + 2 else 0)
    )
    late = post(guarded, "first", stream=True, max_tokens=30, headers={"x-tmmu-deadline": "1000"})
    assert (late.status_code, json.loads(late.text.split("data: ")[-1])["error"]["code"]) == (200, "DEADLINE_EXCEEDED")
    guarded.wait_for(lambda: guarded.data_used("text") == 0)


def test_client_without_quota_is_told_when_to_come_again(guarded: RunningServer) -> None:
    assert post(guarded, "poor").status_code == 200
    refusal = post(guarded, "poor", max_tokens=15)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "QUOTA_EXCEEDED")
    assert 1 <= int(refusal.headers["retry-after"]) <= 60
    refusal = post(guarded, "poor", max_tokens=200)
    assert (refusal.status_code, "retry-after" in refusal.headers) == (429, False)
    assert post(guarded, "first", max_tokens=200).status_code == 200


def test_what_was_not_generated_is_given_back(guarded: RunningServer) -> None:
    table = guarded.service.models.quotas
    table._buckets.clear()
    answer = post(guarded, "poor", prompt="one", max_tokens=15, seed=1, temperature=2)
    used = answer.json()["usage"]["total_tokens"]
    left = table._buckets["key-3"].tokens
    assert 20 - used <= left <= 20 - used + 1


def test_rights_of_keys_hold_over_the_wire(guarded: RunningServer) -> None:
    engine, seen = guarded.engine("text"), []
    for key in ("slow", "first"):
        guarded.wait_for(lambda: not engine.sessions)
        with guarded.remote(KEYS[key]) as remote, remote.session("text", expected_tokens=8, qos="realtime") as session:
            remote.request(ForwardTokens(model="text", qos="realtime"), [tokens_payload([1, 2])])
            seen += [(each.terms.qos, each.terms.client, each.terms.weight) for each in engine.sessions]
            session.close()
        for each in engine.sessions:
            each.close()
    assert seen == [("batch", "key-2", 1)] * 2 + [("realtime", "key-1", 3)] * 2


def test_quota_holds_over_the_wire(guarded: RunningServer) -> None:
    buckets, prompt = guarded.service.models.quotas._buckets, [1] * 6

    def generate(**options: Any) -> list[int]:
        buckets.clear()
        with remote.session("text", expected_tokens=40) as session:
            return list(session.generate(prompt, **options))

    with guarded.remote(KEYS["poor"]) as remote, remote.session("text", expected_tokens=40) as session:
        (token,) = generate(max_new_tokens=1)
        assert 13 <= buckets["key-3"].tokens < 14
        assert len(generate(max_new_tokens=14, stop=(token,))) <= 1
        assert 13 <= buckets["key-3"].tokens < 14, "what was not generated is given back"
        session.prefill([1] * 10)
        assert 3 <= buckets["key-3"].tokens < 4
        for act in (
            lambda: session.prefill([1] * 18),
            lambda: remote.request(ForwardTokens(model="text"), [tokens_payload([1] * 18)]),
            lambda: list(session.generate([1], max_new_tokens=17)),
        ):
            with pytest.raises(QuotaExceeded):
                act()  # type: ignore[no-untyped-call]
        assert session.length == 10


def test_batch_leaves_slots_to_who_was_there(guarded: RunningServer) -> None:
    assert post(guarded, "first", headers={"x-tmmu-class": "realtime"}).status_code == 200
    batch = {"headers": {"x-tmmu-class": "batch"}, "n": 9, "max_tokens": 1}
    refusal = post(guarded, "first", **batch)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "SERVER_BUSY")
    assert post(guarded, "first", **batch | {"headers": {"x-tmmu-class": "realtime"}}).status_code == 200
