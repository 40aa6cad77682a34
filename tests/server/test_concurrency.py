"""``--concurrency``: a server with two stacks gives the texts of one; of stacks that do not fit it says so."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import running
from tmmu.server import service as module
from tmmu.server.settings import load_settings

OPTIONS = {"listen": "127.0.0.1:0", "max_tokens": 64, "max_batch": 1, "minimum": 0, "os_reserve": 0, "safety_margin": 0}


COUNT = "tmmu_stage_seconds_count"


def body_of(number: int) -> dict[str, Any]:
    return {"model": "a", "prompt": [1 + number, 2, 3], "max_tokens": 8, "seed": number}


def test_two_stacks_give_the_texts_of_one(folder: Path) -> None:
    texts: list[list[str]] = []
    for concurrency in (1, 2):
        with running(load_settings(OPTIONS | {"models": {"a": folder}, "concurrency": concurrency})) as server:
            assert server.engine("a").stacks == concurrency
            with ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(lambda number: server.post("completions", body_of(number)), range(6)))
            texts.append([answer.json()["choices"][0]["text"] for answer in answers])
            # A request is counted when all of its answer is sent, of which its client has had the last byte before.
            server.wait_for(lambda server=server: server.metric(COUNT, stage="execute") >= 6)
            assert server.metric(COUNT, stage="execute") == 6
            server.wait_for(lambda server=server: server.data_used("a") == 0)
    assert texts[0] == texts[1]


def test_stack_that_does_not_fit_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(module, "log_event", lambda event, **fields: lines.append((event, fields)))
    settings = OPTIONS | {"models": {"a": folder}, "max_batch": 8, "max_tokens": None, "budget": "4MiB"}
    with running(load_settings(settings | {"concurrency": 64})) as server:
        engine = server.engine("a")
        assert 1 <= engine.stacks < 64
        size = engine.usage["stack"].capacity // engine.stacks
        told = [fields for event, fields in lines if event == "concurrency"]
        assert [(line["steps"], line["asked"], line["stack_bytes"]) for line in told] == [(engine.stacks, 64, size)]
