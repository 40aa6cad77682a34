"""Pressure over HTTP: who is refused, whose text is read again, and the metrics that say so."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import httpx
import pytest
from transformers import AutoModelForCausalLM

from tests.engine.models import reference_tokens
from tests.server.folders import save_model
from tests.server.running import RunningServer, running
from tmmu.server.settings import load_settings

LONG = 200
BODY: dict[str, Any] = {"model": "ids", "prompt": [1, 2, 3], "max_tokens": LONG, "temperature": 0}


@pytest.fixture(scope="module")
def pressed(folder: Path) -> Iterator[RunningServer]:
    """A server with room for two of the longest sessions, which acts under pressure."""
    bare = save_model(folder.parent / "pressed", eos_token_id=None)
    options = {
        "models": {"ids": bare}, "listen": "127.0.0.1:0", "max_sessions": 2, "minimum": 0, "os_reserve": 0,
        "safety_margin": 0, "pressure": "act", "headroom": 0,
    }  # fmt: skip
    with running(load_settings(options)) as server:
        yield server


def post(server: RunningServer, qos: str, **changes: Any) -> httpx.Response:
    return server.post("completions", BODY | changes, headers={"x-tmmu-class": qos})


def samples(server: RunningServer) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in server.client.get("/metrics").text.splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in lines}


def test_lower_classes_are_refused_where_the_room_is_full(pressed: RunningServer) -> None:
    engine, watch = pressed.engine("ids"), pressed.service.models.find("ids").watch
    before = samples(pressed)
    longest = pressed.service.models.find("ids").longest
    with engine.open(longest) as first, engine.open(longest) as second:
        for session in (first, second):
            session.prefill([1])
        pressed.wait_for(lambda: watch.gauge.level == "full")  # of sessions that no text has
        for qos in ("batch", "interactive"):
            refusal = post(pressed, qos)
            assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "SERVER_BUSY")
            assert "full" in refusal.json()["error"]["message"]
        headers = {"x-tmmu-class": "realtime", "x-tmmu-deadline": "0.2"}
        late = pressed.post("completions", BODY, headers=headers)
        assert late.json()["error"]["code"] == "DEADLINE_EXCEEDED"
        full = samples(pressed)
    pressed.wait_for(lambda: engine.usage["data"].used == 0)
    pressed.wait_for(lambda: watch.gauge.level == "normal")  # though no text comes or goes
    after = samples(pressed)
    label = 'model="ids"'
    assert full[f"tmmu_pressure_level{{{label}}}"] == 3
    assert after[f"tmmu_pressure_level{{{label}}}"] == 0
    moved = {name: after[name] - before[name] for name in after if name in before}
    for level in ("warning", "critical", "full"):
        assert moved[f'tmmu_pressure_events_total{{level="{level}",{label}}}'] >= 1
    assert moved[f"tmmu_recoveries_total{{{label}}}"] >= 1
    assert moved[f"tmmu_recovery_seconds_total{{{label}}}"] > 0
    assert moved[f"tmmu_late_requests_total{{{label}}}"] == 1
    assert post(pressed, "interactive", max_tokens=2).status_code == 200


def test_batch_text_gives_its_room_and_is_read_again(pressed: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, answers = pressed.engine("ids"), list[httpx.Response]()
    decode = engine._stacks[0].runner.decode

    def decode_slowly(*arguments: Any) -> None:
        sleep(0.003)
        decode(*arguments)

    monkeypatch.setattr(engine._stacks[0].runner, "decode", decode_slowly)
    before = samples(pressed)
    batch = [Thread(target=lambda: answers.append(post(pressed, "batch"))) for _ in range(2)]
    for thread in batch:
        thread.start()
    pressed.wait_for(lambda: sum(session.length > 5 for session in engine.sessions) == 2)
    quick = post(pressed, "realtime")
    assert quick.status_code == 200
    for thread in batch:
        thread.join(120)
    after = samples(pressed)
    again = 'tmmu_recomputed_texts_total{model="ids"}'
    assert after[again] - before[again] == 1
    folder = pressed.service.settings.models["ids"]
    expected = reference_tokens(AutoModelForCausalLM.from_pretrained(folder).eval(), [1, 2, 3], LONG)
    texts = [answer.json()["choices"][0]["text"] for answer in (quick, *answers)]
    assert texts == [" ".join(map(str, expected))] * 3
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [LONG, LONG]
    pressed.wait_for(lambda: pressed.data_used("ids") == 0)
