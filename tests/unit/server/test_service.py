"""Every setting gets to where it works."""

from pathlib import Path
from typing import Any

import pytest

from tmmu.engine import engine
from tmmu.server.served_model import load_model
from tmmu.server.service import Service
from tmmu.server.settings import load_settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    return tmp_path


def test_times_and_limits_of_connections_are_the_settings(folder: Path) -> None:
    options = {
        "idle_seconds": 0.25, "drain_seconds": 0.75, "receive_seconds": 1.5, "connections": 7, "header_bytes": 4096,
    }  # fmt: skip
    service = Service(load_settings(options | {"models": {"a": folder}, "listen": "127.0.0.1:0"}))
    config: Any = service._config()
    service._socket.close()
    assert (config.timeout_keep_alive, config.timeout_graceful_shutdown) == (0.25, 0.75)
    assert (config.http.header_seconds, config.http.most_connections) == (1.5, 7)
    assert config.h11_max_incomplete_event_size == 4096


@pytest.mark.parametrize(("budget", "reserve"), [(None, 5 << 20), (1 << 30, 0)])
def test_engine_has_the_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, budget: int | None, reserve: int
) -> None:
    class FoundError(Exception):
        pass

    def refuse(model: object, **options: object) -> None:
        raise FoundError(model, options)

    monkeypatch.setattr(engine, "Engine", refuse)
    options = {"max_tokens": 5, "max_sessions": 6, "max_batch": 7, "os_reserve": "3MiB", "safety_margin": "2MiB",
               "class_shares": (5, 2, 1), "escalation_seconds": 0, "headroom": 0.25,
               "concurrency": 3}  # fmt: skip
    with pytest.raises(FoundError) as found:
        load_model("a", folder, load_settings(options), budget=budget, observer=None)  # type: ignore[arg-type]
    queue: Any = found.value.args[1].pop("queue")
    assert (queue.shares, queue.escalation) == ((5, 2, 1), None)
    assert found.value.args == (
        folder,
        {
            "device": "cpu", "budget": budget, "max_tokens": 5, "max_sessions": 6, "max_batch": 7,
            "policy": "hold", "headroom": 0.25, "reserve": reserve,
            "stacks": 3,
        },
    )  # fmt: skip
