"""The service that runs recorded graphs: a session for each connection, a quota for each client, plans for all."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from threading import Lock
from time import monotonic
from typing import ClassVar

import torch

from tmmu.cache import PlanCache
from tmmu.errors import InvalidConfig, InvalidRequest, ReferenceStale
from tmmu.server.graphs.graph_bindings import GraphCounts
from tmmu.server.graphs.graph_limits import ClientUsage, GraphLimits
from tmmu.server.graphs.graph_plans import GraphPlans
from tmmu.server.graphs.graph_session import GraphSession
from tmmu.server.uploads.upload_store import UploadStore
from tmmu.wire.graph import DeviceOpened, OpenDevice, RunGraph, TakeUploads
from tmmu.wire.interface import Message, Payloads, Peer, RequestHeader, ServiceCall


class GraphService:
    """Answers ``graphs.open``, ``graphs.run`` and ``graphs.take``. A lost connection frees all that was recorded on it.

    ``cache``: where plans are kept on disk, if anywhere. ``uploads``: where tensors are that clients have sent before.
    """

    requests: ClassVar[tuple[type[RequestHeader], ...]] = (OpenDevice, RunGraph, TakeUploads)

    def __init__(
        self,
        limits: GraphLimits | None = None,
        *,
        cache: PlanCache | None = None,
        uploads: UploadStore | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.limits = limits or GraphLimits()
        self.plans = GraphPlans(self.limits, cache=cache)
        self._clock, self._lock, self._uploads = clock, Lock(), uploads
        self._sessions: dict[str, GraphSession] = {}
        self._usage: dict[str, ClientUsage] = {}
        self._ending: list[GraphSession] = []
        self._ended = GraphCounts()
        """Of sessions that are over."""

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:
        """As ``WireService.answer``."""
        if isinstance(header, OpenDevice):
            return self._open(header, call.peer), ()
        with self._lock:
            session = self._sessions.get(call.peer.connection)
        if session is None:
            raise ReferenceStale("no remote device is open on this connection", fix="open one")
        if isinstance(header, TakeUploads):
            if self._uploads is None or payloads:
                raise InvalidRequest("the server keeps no uploads", fix="send the bytes of tensors")
            return session.take_uploads(header, self._uploads, call.peer.client), ()
        assert isinstance(header, RunGraph)
        return session.run(header, payloads, call)

    def connection_lost(self, peer: Peer) -> None:
        """As ``WireService.connection_lost``."""
        with self._lock:
            session = self._take(peer)
        if session is not None:
            self._end(session)

    def _take(self, peer: Peer) -> GraphSession | None:
        """The session of a connection, which is about to end; with the lock."""
        session = self._sessions.pop(peer.connection, None)
        self._ending += [] if session is None else [session]
        return session

    def _end(self, session: GraphSession) -> None:
        session.close()
        with self._lock:
            self._ending.remove(session)
            self._ended = _sum_counts([self._ended, session.counts])

    @property
    def counts(self) -> GraphCounts:
        """Of all connections so far; none of them ever falls."""
        with self._lock:
            sessions = [*self._sessions.values(), *self._ending]
            return _sum_counts([self._ended, *(session.counts for session in sessions)])

    @property
    def contents(self) -> int:
        """Contents that connections have now."""
        with self._lock:
            return sum(len(session.contents) for session in self._sessions.values())

    def session_of(self, peer: Peer) -> GraphSession | None:
        """What a connection has recorded; ``None`` where it has not opened a device."""
        with self._lock:
            return self._sessions.get(peer.connection)

    def usage_of(self, client: str) -> ClientUsage:
        """What a client takes, on all its connections together."""
        with self._lock:
            return self._usage.setdefault(client, ClientUsage(self.limits, self._clock))

    def _open(self, header: OpenDevice, peer: Peer) -> DeviceOpened:
        """A session in place of any that the connection had. ``INVALID_CONFIG`` where bits would be another torch's."""
        if _release(header.torch) != _release(torch.__version__):
            raise InvalidConfig(
                f"the client has torch {header.torch:.40}, and the server {torch.__version__}: bits may differ",
                fix="use one version on both sides",
            )
        session = GraphSession(self.limits, self.usage_of(peer.client), self.plans, seed=header.seed, clock=self._clock)
        with self._lock:
            before = self._take(peer)
            self._sessions[peer.connection] = session
        if before is not None:
            self._end(before)
        return DeviceOpened(epoch=session.epoch, torch=str(torch.__version__))


def _sum_counts(parts: Sequence[GraphCounts]) -> GraphCounts:
    names = [each.name for each in fields(GraphCounts)]
    return GraphCounts(**{name: sum(getattr(part, name) for part in parts) for name in names})


def _release(version: str) -> list[str]:
    """``2.13.0+cpu`` as ``2`` and ``13``."""
    return version.split(".")[:2]
