"""Clients that go, are slow or are too many: their sessions are closed, and nobody is disturbed."""

import contextlib
import json
import socket
from typing import Any

import pytest

from tests.server.running import RunningServer

LONG = {"model": "ids", "prompt": [5], "max_tokens": 250, "temperature": 0}


def connect(server: RunningServer) -> socket.socket:
    address = server.service.address
    return socket.create_connection((address.host, address.port), timeout=60)


def send(connection: socket.socket, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    """A request after which the server closes the connection."""
    named = ("Host: localhost", "Content-Type: application/json", "Connection: close")
    lines = ("POST /v1/completions HTTP/1.1", *named)
    head = "\r\n".join((*lines, f"Content-Length: {len(data)}", "", ""))
    connection.sendall(head.encode() + data)


def under_way(server: RunningServer) -> float:
    return server.metric("tmmu_sessions", model="ids")


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("texts", [1, 3])
def test_client_that_goes_leaves_no_byte_behind(server: RunningServer, texts: int, is_stream: bool) -> None:
    status = {"path": "/v1/completions", "status": "200" if is_stream else "499"}
    answered = server.metric("tmmu_requests_total", **status)
    gone, tokens = server.metric("tmmu_disconnects_total"), server.metric("tmmu_generated_tokens_total", model="ids")
    with connect(server) as connection:
        send(connection, LONG | {"stream": is_stream, "n": texts})
        server.wait_for(lambda: server.metric("tmmu_generated_tokens_total", model="ids") > tokens + 2 * texts)
        assert server.data_used("ids") > 0
    server.wait_for(lambda: server.metric("tmmu_disconnects_total") == gone + 1)
    server.wait_for(lambda: under_way(server) == 0)
    server.wait_for(lambda: server.data_used("ids") == 0)
    assert server.service.models.texts == 0
    server.wait_for(lambda: server.metric("tmmu_requests_total", **status) == answered + 1)
    assert server.metric("tmmu_generated_tokens_total", model="ids") < tokens + 250 * texts


def test_memory_of_clients_that_went_is_zeros(server: RunningServer) -> None:
    with connect(server) as connection:
        send(connection, LONG | {"stream": True})
        connection.recv(100)
    server.wait_for(lambda: under_way(server) == 0 and server.data_used("ids") == 0)
    engine = server.engine("ids")
    assert not engine.segments.slabs["data"].bytes(0, engine.segments.data.capacity).any()


def test_client_that_goes_before_its_room_is_there_waits_no_more(server: RunningServer) -> None:
    capacity = server.engine("ids").usage["data"].capacity
    arena = 256 * server.engine("ids").geometry.token_bytes
    fitting = capacity // arena
    assert fitting < 12, "the budget of the fixture is to hold fewer sessions than the server takes"
    with contextlib.ExitStack() as stack:
        for _ in range(fitting):
            send(stack.enter_context(connect(server)), LONG | {"max_tokens": 255})
        server.wait_for(lambda: under_way(server) == fitting)
        with connect(server) as late:
            send(late, LONG)
            server.wait_for(lambda: under_way(server) == fitting + 1)
        server.wait_for(lambda: under_way(server) <= fitting)
    server.wait_for(lambda: under_way(server) == 0)
    server.wait_for(lambda: server.data_used("ids") == 0)


def test_whoever_finds_no_room_waits_for_it(server: RunningServer) -> None:
    before = server.metric("tmmu_sessions_closed_total", model="ids")
    answer = server.post("completions", LONG | {"prompt": [[token] for token in range(12)], "max_tokens": 40})
    assert answer.status_code == 200
    assert all(len(choice["text"].split()) == 40 for choice in answer.json()["choices"])
    assert server.metric("tmmu_sessions_closed_total", model="ids") == before + 12


def test_more_texts_than_the_server_takes_are_refused_at_once(server: RunningServer) -> None:
    with connect(server) as connection:
        send(connection, LONG | {"stream": True, "n": 10})
        server.wait_for(lambda: server.service.models.texts == 10)
        assert server.metric("tmmu_texts", model="ids") == 10
        refused = server.post("completions", LONG | {"n": 3})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "SERVER_BUSY")
        assert refused.headers["retry-after"] == "1"
        assert server.post("completions", LONG | {"max_tokens": 2}).status_code == 200
    server.wait_for(lambda: server.service.models.texts == 0)
    assert server.metric("tmmu_texts", model="ids") == 0


def test_client_that_sends_no_headers_or_no_body_is_let_go(server: RunningServer) -> None:
    with connect(server) as silent, connect(server) as slow, connect(server) as halting:
        slow.sendall(b"POST /v1/completions HTT")
        halting.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert silent.recv(100) == b""
        assert slow.recv(100) == b""
        answer = halting.recv(4096)
        while b"REQUEST_TIMEOUT" not in answer:
            part = halting.recv(4096)
            assert part, answer
            answer += part
        assert answer.startswith(b"HTTP/1.1 408")


def test_stream_that_nobody_reads_does_not_hold_its_session(server: RunningServer) -> None:
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        closed = server.metric("tmmu_sessions_closed_total", model="ids")
        send(connection, LONG | {"stream": True, "n": 4})
        server.wait_for(lambda: server.metric("tmmu_sessions_closed_total", model="ids") == closed + 4)
        server.wait_for(lambda: server.data_used("ids") == 0)
