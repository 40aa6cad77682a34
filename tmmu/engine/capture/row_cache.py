"""A cache of transformers whose tensors are the state of sessions, a row of the batch each.

Keys and values lie position by position, ``dtype[kv_length, heads, size]``, in tensors of the row's own. A step writes
its positions there and attends to them there: nothing is gathered, and rows may be at different positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from tmmu.engine.geometry import StateTensor
from tmmu.errors import UnsupportedOp

KEY, VALUE = "key", "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """Keys and values of one layer of one session, ``dtype[kv_length, heads, size]`` each."""

    keys: torch.Tensor
    values: torch.Tensor

    def heads_first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Views ``dtype[1, heads, kv_length, size]`` of both."""
        return self.keys.transpose(0, 1)[None], self.values.transpose(0, 1)[None]


class RowLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One attention layer of a cache: ``rows`` has a session's state for each row of the batch.

    ``is_direct``: the model hands what ``update`` returns to its attention as it is, so that the new keys and values
    stand for the layer there. Else ``update`` returns the whole state of every row, which more than one row copies.
    """

    def __init__(self, index: int, rows: Sequence[RowState], positions: torch.Tensor, *, is_direct: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.index, self.rows, self.positions, self.is_direct = index, rows, positions, is_direct
        self.returned: tuple[torch.Tensor, torch.Tensor] | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the state is there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes ``dtype[batch, heads, tokens, size]`` at the positions of each row."""
        del args, kwargs
        for row, state in enumerate(self.rows):
            state.keys.index_copy_(0, self.positions[row], key_states[row].transpose(0, 1))
            state.values.index_copy_(0, self.positions[row], value_states[row].transpose(0, 1))
        if self.is_direct:
            self.returned = key_states, value_states
        else:
            views = [state.heads_first() for state in self.rows]
            keys, values = zip(*views, strict=True)
            self.returned = (keys[0], values[0]) if len(views) == 1 else (torch.cat(keys), torch.cat(values))
        return self.returned

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, offset) of a mask; no mask is made of it."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """0: positions are inputs of the step."""
        return 0

    def get_max_length(self) -> int:
        """The KV length."""
        return self.rows[0].keys.shape[0]


class RowCache(Cache):
    """The cache of one step, over the rows of ``state``: a tensor for each name of the geometry and each row."""

    def __init__(
        self,
        tensors: Sequence[StateTensor],
        state: Sequence[Callable[[str], torch.Tensor]],
        positions: torch.Tensor,
        *,
        direct: frozenset[int],
    ) -> None:
        count = 1 + max(layer_of(tensor.name) for tensor in tensors)
        self.row_layers = [
            RowLayer(
                index,
                [RowState(keys=row(state_name(index, KEY)), values=row(state_name(index, VALUE))) for row in state],
                positions,
                is_direct=index in direct,
            )
            for index in range(count)
        ]
        super().__init__(layers=list(self.row_layers))
        self.positions = positions
        self._masks: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}

    def layer_of_keys(self, keys: torch.Tensor) -> RowLayer | None:
        """The layer whose new keys these are; ``None`` where the model made others of them."""
        return next((layer for layer in self.row_layers if layer.returned and layer.returned[0] is keys), None)

    def mask(self, *, window: int, copies: int, dtype: torch.dtype) -> torch.Tensor:
        """``dtype[rows, 1, copies · tokens, kv_length]``: 0 where a query may attend, minus infinity elsewhere.

        A query attends to its own position and those before it, ``window`` in all; 0: to all of them. ``copies``: how
        many heads follow one another in the axis of queries. Made once for all layers of a kind.
        """
        key = (window, copies if self.positions.shape[1] > 1 else 1, dtype)  # one query: one row, whatever its head
        if key not in self._masks:
            kv_length = self.row_layers[0].get_max_length()
            own = self.positions[:, :, None]
            places = torch.arange(kv_length, device=own.device)
            allowed = places <= own
            if window:
                allowed = allowed & (places > own - window)
            mask = torch.full(allowed.shape, float("-inf"), dtype=dtype, device=own.device)
            mask = mask.masked_fill_(allowed, 0.0)[:, None]
            self._masks[key] = mask.repeat(1, 1, key[1], 1) if key[1] > 1 else mask
        return self._masks[key]


class ProbeLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """A layer that learns what its state is made of: it returns what it is given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.returned: tuple[torch.Tensor, torch.Tensor] | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: it keeps what comes."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes down the form of ``dtype[1, heads, 1, size]``."""
        del args, kwargs
        if self.returned is not None:
            raise UnsupportedOp("a layer writes its cache twice in a step", fix="run the model without an engine")
        self.returned = key_states, value_states
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, offset) of a mask."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """0: nothing came before."""
        return 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class ProbeCache(Cache):
    """The cache of a step that is run to learn the geometry. ``direct``: layers whose attention took what came back."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=ProbeLayer)
        self.direct: set[int] = set()
        self.attended: set[int] = set()

    @property
    def probe_layers(self) -> list[ProbeLayer]:
        """The layers that were written, and those before them."""
        return [layer for layer in self.layers if isinstance(layer, ProbeLayer)]

    def note_attention(self, index: int, keys: torch.Tensor) -> None:
        """An attention over ``keys`` of the module whose layer index this is."""
        self.attended.add(index)
        layers = self.probe_layers
        returned = layers[index].returned if index < len(layers) else None
        if returned is not None and returned[0] is keys:
            self.direct.add(index)

    def tensors(self) -> tuple[StateTensor, ...]:
        """The state of a session, layer by layer."""
        rows = []
        for index, layer in enumerate(self.probe_layers):
            if layer.returned is None:
                raise UnsupportedOp(f"layer {index} keeps no keys and values", fix="run the model without an engine")
            for kind, tensor in zip((KEY, VALUE), layer.returned, strict=True):
                shape = (tensor.shape[1], tensor.shape[3])
                rows.append(StateTensor(name=state_name(index, kind), dtype=tensor.dtype, shape=shape))
        return tuple(rows)


def state_name(layer: int, kind: str) -> str:
    """The name of a tensor of a session's state."""
    return f"layers.{layer}.{kind}"


def layer_of(name: str) -> int:
    """The layer of a tensor of a session's state."""
    return int(name.split(".")[1])
