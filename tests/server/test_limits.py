"""What is not read, from whom, and what everybody is told."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.running import RunningServer, running
from tmmu.server.settings import load_settings

KEYS = ("first-key-0123456789", "second-key-0123456789")


def test_bodies_are_refused_before_they_are_read(server: RunningServer) -> None:
    head = {"content-type": "application/json"}
    announced = server.client.post("/v1/completions", content=b" " * (65 << 10), headers=head)
    assert (announced.status_code, announced.json()["error"]["code"]) == (413, "REQUEST_TOO_LARGE")
    in_parts = server.client.post("/v1/completions", content=(b" " * 1024 for _ in range(70)), headers=head)
    assert (in_parts.status_code, in_parts.json()["error"]["code"]) == (413, "REQUEST_TOO_LARGE")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"model": "ids", "prompt": "\\ud800"}', b"[" * 60000,
     b'{"model": "ids", "prompt": [1], "logit_bias": ' + b"[" * 20000 + b"]" * 20000 + b"}",
     b'{"model": "ids", "prompt": [1], "seed": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_bodies_that_are_no_requests_are_one_object(server: RunningServer, body: bytes) -> None:
    answer = server.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


def test_pages_of_other_sites_are_refused(server: RunningServer) -> None:
    body = b'{"model": "ids", "prompt": [1]}'
    plain = server.client.post("/v1/completions", content=body, headers={"content-type": "text/plain"})
    assert plain.status_code == 400
    for host in (
        "evil.example:8000",
        "evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1:80",
        "localhost.evil:1",
        "[::2]:1",
    ):
        other = server.client.get("/v1/models", headers={"host": host})
        assert (other.status_code, "a request for the host" in other.json()["error"]["message"]) == (400, True)
    for host in ("localhost:1", "LOCALHOST", "127.0.0.1", "127.8.0.1:9", "[::1]:80", "[::1]", ""):
        assert server.client.get("/v1/models", headers={"host": host}).status_code == 200


def test_paths_and_methods_that_are_not_there(server: RunningServer) -> None:
    assert server.client.get("/v1/other").json()["error"]["code"] == "INVALID_REQUEST"
    assert server.client.get("/v1/other").status_code == 404
    assert server.client.get("/v1/completions").status_code == 405


def test_answers_belong_to_the_trace_of_the_request(server: RunningServer, caplog: Any) -> None:
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    logger = logging.getLogger("tmmu.server")
    logger.addHandler(caplog.handler)
    try:
        headers = {"traceparent": f"00-{trace}-{span}-01"}
        body = {"model": "ids", "prompt": [77, 78], "max_tokens": 3}
        answer = server.post("completions", body, headers=headers)
        server.wait_for(lambda: any(record.getMessage() == "request" for record in caplog.records))
    finally:
        logger.removeHandler(caplog.handler)
    version, found, own, flags = answer.headers["traceparent"].split("-")
    assert (version, found, flags) == ("00", trace, "01")
    assert own != span
    assert answer.headers["x-request-id"] == own
    (fields,) = [record.tmmu_fields for record in caplog.records if record.getMessage() == "request"]
    assert (fields["trace"], fields["span"], fields["parent"]) == (trace, own, span)
    assert (fields["model"], fields["prompt_tokens"], fields["completion_tokens"]) == ("ids", 2, 3)
    assert "77" not in str({name: value for name, value in fields.items() if name not in ("trace", "span", "seconds")})


def test_health_is_there_for_everybody(server: RunningServer) -> None:
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.client.get("/ready").json() == {"status": "ready"}


@pytest.fixture(scope="module")
def guarded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with keys."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# clients\n" + "\n".join(KEYS) + "\n")
    options = {"models": {"text": folder}, "listen": "127.0.0.1:0", "budget": "4MiB", "keys": keys}
    with running(load_settings(options)) as server:
        yield server


def test_strangers_are_told_nothing(guarded: RunningServer) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {KEYS[0]}"},
                    {"authorization": "Bearer"}, {"authorization": f"Bearer {KEYS[0]}x"}):  # fmt: skip
        for path in ("/v1/models", "/metrics", "/v1/nothing"):
            answer = guarded.client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "KEY_REFUSED")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "text" not in answer.json()["error"]["message"]
    assert guarded.client.get("/ready").status_code == 200
    for key in KEYS:
        headers = {"authorization": f"bearer {key}", "host": "any.example"}
        assert guarded.client.get("/v1/models", headers=headers).status_code == 200


def test_request_under_way_ends_before_the_server_does(guarded: RunningServer) -> None:
    """The last test of this server."""
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    body = {"model": "text", "prompt": [1, 2], "max_tokens": 200, "seed": 1, "stream": True}
    with guarded.client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        parts = [next(lines)]
        guarded.drain()
        assert not guarded.service.models.is_ready
        parts.extend(lines)
    assert [part for part in parts if part][-1] == "data: [DONE]"
    guarded.wait_for(lambda: guarded.service._socket.fileno() == -1)
    with pytest.raises(httpx.TransportError):
        guarded.client.get("/health")
