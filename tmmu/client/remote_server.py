"""A server from afar: its models, sessions of them, and the connection that all share."""

import ssl
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from tmmu.client.client_connection import ClientConnection
from tmmu.client.forks import leave_to_parent
from tmmu.client.request_trace import RequestTrace, request_trace
from tmmu.client.transport import open_transport
from tmmu.client.value_counts import ValueCounts
from tmmu.errors import InvalidConfig
from tmmu.wire.interface import Message, Payloads, RequestHeader
from tmmu.wire.model_messages import ListModels, LoadModel, ModelEntry
from tmmu.wire.session_messages import AttachSession, OpenSession

if TYPE_CHECKING:
    import torch

    from tmmu.client.device.registration import RemoteDevice
    from tmmu.client.ghost_model import GhostModel
    from tmmu.client.remote_session import RemoteSession
    from tmmu.client.shadow.shadow_module import ShadowModule


class RemoteServer:
    """Made by ``connect``; a context manager. A connection that broke is opened again by the next request,
    and so is that of a process which forked this one.
    """

    def __init__(
        self, address: str, *, key: str | None, tls: bool | str | Path | ssl.SSLContext, deadline: float
    ) -> None:
        self.address, self.deadline = address, deadline
        self.counts = ValueCounts()
        """What looks at values have moved."""
        self._key, self._tls = key, tls
        self._opening, self._attaching = Lock(), Lock()
        self._device: RemoteDevice | None = None
        self._connection: ClientConnection | None = self._open()
        self.is_open = True
        leave_to_parent(self)

    @property
    def connection(self) -> ClientConnection:
        """The open connection; ``SERVER_GONE`` where there is none any more and none can be opened."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        with self._opening:
            if not self.is_open:
                raise InvalidConfig("the connection was closed", fix="connect again")
            if self._connection is None or not self._connection.is_open:
                self._connection = self._open()
            return self._connection

    def request(self, header: RequestHeader, payloads: Payloads = (), *, deadline: float | None = None) -> Message:
        """The answer of the server; its refusals are raised as its own errors."""
        return self.connection.request(header, payloads, deadline=deadline)

    def post(self, header: RequestHeader) -> None:
        """Sends a request whose answer nobody needs, where there is a connection; for destructors."""
        connection = self._connection
        if connection is not None and connection.is_open:
            connection.post(header)

    def models(self) -> tuple[ModelEntry, ...]:
        """The models, in the order in which the server names them."""
        header, _ = self.request(ListModels())
        entries: tuple[ModelEntry, ...] = header.models  # type: ignore[attr-defined] # ListModels names the class
        return entries

    def load(self, name: str) -> "GhostModel":
        """A ghost of a model: a module whose parameters have names, dtypes and shapes, and no bytes."""
        from tmmu.client.ghost_model import GhostModel  # noqa: PLC0415 - torch

        form, (config,) = self.request(LoadModel(name=name))
        return GhostModel(self, form, bytes(config))  # type: ignore[arg-type]

    def session(  # noqa: PLR0913 - what a session is to be, by name
        self,
        model: "GhostModel | str | None" = None,
        *,
        expected_tokens: int | None = None,
        source: int | None = None,
        keep: int | str = 0,
        lease: float | None = None,
        qos: Any = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> "RemoteSession":
        """A session of a model, by default of the server's only one, with room for ``expected_tokens``.

        ``source``, ``keep``: as ``Engine.open`` has them. ``lease``: seconds that it outlives its connection. ``qos``:
        ``realtime``, ``interactive`` or ``batch``; without one it follows from ``deadline``, seconds in which a request
        is to begin its last step. ``priority``: 0 to 9, among the client's own.
        """
        from tmmu.client.remote_session import RemoteSession  # noqa: PLC0415 - torch
        from tmmu.planner.arenas import parse_size  # noqa: PLC0415 - as the session's other sizes

        header = OpenSession(
            model=self._name_of(model),
            tokens=expected_tokens,
            source=source,
            keep=parse_size(keep) if isinstance(keep, str) else keep,
            lease=lease,
            qos=qos,
            priority=priority,
            deadline=deadline,
        )
        state, _ = self.request(header)
        return RemoteSession(self, state)  # type: ignore[arg-type]

    def attach(self, session: str) -> "RemoteSession":
        """A session that was opened before with the same key, and whose lease has not run out."""
        from tmmu.client.remote_session import RemoteSession  # noqa: PLC0415 - torch

        if not isinstance(session, str) or len(session) != 32:
            raise InvalidConfig(f"{session!r:.40} names no session", fix="give the id of a session")
        state, _ = self.request(AttachSession(session=session))
        return RemoteSession(self, state)  # type: ignore[arg-type]

    def open_device(self, *, deadline: float | None = None) -> "RemoteDevice":
        """``device="remote"`` means this server from now on, until the device or the connection is closed.

        ``deadline``: seconds that a request of it may take. ``DEVICE_TAKEN`` where this process has another such
        device, ``INVALID_REQUEST`` where the server lets no client have tensors (its setting ``tensor_bytes``).
        """
        from tmmu.client.device.registration import attach_device  # noqa: PLC0415 - torch

        self._device = attach_device(self.connection, deadline=deadline)
        return self._device

    def shared_device(self) -> "RemoteDevice":
        """The device that is open on this connection, or else a new one: ``open_device``."""
        with self._attaching:
            device = self._device
            return device if device is not None and device.is_open else self.open_device()

    def shadow(
        self, module: "torch.nn.Module", *, deadline: float | None = None, local_bytes: int | str | None = None
    ) -> "ShadowModule":
        """A local module that is uploaded in the background, runs here until it is there, and then there.

        It opens the device of this server, if none is open. ``deadline``: seconds of each request of the upload.
        ``local_bytes``: what a run here takes, where the module cannot be planned. ``INVALID_CONFIG`` for a module that
        is not on the cpu; errors of ``open_device``.
        """
        from tmmu.client.shadow.shadow_module import ShadowModule  # noqa: PLC0415 - torch
        from tmmu.planner.arenas import parse_size  # noqa: PLC0415 - as the session's sizes

        size = parse_size(local_bytes) if isinstance(local_bytes, str) else local_bytes
        return ShadowModule(self, module, deadline=deadline, local_bytes=size)

    def trace(self, traceparent: str | None = None) -> AbstractContextManager[RequestTrace]:
        """Block whose requests, of this thread, are spans of one trace, which has the stages of each."""
        return request_trace(traceparent)

    def close(self) -> None:
        """Ends the connection. Sessions live on for their leases. Closing again does nothing."""
        with self._opening:
            self.is_open = False
            if self._connection is not None:
                self._connection.close()

    def leave_to_parent(self) -> None:
        """As ``Forked.leave_to_parent``: the next request opens a connection of this process."""
        self._opening, self._attaching = Lock(), Lock()

    def __enter__(self) -> "RemoteServer":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteServer at {self.address}>"

    def _open(self) -> ClientConnection:
        transport = open_transport(self.address, self._tls, monotonic() + self.deadline)
        return ClientConnection(transport, self._key, deadline=self.deadline)

    def _name_of(self, model: "GhostModel | str | None") -> str:
        if isinstance(model, str):
            return model
        if model is not None and not isinstance(getattr(model, "name", None), str):
            raise InvalidConfig(f"a {type(model).__name__} is no model", fix="give a name, or what load() returned")
        if model is not None:
            return model.name
        names = [entry.name for entry in self.models()]
        if len(names) != 1:
            raise InvalidConfig(f"the server has {len(names)} models", fix=f"name one of {', '.join(names):.200}")
        return names[0]
