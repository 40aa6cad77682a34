"""Cross-attention of a step over rows: each row attends to keys and values of its own source, where those lie.

They are written once, when the source is encoded, and the decoder computes nothing of the encoder's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin, EncoderDecoderCache

from tmmu.engine.capture.row_attention import AttentionInputs, attend_rows
from tmmu.engine.capture.row_cache import (
    CROSS_KEY,
    CROSS_VALUE,
    PositionlessCache,
    ProbeCache,
    RowState,
    kind_of,
    layer_of,
    state_name,
)
from tmmu.engine.geometry import StateTensor
from tmmu.errors import UnsupportedOp


class CrossLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of the source in one layer: ``rows`` has a session's for each row.

    The model takes ``keys`` and ``values`` from it; those of the first row stand for the layer.
    """

    def __init__(self, rows: Sequence[RowState]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.keys, self.values = rows[0].heads_first()
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the state is there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``UNSUPPORTED_OP``: a step of the decoder does not change the source."""
        del key_states, value_states, args, kwargs
        raise UnsupportedOp("the decoder makes keys of the source in each step", fix="run the model without an engine")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, offset) of a mask; no mask is made of it."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Positions of the source for which the step is made."""
        return self.rows[0].keys.shape[0]

    def get_max_length(self) -> int:
        """The same."""
        return self.get_seq_length()


class CrossCache(PositionlessCache):
    """The cross-attention of one step over the rows of ``state``, as ``RowCache`` is its self-attention.

    ``lengths``: ``int64[rows]``, positions that each source has; ``None`` where all that are there are its own.
    """

    def __init__(
        self,
        tensors: Sequence[StateTensor],
        state: Sequence[Callable[[str], torch.Tensor]],
        lengths: torch.Tensor | None,
    ) -> None:
        self.cross_layers = [
            CrossLayer(
                [
                    RowState(keys=row(state_name(index, CROSS_KEY)), values=row(state_name(index, CROSS_VALUE)))
                    for row in state
                ]
            )
            for index in cross_layers(tensors)
        ]
        super().__init__(layers=list(self.cross_layers))
        keys = self.cross_layers[0].keys
        assert keys is not None
        self._masks = None if lengths is None else source_mask(lengths, keys.shape[2], keys.dtype)

    def attend(self, call: AttentionInputs) -> torch.Tensor | None:
        """Of keys of the source: each row to its own."""
        layer = next((layer for layer in self.cross_layers if layer.keys is call.key), None)
        if layer is None:
            return None
        return attend_rows(call.query, [state.heads_first() for state in layer.rows], self._masks, call.form)


class ProbedSource:
    """The attentions to a source in a step that is run to learn the geometry; ``encoder``: the modules of that."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        self._encoder = set(encoder.modules())
        self.cache = ProbeCache(of_source=True)
        self.encoder_calls = 0

    def attend(self, call: AttentionInputs) -> torch.Tensor | None:
        """Zeros; takes down which layers attend to keys of the source as they are."""
        index: Any = getattr(call.module, "layer_idx", None)
        if call.module in self._encoder:
            self.encoder_calls += 1
        elif self.cache.keys.get(index) is not call.key:
            return None
        else:
            # T5 passes a bias of zeros where an attention has none of its own.
            if getattr(call.module, "has_relative_attention_bias", False):
                raise UnsupportedOp(
                    f"{type(call.module).__name__} attends to a source with a bias",
                    fix="run the model without an engine",
                )
            self.cache.note_attention(index, call.key)
        require_plain(call)
        batch, heads, positions, _ = call.query.shape
        return call.query.new_zeros(batch, positions, heads, call.value.shape[3])


def both_caches(own: PositionlessCache, cross: PositionlessCache) -> EncoderDecoderCache:
    """What a decoder takes for its cache; of layers that ``cross`` has it makes no keys."""
    cache = EncoderDecoderCache(own, cross)
    cache.is_updated = dict.fromkeys(range(len(cross.layers)), True)
    return cache


def cross_layers(tensors: Sequence[StateTensor]) -> list[int]:
    """The layers that attend to a source; all of them, counted from 0."""
    return [layer_of(tensor.name) for tensor in tensors if kind_of(tensor.name) == CROSS_KEY]


def source_mask(lengths: torch.Tensor, positions: int, dtype: torch.dtype) -> torch.Tensor:
    """``dtype[rows, 1, 1, positions]``: 0 for the first ``lengths`` positions, minus infinity behind them."""
    allowed = torch.arange(positions, device=lengths.device) < lengths[:, None]
    mask = torch.full(allowed.shape, float("-inf"), dtype=dtype, device=lengths.device)
    return mask.masked_fill_(allowed, 0.0)[:, None, None]


def require_plain(call: AttentionInputs) -> None:
    """``UNSUPPORTED_OP`` for attention of an encoder, or to a source, with a cap or a window."""
    if call.form.softcap is not None or call.window:
        raise UnsupportedOp(
            f"{type(call.module).__name__} attends to a source with a cap or a window",
            fix="run the model without an engine",
        )
