"""A server from its beginning to its end: what it says while models are loaded, and how long it waits for requests."""

import json
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.server.running import PATIENCE, RunningServer, running, starting
from tests.server.test_completions import body_of
from tmmu.server import service as module
from tmmu.server.doctor import MachineFinding
from tmmu.server.settings import load_settings

HEAD = {"listen": "127.0.0.1:0"}


def test_door_is_open_and_refuses_while_models_are_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    may_load, original = Event(), module.load_model
    finding = MachineFinding(name="swap", status="warn", state="on", fix="swapoff -a")
    monkeypatch.setattr(module, "examine_machine", lambda _: [finding])
    monkeypatch.setattr(module, "load_model", lambda *a, **k: (may_load.wait(PATIENCE), original(*a, **k))[1])
    settings = load_settings(HEAD | {"models": {"text": folder}, "budget": "700KiB"})
    with starting(settings) as server:
        ready = server.client.get("/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
        assert server.client.get("/v1/models").json() == {"object": "list", "data": []}
        refused = server.post("completions", body_of(model="text"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "SERVER_BUSY")
        assert refused.headers["retry-after"] == "1"
        assert server.post("completions", body_of(model="other")).status_code == 404
        may_load.set()
        assert server.ready.wait(PATIENCE)
        assert server.client.get("/ready").status_code == 200
        assert server.engine("text").bound_shapes == 2, "a prompt, and a token behind it, were tried"
        _require_longest(server, 64)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events if event["event"] not in ("request", "pressure")] == [
        "doctor", "loaded", "ready", "draining", "ended",
    ]  # fmt: skip
    assert {"level": "warning", "name": "swap", "state": "on", "fix": "swapoff -a"}.items() <= events[0].items()


def _require_longest(server: RunningServer, longest: int) -> None:
    """What the budget leaves room for is the longest session, though the model has 256."""
    assert server.client.get("/v1/models/text").json()["max_model_len"] == longest
    body = body_of(model="text", prompt=[1] * 60, max_tokens=longest - 60)
    assert server.post("completions", body).status_code == 200
    refused = server.post("completions", body | {"max_tokens": longest - 59})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "PROMPT_TOO_LONG")
    whole = server.post("chat/completions", {"model": "text", "messages": [{"role": "user", "content": "x"}]})
    assert whole.json()["usage"]["total_tokens"] <= longest


def test_server_that_is_told_to_end_loads_no_other_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_load, begun, closed = Event(), Event(), []

    def load_model(name: str, *_: object, **__: object) -> Any:
        begun.set()
        assert may_load.wait(PATIENCE)
        engine = SimpleNamespace(usage={}, stacks=1)
        return SimpleNamespace(name=name, engine=engine, longest=1, close=lambda: closed.append(name))

    monkeypatch.setattr(module, "load_model", load_model)
    monkeypatch.setattr(module, "examine_machine", lambda _: [])
    with starting(load_settings(HEAD | {"models": {"a": folder, "b": folder}, "budget": "8MiB"})) as server:
        assert begun.wait(PATIENCE)
        server.drain()
        may_load.set()
        server.thread.join(PATIENCE)
        assert (closed, server.ready.is_set()) == (["a"], False)


def test_requests_that_do_not_end_are_waited_for_so_long(folder: Path) -> None:
    settings = load_settings(HEAD | {"models": {"text": folder}, "budget": "700KiB", "drain_seconds": 0.05})
    outcomes: list[Any] = []

    def ask(server: RunningServer) -> None:
        try:
            outcomes.append(server.post("completions", body_of(model="text")).status_code)
        except httpx.TransportError as error:
            outcomes.append(error)

    with running(settings) as server:
        engine = server.engine("text")
        engine.open(64)  # nobody closes it, and there is room for one
        asker = Thread(target=ask, args=(server,))
        asker.start()
        server.wait_for(lambda: engine.scheduler.waiting_requests)
        labels = {"model": "text", "class": "interactive"}
        assert server.metric("tmmu_waiting_requests", **labels) == 1
        server.drain()
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()
        asker.join(PATIENCE)
        assert len(outcomes) == 1
        assert outcomes[0] != 200
        assert server.service.models.texts == 0
        assert not server.service._loaded[0].loop._thread.is_alive()
