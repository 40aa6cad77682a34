"""The services of a server, behind the wire."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tmmu.errors import InvalidRequest
from tmmu.server.keys import KeyRing
from tmmu.server.model_table import ModelTable
from tmmu.server.settings import ServerSettings
from tmmu.server.uploads.upload_service import UploadService
from tmmu.server.uploads.upload_store import UploadStore
from tmmu.server.wire.model_service import ModelService
from tmmu.server.wire.session_service import SessionService
from tmmu.server.wire.session_table import SessionTable
from tmmu.server.wire.value_service import ValueService
from tmmu.wire.graph import OpenDevice, RunGraph, TakeUploads
from tmmu.wire.interface import Message, Payloads, Peer, RequestHeader, ServiceCall, WireService

if TYPE_CHECKING:
    from tmmu.server.graphs.graph_service import GraphService


@dataclass(frozen=True, slots=True)
class WireServices:
    """``graphs``: that of clients' own tensors, which is among ``all``; ``None`` where they may have none."""

    all: tuple[WireService, ...]
    graphs: "GraphService | None"


def wire_services(
    models: ModelTable, sessions: SessionTable, settings: ServerSettings, keys: KeyRing | None
) -> WireServices:
    """Services of these models, and of clients' own tensors where they may have any."""
    store = _upload_store(settings, keys)
    services = (
        ModelService(models),
        SessionService(models, sessions, settings, keys),
        ValueService(sessions),
        UploadService(store),
    )
    if not settings.tensor_bytes:
        return WireServices((*services, _NoTensors()), None)
    from tmmu.server.graphs.graph_limits import GraphLimits  # noqa: PLC0415 - what follows imports torch
    from tmmu.server.graphs.graph_service import GraphService  # noqa: PLC0415

    limits = GraphLimits(
        bytes=settings.tensor_bytes, multiply_adds=settings.call_multiply_adds, planned=settings.plan_bytes
    )
    graphs = GraphService(limits, uploads=store)
    return WireServices((*services, graphs), graphs)


class _NoTensors:
    """In the place of the service that runs recorded graphs: says what lets clients have tensors."""

    requests = (OpenDevice, RunGraph, TakeUploads)

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:  # noqa: ARG002
        """``INVALID_REQUEST``."""
        raise InvalidRequest(
            "the server lets no client have tensors", fix="have it serve with the setting tensor_bytes"
        )

    def connection_lost(self, peer: Peer) -> None:
        """Nothing of it is here."""


def _upload_store(settings: ServerSettings, keys: KeyRing | None) -> UploadStore | None:
    if settings.upload_folder is None or not settings.tensor_bytes:
        return None
    folder_of = (lambda client: client) if keys is None else keys.folder_of
    return UploadStore(settings.upload_folder, settings.upload_bytes, folder_of)
