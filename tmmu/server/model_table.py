"""The models of a server by name, and how much it has taken on."""

from collections.abc import Mapping, Sequence
from typing import Final

from tmmu.errors import ModelUnknown, ServerBusy
from tmmu.server.metrics import ServerMetrics
from tmmu.server.served_model import ServedModel

_BUSY: Final = "send the request again a little later"


class ModelTable:
    """Used by the event loop alone, but for ``models``, which others may read.

    ``texts``: how many texts are generated, or wait for room; at most ``concurrency``.
    """

    def __init__(self, metrics: ServerMetrics, *, names: Sequence[str], concurrency: int) -> None:
        self._metrics, self._names, self._concurrency = metrics, tuple(names), concurrency
        self._models: Mapping[str, ServedModel] = {}
        self.texts = 0
        self.is_draining = False

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

    def admit(self, model: ServedModel, texts: int, prompt_tokens: int) -> None:
        """Takes on so many texts. ``SERVER_BUSY`` where that is more than the server takes at once."""
        if self.texts + texts > self._concurrency:
            raise ServerBusy(
                f"{self.texts} texts are under way, {texts} more were asked for, and {self._concurrency} are the most",
                fix=_BUSY,
                texts=self.texts,
                concurrency=self._concurrency,
            )
        self.texts += texts
        self._metrics.note_texts(model.name, texts, prompt_tokens)

    def release(self, model: ServedModel, texts: int) -> None:
        """The end of so many texts, which were taken on."""
        self.texts -= texts
        self._metrics.note_end_of_texts(model.name, texts)
