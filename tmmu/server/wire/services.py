"""The services of a server, behind the wire."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tmmu.server.keys import KeyRing
from tmmu.server.model_table import ModelTable
from tmmu.server.settings import ServerSettings
from tmmu.server.uploads.upload_service import UploadService
from tmmu.server.uploads.upload_store import UploadStore
from tmmu.server.wire.model_service import ModelService
from tmmu.server.wire.session_service import SessionService
from tmmu.server.wire.session_table import SessionTable
from tmmu.server.wire.value_service import ValueService
from tmmu.wire.interface import WireService

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
        return WireServices(services, None)
    from tmmu.server.graphs.graph_limits import GraphLimits  # noqa: PLC0415 - what follows imports torch
    from tmmu.server.graphs.graph_service import GraphService  # noqa: PLC0415

    limits = GraphLimits(
        bytes=settings.tensor_bytes, multiply_adds=settings.call_multiply_adds, planned=settings.plan_bytes
    )
    graphs = GraphService(limits, uploads=store)
    return WireServices((*services, graphs), graphs)


def _upload_store(settings: ServerSettings, keys: KeyRing | None) -> UploadStore | None:
    if settings.upload_folder is None or not settings.tensor_bytes:
        return None
    folder_of = (lambda client: client) if keys is None else keys.folder_of
    return UploadStore(settings.upload_folder, settings.upload_bytes, folder_of)
