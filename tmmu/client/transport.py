"""What carries a connection: TCP, TLS over it, or a Unix socket. Sockets that never block, and waits that end."""

import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final, Protocol

from tmmu.errors import DeadlineExceeded, InvalidConfig, ServerGone

_MOST_PARTS: Final = 512
"""Of one ``sendmsg``; the system takes 1,024."""
_SMALL_BYTES: Final = 4 << 10
"""What is joined before it is sent: to name parts to the system costs more than to copy these bytes."""
_TLS_PIECE: Final = 1 << 20
_FIX: Final = "write HOST:PORT, [IPV6]:PORT or unix:PATH"


class Transport(Protocol):
    """A stream of bytes in both directions. One thread sends, and one receives. ``OSError`` when it breaks."""

    is_encrypted: bool
    is_taking: bool
    """Whether bytes are taken, or were by the last ``receive``; who has them all sets it back. An interruption in
    between has lost some.
    """

    def send(self, parts: Sequence[bytes | memoryview], until: float) -> None:
        """Sends all of it, in one call where it can; ``DEADLINE_EXCEEDED`` where the other end takes it too slowly."""

    def receive(self, place: memoryview, until: float) -> int | None:
        """How many bytes came, 0 at the end; ``None`` where none did by ``until``, in seconds of ``monotonic``."""

    def close(self) -> None:
        """Ends it in both directions, for threads too that wait for it."""

    def leave_to_parent(self) -> None:
        """Lets go of it in a process that was forked; it goes on in the one that forked."""


class SocketTransport:
    """TCP or a Unix socket."""

    is_encrypted = False

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)  # noqa: FBT003 - the socket's own way
        self._socket = connected
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable.register(connected, select.POLLOUT)
        self.is_taking = False

    def send(self, parts: Sequence[bytes | memoryview], until: float) -> None:
        """As ``Transport.send``; what is not small is copied by the system alone."""
        small = sum(map(len, parts)) <= _SMALL_BYTES
        left = [memoryview(part) for part in ([b"".join(parts)] if small else parts) if len(part)]
        while left:
            try:
                count = self._socket.sendmsg(left[:_MOST_PARTS])
            except BlockingIOError:
                if not wait(self._writable, until):
                    raise DeadlineExceeded("the server does not take what is sent", fix="try again later") from None
                continue
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if count:
                left[0] = left[0][count:]

    def receive(self, place: memoryview, until: float) -> int | None:
        """As ``Transport.receive``."""
        while wait(self._readable, until):
            self.is_taking = True
            try:
                return self._socket.recv_into(place)
            except BlockingIOError:
                self.is_taking = False
        return None

    def close(self) -> None:
        """As ``Transport.close``."""
        shut(self._socket)

    def leave_to_parent(self) -> None:
        """As ``Transport.leave_to_parent``."""
        self._socket.close()


class TlsTransport:
    """TLS over TCP. Its state is one for both directions, so each call takes its turn; nobody waits meanwhile."""

    is_encrypted = True

    def __init__(self, connected: ssl.SSLSocket) -> None:
        connected.setblocking(False)  # noqa: FBT003 - the socket's own way
        self._socket, self._turn = connected, Lock()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable.register(connected, select.POLLOUT)
        self.is_taking = False

    def send(self, parts: Sequence[bytes | memoryview], until: float) -> None:
        """As ``Transport.send``; small parts are joined."""
        whole = sum(map(len, parts)) <= _TLS_PIECE
        for part in [b"".join(parts)] if whole else parts:
            left = memoryview(part)
            while left:
                left = left[self._send_some(left[:_TLS_PIECE], until) :]

    def _send_some(self, part: memoryview, until: float) -> int:
        while True:
            try:
                with self._turn:
                    return self._socket.send(part)
            except ssl.SSLWantWriteError:
                ready = wait(self._writable, until)
            except ssl.SSLWantReadError:
                ready = wait(self._readable, until)
            if not ready:
                raise DeadlineExceeded("the server does not take what is sent", fix="try again later")

    def receive(self, place: memoryview, until: float) -> int | None:
        """As ``Transport.receive``."""
        while True:
            self.is_taking = True
            try:
                with self._turn:
                    return self._socket.recv_into(place)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                self.is_taking = False
                poll = self._readable if isinstance(error, ssl.SSLWantReadError) else self._writable
            if not wait(poll, until):
                return None

    def close(self) -> None:
        """As ``Transport.close``. In a turn: between its steps the socket would send and receive without TLS."""
        with self._turn:
            shut(self._socket)

    def leave_to_parent(self) -> None:
        """As ``Transport.leave_to_parent``: without TLS's farewell, which would be the parent's."""
        self._turn = Lock()
        self._socket.close()


def open_transport(address: str, tls: "bool | str | Path | ssl.SSLContext", until: float) -> Transport:
    """A connection to ``HOST:PORT`` or ``unix:PATH``. ``SERVER_GONE`` where nobody listens there.

    ``tls``: ``True`` for certificates that the system trusts, a file for those that it trusts, or a context.
    """
    seconds = max(until - monotonic(), 0.001)
    try:
        if address.startswith("unix:"):
            if tls:
                raise InvalidConfig("TLS over a Unix socket", fix="leave tls= out: it does not leave the machine")
            return SocketTransport(_connect_locally(address.removeprefix("unix:"), seconds))
        host, port = parse_address(address)
        connected = socket.create_connection((host, port), seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not tls:
            return SocketTransport(connected)
        try:
            return TlsTransport(context_of(tls).wrap_socket(connected, server_hostname=host))
        except BaseException:
            connected.close()
            raise
    except ssl.SSLCertVerificationError as error:
        raise ServerGone(
            f"{address}: its certificate is refused: {error.verify_message}", fix="give tls= a file that vouches for it"
        ) from error
    except UnicodeError as error:
        raise InvalidConfig(f"{address!r:.80} is no name of a machine", fix=_FIX) from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise ServerGone(f"{address}: {reason}", fix="start a server there with tmmu serve") from error


def _connect_locally(path: str, seconds: float) -> socket.socket:
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        local.settimeout(seconds)
        local.connect(path)
    except BaseException:
        local.close()
        raise
    return local


def parse_address(address: str) -> tuple[str, int]:
    """Host and port. ``INVALID_CONFIG`` for anything else."""
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and bare and is_port) or (":" in host and bare == host):
        raise InvalidConfig(f"{address!r:.80} is no address of a server", fix=_FIX)
    return bare, int(port)


def context_of(tls: "bool | str | Path | ssl.SSLContext") -> ssl.SSLContext:
    """What TLS trusts. ``INVALID_CONFIG`` for a file that has no certificates."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    try:
        return ssl.create_default_context(cafile=None if tls is True else str(tls))
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(f"tls={str(tls)!r:.80}: no certificates", fix="give a file of certificates, PEM") from error


def wait(poll: select.poll, until: float) -> bool:
    """Whether something may be done by ``until``; looks at least once."""
    return bool(poll.poll(max((until - monotonic()) * 1000, 0)))


def shut(connected: socket.socket) -> None:
    """Wakes who waits for it, and closes it."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
    connected.close()
