"""Where a server listens: ``HOST:PORT``, bound before anything is loaded."""

import errno
import os
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from tmmu.errors import InvalidConfig, PortTaken

BACKLOG: Final = 1024
_FIX: Final = "write HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address of this machine and a port; 0: any that is free."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine reaches it."""
        return ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """``HOST:PORT``, with an IPv6 host in brackets; a name becomes its first address. ``INVALID_CONFIG`` else."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port[:6]) < 1 << 16):
        raise InvalidConfig(f"{text!r:.80} is no address to listen at", fix=_FIX)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:  # whether its last part is a port nobody can say
        raise InvalidConfig(f"{text!r:.80}: an IPv6 address without brackets", fix=_FIX)
    try:
        return ListenAddress(str(ip_address(host)), int(port))
    except ValueError:
        pass
    try:
        addresses = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidConfig(f"{host!r:.80} is no address of this machine", fix=_FIX) from error
    return ListenAddress(str(addresses[0][4][0]), int(port))


def bind_socket(address: ListenAddress) -> socket.socket:
    """A listening socket at the port of the address, or a free one. ``PORT_TAKEN`` where somebody else has it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # By its protocol asyncio knows that answers are to be sent at once; else a client waits 40 ms for each second part.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"another program listens at {address}", fix="end it, or give --listen another port", port=address.port
            ) from error
        raise InvalidConfig(f"{address}: {error.strerror}", fix=_FIX) from error
    listener.setblocking(False)  # noqa: FBT003 - the socket's own way
    return listener


def bind_unix_socket(path: Path) -> socket.socket:
    """A listening socket at ``path``, which nobody but this user reaches. ``PORT_TAKEN`` where somebody listens.

    A socket at which nobody listens any more is taken over; any other file stays, and is ``INVALID_CONFIG``.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE and path.is_socket():
            raise PortTaken(f"another program listens at {path}", fix="end it, or name another unix_socket") from error
        reason = error.strerror or str(error)
        raise InvalidConfig(f"unix_socket {str(path)!r:.120}: {reason}", fix="name a path for a new socket") from error
    listener.setblocking(False)  # noqa: FBT003 - the socket's own way
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0
