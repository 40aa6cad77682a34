"""Where a server listens."""

import socket

import pytest

from tmmu.errors import InvalidConfig, PortTaken
from tmmu.server.address import ListenAddress, bind_socket, parse_listen


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80, True),
        ("[::1]:8000", "::1", 8000, True),
        ("127.8.0.1:0", "127.8.0.1", 0, True),
        ("0.0.0.0:1", "0.0.0.0", 1, False),
        ("[::]:1", "::", 1, False),
        ("10.0.0.1:65535", "10.0.0.1", 65535, False),
    ],
)
def test_addresses_are_read_and_written(text: str, host: str, port: int, is_loopback: bool) -> None:
    address = parse_listen(text)
    assert (address.host, address.port, address.is_loopback, str(address)) == (host, port, is_loopback, text)


def test_names_become_addresses() -> None:
    assert parse_listen("localhost:5").is_loopback


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8000",
        ":8000",
        "host:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:٣",
        "a..b:1",
        "::1:8000",
        "::1",
        "[]:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="HOST:PORT"):
        parse_listen(text)


def test_port_is_one_programs_alone_and_free_again_after_it() -> None:
    with bind_socket(ListenAddress("127.0.0.1", 0)) as listener:
        address = ListenAddress("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(PortTaken, match=str(address)):
            bind_socket(address)
    bind_socket(address).close()


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"192\.0\.2\.1"):
        bind_socket(ListenAddress("192.0.2.1", 0))


def test_answers_are_sent_at_once() -> None:
    with bind_socket(ListenAddress("127.0.0.1", 0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY by this alone
