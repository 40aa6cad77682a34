"""``tmmu.connect``: the way to a server, which says what is not installed before it imports it."""

import ssl
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tmmu.errors import InvalidConfig

if TYPE_CHECKING:
    from tmmu.client.remote_server import RemoteServer

DEADLINE = 30.0
"""Seconds of a request that names none."""
LONGEST_DEADLINE = 86400.0


def connect(
    address: str, *, key: str | None = None, tls: bool | str | Path | ssl.SSLContext = False, deadline: float = DEADLINE
) -> "RemoteServer":
    """A server of ``tmmu serve`` at ``HOST:PORT``, or ``unix:PATH``.

    ``key``: one of its keys, which is proved and not sent. ``tls``: ``True``, or a file of certificates that are
    trusted. ``deadline``: seconds in which requests are answered that name no other. ``SERVER_GONE`` where nobody
    listens, ``KEY_REFUSED`` for a key that is none of its.
    """
    if find_spec("msgspec") is None:
        raise InvalidConfig("msgspec is not installed", fix="pip install 'tmmu[serve]'")
    is_number = isinstance(deadline, (int, float)) and not isinstance(deadline, bool)
    if not is_number or not 0 < deadline <= LONGEST_DEADLINE:
        raise InvalidConfig(f"a deadline of {deadline!r:.40}", fix="give seconds, above 0 and at most a day")
    if not isinstance(address, str) or not (key is None or (isinstance(key, str) and _is_unicode(key))):
        raise InvalidConfig(
            "an address or a key that is no text", fix="give HOST:PORT, and key= as in the server's file"
        )
    from tmmu.client.remote_server import RemoteServer  # noqa: PLC0415 - of the extra serve

    return RemoteServer(address, key=key, tls=tls, deadline=float(deadline))


def _is_unicode(text: str) -> bool:
    """Whether it can be sent: half a surrogate pair, as of bytes that were no UTF-8, cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
