"""The geometry of a session's state: which tensors it has, and where each lies in an arena.

A tensor that grows has positions along its first axis, so its first ``n`` positions are the same bytes whatever the
capacity: a step of a KV length of ``n`` runs in every arena of at least that capacity.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

import torch

from tmmu.errors import InvalidConfig
from tmmu.runtime.memory.usage import round_up

MIN_KV_LENGTH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of a session's state: ``dtype[capacity, *shape]`` where it grows, else ``dtype[shape]``."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    grows: bool = True

    def shape_for(self, positions: int) -> tuple[int, ...]:
        """Its shape with that many positions."""
        return (positions, *self.shape) if self.grows else self.shape

    def bytes_for(self, positions: int) -> int:
        """Its bytes with that many positions."""
        return prod(self.shape_for(positions)) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The state of any session of one model. ``longest``: positions that the model has; 0 where it has no limit."""

    tensors: tuple[StateTensor, ...]
    longest: int
    alignment: int

    @cached_property
    def by_name(self) -> Mapping[str, StateTensor]:
        """Its tensors by their names."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def grows(self) -> bool:
        """Whether any tensor has positions."""
        return any(tensor.grows for tensor in self.tensors)

    @cached_property
    def recurs(self) -> bool:
        """Whether any tensor is changed by every token, so that no token may be padding."""
        return not all(tensor.grows for tensor in self.tensors)

    @cached_property
    def token_bytes(self) -> int:
        """Bytes that one more position takes."""
        return sum(tensor.bytes_for(1) for tensor in self.tensors if tensor.grows)

    def offsets(self, capacity: int) -> Mapping[str, int]:
        """Byte offset of each tensor in an arena of that capacity, in positions."""
        offsets, end = {}, 0
        for tensor in self.tensors:
            offsets[tensor.name] = end
            end = round_up(end + tensor.bytes_for(capacity), self.alignment)
        return offsets

    def arena_bytes(self, capacity: int) -> int:
        """Bytes of an arena of that capacity."""
        return sum(round_up(tensor.bytes_for(capacity), self.alignment) for tensor in self.tensors)

    def capacity_for(self, tokens: int) -> int:
        """The least KV length that holds so many tokens; ``INVALID_CONFIG`` for more than the model has."""
        if tokens < 1 or (self.longest and tokens > self.longest):
            limit = f"at most {self.longest}" if self.longest else "at least 1"
            raise InvalidConfig(
                f"a session of {tokens} tokens, where the model has positions for {limit}",
                fix=f"open it with {limit}",
                tokens=tokens,
            )
        return self.kv_length_for(tokens) if self.grows else tokens

    def kv_length_for(self, tokens: int) -> int:
        """The least of 64, 96, 128, 192, 256, 384 … that is not below ``tokens``, nor above what the model has.

        Always the same where no tensor has positions.
        """
        length = MIN_KV_LENGTH
        while self.grows and length < tokens:
            # Powers of two and the middles between them: at most half again as much as is needed.
            length = length * 3 // 2 if length & (length - 1) == 0 else length * 4 // 3
        return min(length, self.longest) if self.longest else length
