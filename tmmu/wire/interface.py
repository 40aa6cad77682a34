"""The two ends of the wire as those see them who send requests and who answer them: no socket, no frame, no torch.

A message is a *header*, a msgspec structure, and *payloads*, raw bytes beside it. A request's class names the class of
its answer, so that both ends decode nothing but what they expect:

    class ListModels(RequestHeader, frozen=True, tag="models.list"):
        answer = ModelList

    class ModelService:
        requests = (ListModels,)
        def answer(self, header, payloads, call): return ModelList(names=("tiny",)), ()
        def connection_lost(self, peer): ...

    header, payloads = connection.request(ListModels(), deadline=5.0)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from tmmu.wire.limits import WireLimits
from tmmu.wire.stages import StageTimeline

Payloads: TypeAlias = Sequence[memoryview]
"""Of format ``B`` and one dimension each; read-only where they were received."""
Message: TypeAlias = tuple[msgspec.Struct, Payloads]


class WireHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What every header is: frozen, with named fields, and no others; those at their defaults do not travel. Bound
    lengths with ``msgspec.Meta``.
    """


class RequestHeader(WireHeader, frozen=True, tag=True):
    """A request; each class has a ``tag`` of its own, ``SERVICE.VERB``."""

    answer: ClassVar[type[msgspec.Struct]]
    """The class of the header that answers it."""
    part: ClassVar[type[msgspec.Struct] | None] = None
    """The class of headers that come before the answer, where it streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end. ``client``: the name of its key, ``key-1`` for the first, ``anybody`` without keys.

    ``connection``: a name of this connection that no other one ever had.
    """

    client: str
    connection: str
    limits: WireLimits


class ServiceCall(Protocol):
    """A request that is being answered."""

    @property
    def peer(self) -> Peer:
        """Who sent it."""

    @property
    def deadline(self) -> float:
        """When nobody waits for its answer any more, in seconds of ``time.monotonic``."""

    @property
    def stages(self) -> StageTimeline:
        """Where it is; ``execute`` when a service is asked to answer."""

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer now: the client went, gave it up, or its deadline is over."""

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Has ``callback`` called, once and by any thread, when the call is cancelled; at once where it is."""

    def send_part(self, header: msgspec.Struct, payloads: Payloads = ()) -> None:
        """Sends a part of an answer that streams. Raises ``DEADLINE_EXCEEDED`` once the call is cancelled.

        Payloads may not change before the call is over.
        """


class Cancellation:
    """What a ``ServiceCall`` keeps of its end: callbacks, each called once, whoever comes first."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._lock = Lock()
        self._callbacks: list[Callable[[], object]] = []

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """As ``ServiceCall.on_cancel``."""
        with self._lock:
            if not self.is_cancelled:
                self._callbacks.append(callback)
                return
        callback()

    def end(self) -> list[Callable[[], object]]:
        """Cancels; returns what is to be called."""
        with self._lock:
            self.is_cancelled, callbacks = True, self._callbacks
            self._callbacks = []
        return callbacks


class WireService(Protocol):
    """Answers requests of some classes. Several calls run at once, each on a worker thread."""

    @property
    def requests(self) -> tuple[type[RequestHeader], ...]:
        """The classes that it answers."""

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:
        """The answer, of the class that the request names. A ``TmmuError`` is raised at the client, as it is.

        ``payloads`` are the call's own, and may be kept; those that are returned may not change until they are sent:
        return bytes that nobody writes.
        """

    def connection_lost(self, peer: Peer) -> None:
        """A connection is over, and no call of it runs any more. Called once for each, on a worker thread."""


class Connection(Protocol):
    """A connection to a server; threads may share it."""

    @property
    def limits(self) -> WireLimits:
        """What the server takes."""

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent."""

    def request(self, header: RequestHeader, payloads: Payloads = (), *, deadline: float | None = None) -> Message:
        """The answer, within ``deadline`` seconds, or those of the connection. Payloads are sent when this returns.

        ``DEADLINE_EXCEEDED`` where there is none in time, ``SERVER_GONE`` where the server is no longer there, and
        whatever the service has raised.
        """

    def stream(
        self, header: RequestHeader, payloads: Payloads = (), *, deadline: float | None = None
    ) -> Iterator[Message]:
        """The parts of an answer as they come, and the answer last; closing the iterator gives the request up."""

    def post(self, header: RequestHeader) -> None:
        """Sends a request with the next one, or within a second; its answer is dropped, a failure too."""

    def close(self) -> None:
        """Ends the connection; what is under way is ``SERVER_GONE``. Closing again does nothing."""
