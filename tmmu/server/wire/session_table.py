"""Sessions that were opened over the wire, by their names: whose they are, how many, and until when."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final

from tmmu.errors import ServerBusy, SessionUnknown
from tmmu.server.served_model import ServedModel
from tmmu.server.settings import ServerSettings
from tmmu.server.wire.session_record import SessionRecord
from tmmu.wire.interface import Peer

_SHARE: Final = 2
"""With keys, the sessions of one of them have at most one part in so many of a model's room."""


class SessionTable:
    """Used by all worker threads."""

    def __init__(self, settings: ServerSettings, *, has_keys: bool) -> None:
        self._settings, self._has_keys = settings, has_keys
        self._records: dict[str, SessionRecord] = {}
        self._opening: list[tuple[str, ServedModel, int]] = []
        """Client, model and bytes of sessions that are being opened: they count already."""
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._records)

    def lease_of(self, seconds: float | None) -> float:
        """How long a session outlives its connection: what was asked for, or the longest lease."""
        longest = self._settings.lease_seconds
        return longest if seconds is None else min(seconds, longest)

    @contextmanager
    def room(self, model: ServedModel, peer: Peer, size: int) -> Iterator[None]:
        """Block that opens a session of so many bytes. ``SERVER_BUSY`` where its client has as many as it may."""
        opening = (peer.client, model, size)
        with self._lock:
            own = [
                (each.model, each.session.arena_bytes) for each in self._records.values() if each.client == peer.client
            ]
            own += [(other, each) for client, other, each in self._opening if client == peer.client]
            count, used = len(own), sum(each for other, each in own if other is model)
            most = model.engine.segments.data.capacity // (_SHARE if self._has_keys else 1)
            if count >= self._settings.client_sessions or used + size > most:
                raise ServerBusy(
                    f"{count} sessions are open, {used} bytes of {model.name}, and this one takes {size}: "
                    f"{self._settings.client_sessions}, and {most} bytes, are the most of one client",
                    fix="close one",
                )
            self._opening.append(opening)
        try:
            yield
        finally:
            with self._lock:
                self._opening.remove(opening)

    def add(self, record: SessionRecord, peer: Peer) -> SessionRecord:
        """A new session."""
        record.connections.add(peer.connection)
        with self._lock:
            self._records[record.session.capability] = record
        return record

    def find(self, name: str, peer: Peer) -> SessionRecord:
        """A session of this client; ``SESSION_UNKNOWN`` for all others, whether or not they are there."""
        with self._lock:
            record = self._records.get(name)
        # A dictionary tells names apart by their hashes: 128 random bits leak nothing that helps to guess them.
        if record is None or record.client != peer.client or not record.session.is_open:
            raise SessionUnknown("no session has that name", fix="open a session")
        record.connections.add(peer.connection)
        return record

    @property
    def reference_counts(self) -> tuple[int, int]:
        """Sessions that are open, and values that they keep."""
        with self._lock:
            records = [record for record in self._records.values() if record.session.is_open]
        return len(records), sum(len(record.kept) for record in records)

    def close(self, record: SessionRecord) -> None:
        """Ends a session, and leaves nothing of it."""
        with self._lock:
            self._records.pop(record.session.capability, None)
        record.session.close()

    def connection_lost(self, peer: Peer) -> None:
        """From now on leases of sessions that no other connection uses run out."""
        with self._lock:
            for record in self._records.values():
                record.connections.discard(peer.connection)

    def sweep(self) -> None:
        """Renews leases of those whose client is there, and closes those that have run out."""
        with self._lock:
            records = tuple(self._records.values())
        for record in records:
            if record.connections:
                with suppress(SessionUnknown):  # closed by its engine meanwhile
                    record.session.heartbeat()
            if not record.session.is_open:
                self.close(record)
        for model in {id(record.model): record.model for record in records}.values():
            model.engine.reclaim_expired()


def session_bytes(model: ServedModel, tokens: int, source: int | None, keep: int) -> int:
    """Bytes of the arena of such a session."""
    geometry, limits = model.engine.geometry, model.engine.limits
    rounded = -(-keep // geometry.alignment) * geometry.alignment
    return geometry.arena_bytes(
        geometry.capacities_for(tokens, limits.max_source if source is None else source, rounded)
    )
