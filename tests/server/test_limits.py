"""What is not read, from whom, and what everybody is told."""

import asyncio
import gc
import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.docs.commands import ROOT
from tests.server.running import RunningServer, running
from tmmu.server.engine_figures import read_figures
from tmmu.server.http.app import DoorContext, build_app
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


TIMES_AND_NAMES = ("trace", "span", "seconds", "stages")
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


def test_answers_belong_to_the_trace_of_the_request(server: RunningServer) -> None:
    with server.log_of(TRACE) as records:
        body = {"model": "ids", "prompt": [77, 78], "max_tokens": 3}
        answer = server.post("completions", body, headers=HEADERS)
    version, found, own, flags = answer.headers["traceparent"].split("-")
    assert (version, found, flags) == ("00", TRACE, "01")
    assert own != SPAN
    assert answer.headers["x-request-id"] == own
    (record,) = records
    fields = record.__dict__["tmmu_fields"]
    assert (fields["trace"], fields["span"], fields["parent"]) == (TRACE, own, SPAN)
    assert (fields["model"], fields["prompt_tokens"], fields["completion_tokens"]) == ("ids", 2, 3)
    assert (fields["method"], fields["path"], fields["status"]) == ("POST", "/v1/completions", 200)
    assert "77" not in str({name: value for name, value in fields.items() if name not in TIMES_AND_NAMES})


def test_checks_of_health_are_logged_at_debug(server: RunningServer) -> None:
    for path, level in (("/health", "DEBUG"), ("/ready", "DEBUG"), ("/metrics", "DEBUG"), ("/v1/models", "INFO")):
        with server.log_of(TRACE) as records:
            server.client.get(path, headers=HEADERS)
        assert [record.levelname for record in records] == [level]


def test_page_lists_the_fields_of_a_request(server: RunningServer, guarded: RunningServer) -> None:
    page = " ".join((ROOT / "docs/spec/serve.md").read_text().split())
    listed = set(re.findall(r"`(\w+)`", page.split("A `request` has ")[1].split("No key")[0]))
    found: set[str] = set()
    with guarded.log_of(TRACE) as records:
        guarded.client.get("/v1/nothing", headers=HEADERS | {"authorization": f"Bearer {KEYS[1]}"})
    found |= set(records[0].__dict__["tmmu_fields"])
    assert records[0].__dict__["tmmu_fields"]["client"] == "key-2"
    assert KEYS[1] not in str(records[0].__dict__)
    with server.log_of(TRACE) as records:
        server.post("completions", {"model": "ids", "prompt": [1], "max_tokens": 1}, headers=HEADERS)
    found |= set(records[0].__dict__["tmmu_fields"])
    assert listed == found | {"disconnected"}


def test_request_line_and_headers_have_a_limit_that_is_exact(server: RunningServer) -> None:
    """As an application gets them: how much a socket gives at once is nobody's to say."""
    context = DoorContext(
        models=server.service.models, metrics=server.service.metrics, settings=server.service.settings, keys=None
    )

    async def statuses(sizes: tuple[int, ...]) -> list[int]:
        transport = httpx.ASGITransport(app=build_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            own = client.build_request("GET", "/health", headers={"x": ""})
            rest = len("GET/health") + sum(len(name) + len(value) for name, value in own.headers.raw)
            return [(await client.get("/health", headers={"x": "a" * (n - rest)})).status_code for n in sizes]

    limit = server.service.settings.header_bytes
    assert asyncio.run(statuses((limit, limit + 1))) == [200, 413]


def test_connection_ends_where_a_body_is_not_read(server: RunningServer) -> None:
    address = server.service.address
    with socket.create_connection((address.host, address.port), timeout=60) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 99999999\r\n\r\n{")
        answer = b""
        while part := connection.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413")


def test_connections_beyond_the_most_are_refused_alone(server: RunningServer) -> None:
    def status(connection: http.client.HTTPConnection) -> int:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def connect() -> http.client.HTTPConnection:
        address = server.service.address
        connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
        stack.callback(connection.close)
        return connection

    server.client.get("/health")
    server.wait_for(lambda: server.connections() == 1)  # the client's own
    with ExitStack() as stack:
        connections = [connect() for _ in range(server.service.settings.connections - 1)]
        assert {status(connection) for connection in connections} == {200}
        late = connect()
        assert status(late) == 503
        assert late.sock is None, "it is closed"
        assert [status(connections[0]), status(connections[-1])] == [200, 200]
        server.wait_for(lambda: server.connections() == len(connections) + 1)
        connections[0].close()
        server.wait_for(lambda: server.connections() == len(connections))
        assert status(connect()) == 200
    server.wait_for(lambda: server.connections() == 1)


def test_what_is_there_at_the_beginning_is_not_collected(server: RunningServer) -> None:
    assert gc.get_freeze_count() > 100_000


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


def test_counters_of_steps_never_fall(guarded: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while a step is planned, which takes long enough for somebody to ask."""
    engine, counters = guarded.engine("text"), list[dict[str, float]]()
    steps, original = engine._stacks[0].steps, engine._stacks[0].steps.step

    def note() -> None:
        figures = read_figures("text", engine, guarded.service.models.find("text").watch).figures
        counters.append({figure.name: figure.value for figure in figures if figure.is_counter})

    monkeypatch.setattr(steps, "step", lambda shape: (note(), original(shape), note())[1])
    body = {"model": "text", "prompt": [1, 2], "max_tokens": 4, "n": 2, "seed": 0}
    assert guarded.post("completions", body, headers={"authorization": f"Bearer {KEYS[0]}"}).status_code == 200
    assert counters[0]["tmmu_step_plan_misses"] < counters[-1]["tmmu_step_plan_misses"], "two rows are a new shape"
    for before, after in pairwise(counters):
        assert all(before[name] <= after[name] for name in before)


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
