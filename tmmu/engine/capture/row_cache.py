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
CROSS_KEY, CROSS_VALUE = "cross_key", "cross_value"
"""Kinds of what a decoder attends to across: keys and values of the source."""
CONVOLUTION, RECURRENT = "convolution", "recurrent"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """Keys and values of one layer of one session, ``dtype[positions, heads, size]`` each."""

    keys: torch.Tensor
    values: torch.Tensor

    def heads_first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Views ``dtype[1, heads, positions, size]`` of both."""
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


class PositionlessCache(Cache):
    """What the caches of a step tell the model: positions are inputs, masks are made where the model attends."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are inputs of the step."""
        del layer_idx
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """(keys, offset) of a mask; no mask is made of it."""
        del layer_idx
        return query_length, 0

    def is_recording_past(self, layer_idx: int) -> bool:
        """No: only the last state is kept."""
        del layer_idx
        return False


class RowCache(PositionlessCache):
    """The cache of one step, over the rows of ``state``: a tensor for each name of the geometry and each row.

    ``is_fresh``: no row has read a token. State that recurs is the row's own tensor where there is one row, and is
    gathered and written back (``write_back``) where there are more.
    """

    def __init__(
        self,
        tensors: Sequence[StateTensor],
        state: Sequence[Callable[[str], torch.Tensor]],
        positions: torch.Tensor,
        *,
        direct: frozenset[int],
        is_fresh: bool,
    ) -> None:
        attentions = [layer_of(tensor.name) for tensor in tensors if kind_of(tensor.name) == KEY]
        self.row_layers = {
            index: RowLayer(
                index,
                [RowState(keys=row(state_name(index, KEY)), values=row(state_name(index, VALUE))) for row in state],
                positions,
                is_direct=index in direct,
            )
            for index in attentions
        }
        super().__init__(layers=list(self.row_layers.values()))
        self.positions, self.is_fresh = positions, is_fresh
        self._state = state
        self._gathered: dict[str, torch.Tensor] = {}
        self._masks: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}
        self._biased: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes keys and values of a layer."""
        return self.row_layers[layer_idx].update(key_states, value_states, *args, **kwargs)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether state that recurs is there."""
        del layer_idx, state_idx
        return not self.is_fresh

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """``dtype[rows, channels, kernel]``, which the model changes in place; ``None`` before the first token."""
        return None if self.is_fresh else self._gather(state_name(layer_idx, CONVOLUTION, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """``dtype[rows, ...]``, which the model changes in place; ``None`` before the first token."""
        return None if self.is_fresh else self._gather(state_name(layer_idx, RECURRENT, state_idx))

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Keeps the last positions of the past and ``dtype[rows, channels, tokens]``; returns all of both."""
        del kwargs
        state = self._gather(state_name(layer_idx, CONVOLUTION, state_idx))
        whole = conv_states if self.is_fresh else torch.cat([state, conv_states], dim=-1)
        kernel = state.shape[-1]
        state.copy_(torch.nn.functional.pad(whole, (max(kernel - whole.shape[-1], 0), 0))[..., -kernel:])
        return whole

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Keeps ``dtype[rows, ...]``."""
        del kwargs
        return self._gather(state_name(layer_idx, RECURRENT, state_idx)).copy_(recurrent_states)

    def write_back(self) -> None:
        """Gives each row what recurs of it, where it was gathered."""
        if len(self._state) > 1:
            for name, gathered in self._gathered.items():
                for row, state in enumerate(self._state):
                    state(name).copy_(gathered[row])

    def layer_of_keys(self, keys: torch.Tensor) -> RowLayer | None:
        """The layer whose new keys these are; ``None`` where the model made others of them."""
        layers = self.row_layers.values()
        return next((layer for layer in layers if layer.returned and layer.returned[0] is keys), None)

    def mask(self, *, window: int, copies: int, dtype: torch.dtype) -> torch.Tensor:
        """``dtype[rows, 1, copies · tokens, kv_length]``: 0 where a query may attend, minus infinity elsewhere.

        A query attends to its own position and those before it, ``window`` in all; 0: to all of them. ``copies``: how
        many heads follow one another in the axis of queries. Made once for all layers of a kind.
        """
        key = (window, copies if self.positions.shape[1] > 1 else 1, dtype)  # one query: one row, whatever its head
        if key not in self._masks:
            own = self.positions[:, :, None]
            places = torch.arange(self.kv_length, device=own.device)
            allowed = places <= own
            if window:
                allowed = allowed & (places > own - window)
            mask = torch.full(allowed.shape, float("-inf"), dtype=dtype, device=own.device)
            mask = mask.masked_fill_(allowed, 0.0)[:, None]
            self._masks[key] = mask.repeat(1, 1, key[1], 1) if key[1] > 1 else mask
        return self._masks[key]

    def biased_mask(self, mask: torch.Tensor, bias: torch.Tensor, copies: int) -> torch.Tensor:
        """``dtype[rows, heads / copies, copies · tokens, kv_length]``: a mask and a bias of each head.

        ``bias``: ``dtype[rows, heads, tokens, kv_length]``. Added once for all layers that have both in common.
        """
        key = (id(mask), id(bias))
        if key not in self._biased:
            rows, heads, tokens, kv_length = bias.shape
            grouped = bias.reshape(rows, heads // copies, copies * tokens, kv_length)
            self._biased[key] = mask, bias, mask + grouped
        return self._biased[key][2]

    @property
    def kv_length(self) -> int:
        """Positions to which the step attends."""
        return next(iter(self.row_layers.values())).get_max_length()

    def _gather(self, name: str) -> torch.Tensor:
        if name not in self._gathered:
            rows = [state(name) for state in self._state]
            self._gathered[name] = rows[0][None] if len(rows) == 1 else torch.stack(rows)
        return self._gathered[name]


class ProbeCache(PositionlessCache):
    """The cache of a step of one token that is run to learn the geometry: it returns what it is given.

    ``direct``: layers whose attention took what came back as it was; ``attended``: those that attended at all.
    ``of_source``: of keys and values of the source.
    """

    def __init__(self, *, of_source: bool = False) -> None:
        super().__init__(layers=[])
        self.of_source = of_source
        self.direct: set[int] = set()
        self.attended: set[int] = set()
        self.keys: dict[int, torch.Tensor] = {}
        self._tensors: dict[str, StateTensor] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes down the form of ``dtype[1, heads, positions, size]``."""
        del args, kwargs
        kinds = (CROSS_KEY, CROSS_VALUE) if self.of_source else (KEY, VALUE)
        for kind, tensor in zip(kinds, (key_states, value_states), strict=True):
            self._note(state_name(layer_idx, kind), tensor.dtype, (tensor.shape[1], tensor.shape[3]), grows=True)
        self.keys[layer_idx] = key_states
        return key_states, value_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """No."""
        del layer_idx, state_idx
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """None yet."""
        del layer_idx, state_idx
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """None yet."""
        del layer_idx, state_idx
        return None

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Takes down the form of ``dtype[1, channels, tokens]`` that the kernel looks back at."""
        del kwargs
        shape = (*conv_states.shape[1:-1], conv_kernel_size or conv_states.shape[-1])
        self._note(state_name(layer_idx, CONVOLUTION, state_idx), conv_states.dtype, shape, grows=False)
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Takes down the form of ``dtype[1, ...]``."""
        del kwargs
        shape = tuple(recurrent_states.shape[1:])
        self._note(state_name(layer_idx, RECURRENT, state_idx), recurrent_states.dtype, shape, grows=False)
        return recurrent_states

    def note_attention(self, index: int, keys: torch.Tensor) -> None:
        """An attention over ``keys`` of the module whose layer index this is."""
        self.attended.add(index)
        if self.keys.get(index) is keys:
            self.direct.add(index)

    def tensors(self) -> tuple[StateTensor, ...]:
        """The state of a session, layer by layer."""
        return sort_tensors(*self._tensors.values())

    def _note(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], *, grows: bool) -> None:
        if name in self._tensors:
            raise UnsupportedOp("a layer writes its cache twice in a step", fix="run the model without an engine")
        self._tensors[name] = StateTensor(
            name=name, dtype=dtype, shape=shape, grows=grows, along="source" if self.of_source else "text"
        )


def sort_tensors(*tensors: StateTensor) -> tuple[StateTensor, ...]:
    """Layer by layer, and by name in each."""
    return tuple(sorted(tensors, key=lambda tensor: (layer_of(tensor.name), tensor.name)))


def state_name(layer: int, kind: str, number: int | None = None) -> str:
    """The name of a tensor of a session's state; ``number`` where a layer has several of a kind."""
    return f"layers.{layer}.{kind}" if number is None else f"layers.{layer}.{kind}.{number}"


def kind_of(name: str) -> str:
    """The kind of a tensor of a session's state."""
    return name.split(".")[2]


def layer_of(name: str) -> int:
    """The layer of a tensor of a session's state."""
    return int(name.split(".")[1])
