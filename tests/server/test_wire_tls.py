"""The wire over TLS and over a Unix socket, at a server with HTTP beside it."""

import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import pytest

from tests.server.running import PATIENCE, RunningServer, running
from tests.server.wire_running import running_wire
from tests.unit.wire.sums import Add, Sums
from tmmu.client.connect import connect
from tmmu.errors import InvalidConfig, PortTaken, ServerGone
from tmmu.server.address import bind_unix_socket
from tmmu.server.settings import load_settings
from tmmu.server.tls import server_context

CERTIFICATES: Final = Path(__file__).parent / "certificates"
VALID, LAPSED, KEY = (CERTIFICATES / name for name in ("valid.pem", "lapsed.pem", "key.pem"))


def test_payloads_over_tls_have_no_tags_of_their_own() -> None:
    data = memoryview(np.random.default_rng(0).integers(0, 256, 9 << 20, np.uint8).data)
    with running_wire([Sums()], tls=server_context(VALID, KEY)) as wire:
        connection = wire.connect(tls=VALID)
        assert connection._tagger.tag_bytes == 0
        _, payloads = connection.request(Add(returns=True), [data, data[:5]])
        assert payloads[0] == data
        assert bytes(payloads[1]) == bytes(data[:5])
        parts = [header.value for header, _ in connection.stream(Add(numbers=(1, 2), streams=True))]
        assert parts == [1, 3, 3]
        connection.close()


@pytest.mark.parametrize(("certificate", "trusted", "words"), [(LAPSED, LAPSED, "expired"), (VALID, True, "self")])
def test_certificates_that_lapsed_or_that_nobody_vouches_for_are_refused(
    certificate: Path, trusted: Path | bool, words: str
) -> None:
    with running_wire([Sums()], tls=server_context(certificate, KEY)) as wire:
        with pytest.raises(ServerGone, match=words):
            wire.connect(tls=trusted)
        assert wire.door.counts.connections == 0


def test_a_client_without_tls_gets_nothing_of_a_server_with_it() -> None:
    with running_wire([Sums()], tls=server_context(VALID, KEY)) as wire, pytest.raises(ServerGone):
        wire.connect(deadline=10)
    with running_wire([Sums()]) as wire, pytest.raises(ServerGone):
        wire.connect(tls=VALID, deadline=10)


@pytest.fixture(scope="module")
def secure(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    options = {
        "models": {"text": folder}, "listen": "127.0.0.1:0", "budget": "8MiB", "tls_cert": VALID, "tls_key": KEY,
        "unix_socket": tmp_path_factory.mktemp("socket") / "tmmu",
    }  # fmt: skip
    with running(load_settings(options)) as server:
        yield server


def test_one_port_has_https_and_the_wire_over_tls(secure: RunningServer) -> None:
    assert secure.url.startswith("https://")
    assert secure.client.get("/v1/models").json()["data"][0]["id"] == "text"
    with secure.remote(tls=VALID) as remote:
        ghost = remote.load("text")
        tokens = ghost.generate([1, 2], 4).tolist()
    path = secure.service.settings.unix_socket
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with connect(f"unix:{path}", deadline=PATIENCE) as remote:
        assert remote.load("text").generate([1, 2], 4).tolist() == tokens
    with pytest.raises(InvalidConfig, match="Unix"):
        connect(f"unix:{path}", tls=True)


def test_http_without_tls_is_refused(secure: RunningServer) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{secure.service.address}/health")


@pytest.mark.parametrize(
    ("certificate", "key"), [(VALID, None), (None, KEY), (KEY, KEY), (VALID, VALID), (VALID, Path("nothing.pem"))]
)
def test_certificates_that_are_none_are_one_line(certificate: Path | None, key: Path | None) -> None:
    with pytest.raises(InvalidConfig, match=r"tls|pem") as refusal:
        server_context(certificate, key)
    assert "\n" not in str(refusal.value)


def test_trusted_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nothing")
    with running_wire([Sums()], tls=server_context(VALID, KEY)) as wire:
        for path in (tmp_path / "none.pem", tmp_path / "missing.pem"):
            with pytest.raises(InvalidConfig, match="no certificates"):
                wire.connect(tls=path)
        context = ssl.create_default_context(cafile=str(VALID))
        wire.connect(tls=context).close()


def test_a_socket_is_taken_over_from_the_dead_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    first = bind_unix_socket(path)
    with pytest.raises(PortTaken):
        bind_unix_socket(path)
    first.close()
    bind_unix_socket(path).close()
    (tmp_path / "file").write_text("mine")
    for other in (tmp_path / "file", tmp_path / "missing" / "socket", tmp_path / ("long" * 50)):
        with pytest.raises(InvalidConfig, match="unix_socket"):
            bind_unix_socket(other)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:0", "host:99999", "::1:80", "host:8o", "[]:80"])
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(InvalidConfig, match="address"):
        connect(address)


def test_handshakes_count_as_connections_and_have_their_time(folder: Path) -> None:
    options = {
        "models": {"text": folder}, "listen": "127.0.0.1:0", "budget": "8MiB", "tls_cert": VALID, "tls_key": KEY,
        "connections": 4, "receive_seconds": 2,
    }  # fmt: skip
    with running(load_settings(options)) as server, ExitStack() as stack:
        server.client.close()
        server.wait_for(lambda: server.connections() == 0)
        address = (server.service.address.host, server.service.address.port)
        silent = [stack.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(4)]
        server.wait_for(lambda: server.connections() == 4)
        with socket.create_connection(address, PATIENCE) as beyond:
            assert ends(beyond)
        assert all(map(ends, silent)), "a handshake that does not go on"
        server.wait_for(lambda: server.connections() == 0)
        context = ssl.create_default_context(cafile=str(VALID))
        with httpx.Client(base_url=server.url, verify=context, timeout=PATIENCE) as client:
            assert client.get("/health").status_code == 200
            assert server.connections() == 1


def ends(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_request_that_comes_with_the_end_of_the_handshake_is_answered(secure: RunningServer) -> None:
    context = ssl.create_default_context(cafile=str(VALID))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    address = (secure.service.address.host, secure.service.address.port)
    with socket.create_connection(address, PATIENCE) as connection:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(1 << 16))
        client.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        connection.sendall(outgoing.read())  # the last of the handshake, and the request
        answer = b""
        while data := connection.recv(1 << 16):
            incoming.write(data)
            while True:
                try:
                    part = client.read(1 << 16)
                except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                    break
                if not part:
                    break
                answer += part
        assert answer.startswith(b"HTTP/1.1 200")
