import socket
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from tmmu.client.transport import SocketTransport, TlsTransport, open_transport, parse_address
from tmmu.errors import DeadlineExceeded, InvalidConfig


def test_every_wait_ends() -> None:
    one, other = socket.socketpair()
    with one, other:
        transport = SocketTransport(one)
        place = memoryview(bytearray(8))
        assert transport.receive(place, monotonic() + 0.01) is None
        with pytest.raises(DeadlineExceeded, match="does not take"):
            transport.send([bytes(64 << 20)], monotonic() + 0.01)


def test_many_parts_arrive_in_order_and_the_end_is_zero_bytes() -> None:
    one, other = socket.socketpair()
    with other:
        transport = SocketTransport(one)
        parts = [bytes([number % 256]) * (number % 7) for number in range(3000)]
        transport.send(parts, monotonic() + 60)
        transport.close()
        assert b"".join(iter(lambda: other.recv(65536), b"")) == b"".join(parts)
    one, other = socket.socketpair()
    other.close()
    transport = SocketTransport(one)
    assert transport.receive(memoryview(bytearray(8)), monotonic() + 60) == 0
    transport.close()


class HalfShutSocket:
    """As ``ssl.SSLSocket``: from the beginning of ``shutdown`` on, what it sends is not encrypted."""

    def __init__(self, connected: socket.socket) -> None:
        self.fileno, self.is_encrypted, self.is_closed = connected.fileno, True, False
        self.plain: list[bytes] = []
        self.transport: Any = None
        self.threads: list[Thread] = []

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def send(self, data: memoryview) -> int:
        if self.is_closed:
            raise OSError(9, "closed")
        if not self.is_encrypted:
            self.plain.append(bytes(data))
        return len(data)

    def shutdown(self, how: int) -> None:
        self.is_encrypted = False
        self.threads.append(Thread(target=self._send_meanwhile))
        self.threads[0].start()
        self.threads[0].join(0.1)

    def _send_meanwhile(self) -> None:
        with pytest.raises(OSError, match="closed"):
            self.transport.send([b"secret"], monotonic() + 60)

    def close(self) -> None:
        self.is_closed = True


def test_nothing_is_sent_without_tls_while_that_is_closed() -> None:
    one, other = socket.socketpair()
    with one, other:
        half: Any = HalfShutSocket(one)
        half.transport = TlsTransport(half)
        half.transport.close()
        half.threads[0].join(60)
        assert half.plain == []


@pytest.mark.parametrize(
    ("address", "expected"), [("a:1", ("a", 1)), ("[::1]:80", ("::1", 80)), ("127.0.0.1:65535", ("127.0.0.1", 65535))]
)
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address) == expected
    with pytest.raises(InvalidConfig):
        parse_address(address + "x")


def test_a_name_that_no_machine_has_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="no name of a machine"):
        open_transport("a..b:80", False, monotonic() + 60)
