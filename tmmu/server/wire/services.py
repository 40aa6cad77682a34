"""The services of a server, behind the wire."""

from collections.abc import Sequence

from tmmu.server.model_table import ModelTable
from tmmu.server.settings import ServerSettings
from tmmu.server.wire.model_service import ModelService
from tmmu.server.wire.session_service import SessionService
from tmmu.server.wire.session_table import SessionTable
from tmmu.server.wire.value_service import ValueService
from tmmu.wire.interface import WireService


def wire_services(models: ModelTable, sessions: SessionTable, settings: ServerSettings) -> Sequence[WireService]:
    """Services of these models."""
    return (ModelService(models), SessionService(models, sessions, settings), ValueService(sessions))
