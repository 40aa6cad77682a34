"""Models of the hub: from a stand-in at loopback, safetensors alone, and only where a setting allows it."""

import json
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub.constants
import pytest

from tests.server.running import running
from tests.unit.cli.graphs import Shell
from tmmu.cli.commands.service.serve import parse_models
from tmmu.errors import InvalidConfig
from tmmu.server.hub import HubReference, fetch_model, hub_reference
from tmmu.server.service import Service
from tmmu.server.settings import load_settings

COMMIT = "c" * 40
REFERENCE = "hf:org/tiny@v1"


class Hub:
    """A repository, and which of its files were asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.fetched = files, set[str]()
        hub = self

        class Answers(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(has_body=False)

            def do_GET(self) -> None:
                self.answer(has_body=True)

            def answer(self, *, has_body: bool) -> None:
                status, body = 404, b"{}"
                path = self.path.partition("?")[0]
                name = path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
                if path == "/api/models/org/tiny/revision/v1":
                    siblings = [{"rfilename": name} for name in hub.files]
                    status, body = 200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode()
                elif path == f"/api/models/org/tiny/tree/{COMMIT}":
                    rows = [
                        {"type": "file", "path": name, "size": len(data), "oid": sha256(data).hexdigest()[:40]}
                        for name, data in hub.files.items()
                    ]
                    status, body = 200, json.dumps(rows).encode()
                elif name in hub.files:
                    status, body = 200, hub.files[name]
                    if has_body:
                        hub.fetched.add(name)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.send_header("content-type", "application/json")
                self.send_header("etag", f'"{sha256(body).hexdigest()}"')
                self.send_header("x-repo-commit", COMMIT)
                if status == 404:
                    self.send_header("x-error-code", "RevisionNotFound")
                self.end_headers()
                if has_body:
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub = Hub(files | {"pytorch_model.bin": b"a pickle", "modeling.py": b"raise", "onnx/model.safetensors": b"0"})
    thread = Thread(target=hub.server.serve_forever, daemon=True)
    thread.start()
    constants = huggingface_hub.constants
    endpoint = f"http://127.0.0.1:{hub.server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    yield hub
    hub.server.shutdown()
    hub.server.server_close()
    thread.join(60)


def test_server_of_a_model_at_the_hub_answers_and_has_fetched_no_pickle(hub: Hub, tmp_path: Path) -> None:
    options = {"models": {"a": REFERENCE}, "listen": "127.0.0.1:0", "budget": "8MiB", "fetch": True}
    with running(load_settings(options)) as server:
        body = {"model": "a", "prompt": "one", "max_tokens": 3}
        assert server.post("completions", body).status_code == 200
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= hub.fetched
    assert not hub.fetched & {"pytorch_model.bin", "modeling.py", "onnx/model.safetensors"}
    hub.fetched.clear()
    assert (fetch_model(HubReference("org/tiny", "v1")) / "config.json").is_file()
    assert not hub.fetched, "it was there"
    with pytest.raises(InvalidConfig, match=r"hf:org/tiny@v2 was not fetched: .*") as refusal:
        fetch_model(HubReference("org/tiny", "v2"))
    assert "\n" not in refusal.value.what


def test_nothing_is_fetched_unless_a_setting_allows_it(hub: Hub, shell: Shell) -> None:
    with pytest.raises(InvalidConfig, match="this server fetches nothing"):
        Service(load_settings({"models": {"a": REFERENCE}, "listen": "127.0.0.1:0"}))
    assert not hub.fetched


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (REFERENCE, HubReference("org/tiny", "v1")),
        ("hf:org/tiny", None),
        ("org/tiny@v1", None),
        ("hf:../tiny@v1", None),
        ("hf:org/tiny@../../x", None),
        ("hf:a/b/c@v1", None),
    ],
)
def test_what_is_a_reference(text: str, reference: HubReference | None) -> None:
    assert hub_reference(text) == reference
    assert parse_models([f"a={text}"]) == {"a": Path(text if reference else text.removeprefix("hf:"))}
