"""Models over the wire: their names, and forms of their weights. No bytes of weights leave the server."""

import json
from functools import lru_cache
from typing import Final

import msgspec

from tmmu.errors import InvalidRequest
from tmmu.server.model_table import ModelTable
from tmmu.server.served_model import ServedModel
from tmmu.wire.interface import Message, Payloads, Peer, RequestHeader, ServiceCall
from tmmu.wire.model_messages import ListModels, LoadedModel, LoadModel, ModelEntry, ModelList, WeightEntry

_FORMS: Final = 64
"""Models whose forms stay encoded, so that the second client has them at once."""


class ModelService:
    """Answers from the table of a server."""

    requests = (ListModels, LoadModel)

    def __init__(self, models: ModelTable) -> None:
        self._models = models
        self._form = lru_cache(_FORMS)(_form_of)

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:  # noqa: ARG002
        """The list of models, or the form of one; ``MODEL_UNKNOWN``, ``SERVER_BUSY`` while models are loaded."""
        require_no_payloads(payloads)
        if isinstance(header, ListModels):
            return ModelList(models=tuple(map(entry_of, self._models.models))), ()
        assert isinstance(header, LoadModel)
        form, config = self._form(self._models.find(header.name))
        return form, [memoryview(config)]

    def connection_lost(self, peer: Peer) -> None:
        """Nothing of a connection is here."""


def require_no_payloads(payloads: Payloads) -> None:
    """``INVALID_REQUEST`` for bytes beside a request that takes none."""
    if payloads:
        raise InvalidRequest("a request with payloads that it does not take", fix="send none")


def entry_of(model: ServedModel) -> ModelEntry:
    """A model as it is listed."""
    return ModelEntry(name=model.name, longest=model.longest, vocabulary=model.engine.vocabulary, encodes=model.encodes)


def _form_of(model: ServedModel) -> tuple[LoadedModel, bytes]:
    from tmmu.engine.capture.weight_forms import weight_forms  # noqa: PLC0415 - torch comes with the engine

    subject = model.engine.subject
    weights = tuple(
        WeightEntry(name=form.name, dtype=form.dtype, shape=form.shape, tied=form.tied, is_buffer=form.is_buffer)
        for form in weight_forms(subject)
    )
    config = msgspec.json.encode(json.loads(subject.config.to_json_string(use_diff=False)))
    return LoadedModel(entry=entry_of(model), weights=weights), config
