import socket
from time import monotonic

import pytest

from tmmu.client.transport import SocketTransport, parse_address
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


@pytest.mark.parametrize(
    ("address", "expected"), [("a:1", ("a", 1)), ("[::1]:80", ("::1", 80)), ("127.0.0.1:65535", ("127.0.0.1", 65535))]
)
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address) == expected
    with pytest.raises(InvalidConfig):
        parse_address(address + "x")
