import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.planned_steps import planned_once
from tests.server.folders import save_model, save_tokenizer
from tests.server.running import RunningServer, running
from tests.unit.cli.graphs import Shell
from tmmu.passes.capture import collection
from tmmu.server.settings import load_settings


@pytest.fixture(scope="session", autouse=True)
def _steps_planned_once() -> Iterator[None]:
    """Engines of equal models share the plans of their steps."""
    with planned_once():
        yield


@pytest.fixture(scope="package", autouse=True)
def _nothing_is_kept_behind_these_tests() -> Iterator[None]:
    """Servers keep what is there to the end of their process, which other tests go on in.

    There a capture would look for garbage in all that has come since, and not in what it has made.
    """
    yield
    gc.unfreeze()
    collection._KEPT.clear()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer and a chat template."""
    return save_tokenizer(save_model(tmp_path_factory.mktemp("models") / "text"))


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[RunningServer]:
    """A server of two models of the same weights: ``text`` has a tokenizer, ``ids`` has none, and no end token."""
    bare = save_model(folder.parent / "ids", eos_token_id=None)
    options = {
        "models": {"text": folder, "ids": bare}, "listen": "127.0.0.1:0", "budget": "8MiB", "body_bytes": "64KiB",
        "max_requests": 12, "receive_seconds": 3, "messages": 8, "connections": 40,
    }  # fmt: skip
    with running(load_settings(options)) as server:
        yield server


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The program, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)
