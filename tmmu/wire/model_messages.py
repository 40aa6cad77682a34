"""Messages about models: which there are, and what a ghost of one is made of."""

from typing import Annotated, TypeAlias

import msgspec

from tmmu.wire.interface import RequestHeader, WireHeader
from tmmu.wire.tensor_forms import DtypeText, Shape

ModelText: TypeAlias = Annotated[str, msgspec.Meta(max_length=128)]


class ModelEntry(WireHeader, frozen=True):
    """A model. ``longest``: tokens of the longest session. ``encodes``: whether an encoder reads its prompts."""

    name: str
    longest: int
    vocabulary: int
    encodes: bool


class ModelList(WireHeader, frozen=True):
    """The models of a server, in the order in which they were named."""

    models: tuple[ModelEntry, ...]


class ListModels(RequestHeader, frozen=True, tag="models.list"):
    """Which models there are."""

    answer = ModelList


class WeightEntry(WireHeader, frozen=True):
    """A weight or buffer, without bytes; ``tied``: the name of the one that it is, or its own."""

    name: str
    dtype: DtypeText
    shape: Shape
    tied: str
    is_buffer: bool


class LoadedModel(WireHeader, frozen=True):
    """What a ghost is made of; the payload is the configuration, JSON."""

    entry: ModelEntry
    weights: tuple[WeightEntry, ...]


class LoadModel(RequestHeader, frozen=True, tag="models.load"):
    """The form of a model."""

    answer = LoadedModel
    name: ModelText
