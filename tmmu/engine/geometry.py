"""The geometry of a session's state: which tensors it has, and where each lies in an arena.

A tensor that grows has positions along its first axis, so its first ``n`` positions are the same bytes whatever the
capacity: a step of a KV length of ``n`` runs in every arena of at least that capacity. Positions are those of the text,
or, of what the decoder of an encoder-decoder attends to across, those of the source. Behind what steps read lies what a
session keeps for its client: the logits behind its last token, and values by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final, Literal

import torch

from tmmu.errors import InvalidConfig
from tmmu.runtime.memory.usage import round_up

MIN_KV_LENGTH: Final = 64
LOGITS: Final = "logits"
KEPT: Final = "kept"
"""The names of what a session keeps for its client; no tensor of a model's state has them."""


@dataclass(frozen=True, slots=True)
class StateLengths:
    """Positions of a state: of the ``text``, which a decoder reads and writes, and of its ``source``; 0 without one.

    ``kept``: bytes of values that are kept by name.
    """

    text: int
    source: int
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of a session's state: ``dtype[capacity, *shape]`` where it grows, else ``dtype[shape]``.

    ``along``: the field of ``StateLengths`` that counts its positions.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    grows: bool = True
    along: Literal["text", "source", "kept"] = "text"

    def shape_for(self, lengths: StateLengths) -> tuple[int, ...]:
        """Its shape with that many positions."""
        return (getattr(lengths, self.along), *self.shape) if self.grows else self.shape

    def bytes_for(self, lengths: StateLengths) -> int:
        """Its bytes with that many positions."""
        return prod(self.shape_for(lengths)) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The state of any session of one model. ``longest``: positions that the model has; 0 where it has no limit.

    ``tensors``: what steps read and write. ``logits``: what they leave for the client; ``None`` where nobody takes
    them. ``source_positions``: those of every source, where they are all of one length; else 0.
    """

    tensors: tuple[StateTensor, ...]
    longest: int
    alignment: int
    source_positions: int = 0
    logits: StateTensor | None = None

    @cached_property
    def arena_tensors(self) -> tuple[StateTensor, ...]:
        """All that lies in an arena: ``tensors``, logits, and the bytes of kept values."""
        logits = () if self.logits is None else (self.logits,)
        return *self.tensors, *logits, StateTensor(name=KEPT, dtype=torch.uint8, shape=(), along="kept")

    @cached_property
    def by_name(self) -> Mapping[str, StateTensor]:
        """What lies in an arena by its name."""
        return {tensor.name: tensor for tensor in self.arena_tensors}

    @cached_property
    def grows(self) -> bool:
        """Whether any tensor has positions of the text."""
        return any(tensor.grows and tensor.along == "text" for tensor in self.tensors)

    @cached_property
    def has_source(self) -> bool:
        """Whether any tensor has positions of a source: the model is an encoder-decoder."""
        return any(tensor.along == "source" for tensor in self.tensors)

    @cached_property
    def recurs(self) -> bool:
        """Whether any tensor is changed by every token, so that no token may be padding."""
        return not all(tensor.grows for tensor in self.tensors)

    @cached_property
    def token_bytes(self) -> int:
        """Bytes that one more position of the text takes."""
        return sum(tensor.bytes_for(StateLengths(1, 0)) for tensor in self.tensors if tensor.grows)

    @cached_property
    def source_token_bytes(self) -> int:
        """Bytes that one more position of the source takes."""
        return sum(tensor.bytes_for(StateLengths(0, 1)) for tensor in self.tensors if tensor.grows)

    def offsets(self, capacities: StateLengths) -> Mapping[str, int]:
        """Byte offset of each tensor in an arena of that capacity, in positions."""
        offsets, end = {}, 0
        for tensor in self.arena_tensors:
            offsets[tensor.name] = end
            end = round_up(end + tensor.bytes_for(capacities), self.alignment)
        return offsets

    def arena_bytes(self, capacities: StateLengths) -> int:
        """Bytes of an arena of that capacity."""
        return sum(round_up(tensor.bytes_for(capacities), self.alignment) for tensor in self.arena_tensors)

    def capacity_for(self, tokens: int) -> int:
        """The least KV length that holds so many tokens; ``INVALID_CONFIG`` for more than the model has."""
        if tokens < 1 or (self.longest and tokens > self.longest):
            limit = f"at most {self.longest}" if self.longest else "at least 1"
            raise InvalidConfig(
                f"a session of {tokens} tokens, where the model has positions for {limit}",
                fix=f"open it with {limit}",
                tokens=tokens,
                longest=self.longest or None,
            )
        return self.kv_length_for(tokens) if self.grows else tokens

    def capacities_for(self, tokens: int, source: int, kept: int = 0) -> StateLengths:
        """The least lengths that hold a text and a source of so many; a model without an encoder has no source."""
        return StateLengths(self.capacity_for(tokens), self.source_length_for(source), kept)

    def kv_length_for(self, tokens: int) -> int:
        """The least of 64, 96, 128, 192, 256, 384 … that is not below ``tokens``, nor above what the model has.

        Always the same where no tensor has positions.
        """
        length = _length_for(tokens) if self.grows else MIN_KV_LENGTH
        return min(length, self.longest) if self.longest else length

    def source_length_for(self, tokens: int) -> int:
        """As ``kv_length_for``, of a source of so many tokens; of features, the positions that all have."""
        return self.source_positions or _length_for(tokens) if self.has_source else 0


def _length_for(tokens: int) -> int:
    """The least power of two, or middle between two, that holds so many: at most half again as much as is needed."""
    length = MIN_KV_LENGTH
    while length < tokens:
        length = length * 3 // 2 if length & (length - 1) == 0 else length * 4 // 3
    return length
