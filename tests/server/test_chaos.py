"""Clients that are killed, and bytes that are no HTTP: the server goes on, and nothing is left behind."""

import random
import socket
from threading import Thread

import pytest

from tests.server.running import RunningServer
from tests.server.test_disconnects import LONG, connect, send


@pytest.mark.parametrize("clients", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_clients_that_are_killed_at_any_time_leave_nothing(server: RunningServer, clients: int) -> None:
    def visit(seed: int) -> None:
        generator = random.Random(seed)
        with connect(server) as connection:
            body = {"n": generator.randint(1, 3), "stream": generator.random() < 0.7}
            send(connection, LONG | body | {"prompt": [seed % 256], "max_tokens": generator.randint(1, 250)})
            for _ in range(generator.randint(0, 6)):
                if not connection.recv(generator.randint(1, 4000)):
                    break
            if generator.random() < 0.5:  # a reset in place of an end
                linger = (1).to_bytes(4, "little") + bytes(4)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    visitors = [Thread(target=visit, args=(seed,)) for seed in range(clients)]
    for first in range(0, clients, 12):
        for visitor in visitors[first : first + 12]:
            visitor.start()
        for visitor in visitors[first : first + 12]:
            visitor.join(120)
            assert not visitor.is_alive()
    server.wait_for(lambda: server.service.models.texts == 0 and server.data_used("ids") == 0)
    assert not server.engine("ids").segments.slabs["data"].bytes(0, server.engine("ids").segments.data.capacity).any()
    opened, closed = (server.metric(f"tmmu_sessions_{name}_total", model="ids") for name in ("opened", "closed"))
    assert opened == closed
    assert server.post("completions", LONG | {"max_tokens": 3}).status_code == 200


def test_bytes_that_are_no_http_end_their_connection_alone(server: RunningServer) -> None:
    generator = random.Random(0)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    requests = [
        generator.randbytes(200),
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 100,
        b"GET /" + b"a" * (64 << 10) + b" HTTP/1.1\r\n\r\n",
        head + b"X: " + b"a" * (64 << 10) + b"\r\n\r\n",
        head + b"Content-Length: -1\r\n\r\n",
        head + b"Content-Length: 9999999999999999999999\r\n\r\n",
        head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{",
        head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        *(bytes(b ^ generator.randrange(256) * (generator.random() < 0.1) for b in head + b"\r\n") for _ in range(20)),
    ]
    for data in requests:
        with connect(server) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert server.client.get("/ready").status_code == 200
    assert server.service.models.texts == 0
