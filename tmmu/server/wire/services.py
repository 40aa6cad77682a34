"""The services of a server, behind the wire."""

from collections.abc import Sequence

from tmmu.server.model_table import ModelTable
from tmmu.server.wire.model_service import ModelService
from tmmu.wire.interface import WireService


def wire_services(models: ModelTable) -> Sequence[WireService]:
    """Services of these models."""
    return (ModelService(models),)
