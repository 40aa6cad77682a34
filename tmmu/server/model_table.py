"""The models of a server by name, and how much it has taken on."""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final

from tmmu.errors import ModelUnknown, ServerBusy
from tmmu.server.admission.class_slots import ClassSlots
from tmmu.server.admission.quotas import QuotaTable
from tmmu.server.admission.request_terms import RequestTerms
from tmmu.server.metrics import ServerMetrics
from tmmu.server.served_model import ServedModel

_BUSY: Final = "send the request again a little later"


class ModelTable:
    """Used by the event loop alone, but for ``models``, which others may read, and ``quotas``.

    ``most``: texts that are taken on at once. ``headroom``: the part of the slots that each class keeps from those
    below it while it is there.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        *,
        names: Sequence[str],
        most: int,
        headroom: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._metrics, self._names = metrics, tuple(names)
        self._slots, self.quotas = ClassSlots(most, headroom, clock), QuotaTable(clock)
        self._models: Mapping[str, ServedModel] = {}
        self.is_draining = False

    @property
    def texts(self) -> int:
        """How many texts are generated, or wait for room; at most ``most``."""
        return self._slots.taken

    def set_models(self, models: Sequence[ServedModel]) -> None:
        """The models are there: from now on requests are answered."""
        self._models = {model.name: model for model in models}

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken, for all models."""
        return bool(self._models) and not self.is_draining and not self.has_failed

    @property
    def has_failed(self) -> bool:
        """Whether the loop of a model has ended."""
        return not all(model.loop.is_running for model in self._models.values())

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The models, in the order in which they were named; none before all are there."""
        return tuple(self._models.values())

    def find(self, name: str) -> ServedModel:
        """The model of this name. ``MODEL_UNKNOWN`` where none is called so, ``SERVER_BUSY`` where it is not there."""
        if name not in self._names:
            raise ModelUnknown(
                f"there is no model {name!r:.80}", fix=f"there are {', '.join(self._names)[:400]}", param="model"
            )
        if self.is_draining:
            raise ServerBusy("the server is about to end", fix="send the request to another one")
        if name not in self._models:
            raise ServerBusy(f"{name} is not loaded yet", fix=_BUSY)
        return self._models[name]

    def admit(self, model: ServedModel, texts: int, prompt_tokens: int, *, most: int, terms: RequestTerms) -> None:
        """Takes on so many texts, of ``most`` tokens at most with their prompts.

        ``QUOTA_EXCEEDED`` where that is more than their client has left, ``SERVER_BUSY`` where the server takes no more
        of their class at once.
        """
        if model.watch.refuses(terms.queue.qos):
            raise ServerBusy(
                f"the room of {model.name} is {model.watch.gauge.level}: no {terms.queue.qos} texts are taken on",
                fix=_BUSY,
            )
        self.quotas.pay(terms.queue.client, terms.rights.quota, most)
        if not self._slots.take(terms.queue.qos, texts):
            self.quotas.give_back(terms.queue.client, terms.rights.quota, most)
            limit = self._slots.limit_of(terms.queue.qos)
            raise ServerBusy(
                f"{self.texts} texts are under way, {texts} more were asked for, and {limit} are the most",
                fix=_BUSY,
                texts=self.texts,
                most=limit,
            )
        self._metrics.note_texts(model.name, texts, prompt_tokens)

    def release(self, model: ServedModel, texts: int, *, unused: int, terms: RequestTerms) -> None:
        """The end of so many texts, which were taken on; ``unused`` tokens of those were not computed."""
        self._slots.give_back(terms.queue.qos, texts)
        self.quotas.give_back(terms.queue.client, terms.rights.quota, unused)
        self._metrics.note_end_of_texts(model.name, texts)
