"""Attention over the rows of a ``RowCache``, in the place where transformers looks up its attention functions.

A row attends to its own session's state where that lies. Query heads that share a key head follow one another in the
axis of queries, so that keys and values are not repeated.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tmmu.engine.capture.row_cache import ProbeCache, RowCache
from tmmu.errors import UnsupportedOp

IMPLEMENTATION: Final = "tmmu_rows"
"""The name under which transformers knows it; no mask function has that name, so that no masks are made."""
_WHOLE: Final = ("full_attention", "attention", "hybrid")
"""Kinds of layers that attend to all positions."""
_EXACT: Final = (torch.float32, torch.float64)
"""Dtypes whose scores need no wider one."""
_ACTIVE: Final[ContextVar["RowCache | ProbeCache | None"]] = ContextVar("active_cache", default=None)
_SOURCE: Final[ContextVar["SourceAttention | None"]] = ContextVar("active_source", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionForm:
    """What a model passes to its attention beside tensors; ``None``: the usual scale, no cap."""

    scaling: float | None
    softcap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """One call of an attention: ``dtype[batch, heads, positions, size]`` each, and what the model says beside.

    ``window``: positions to which it attends at most; 0: all of them.
    """

    module: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    form: AttentionForm
    bias: torch.Tensor | None
    window: int


class SourceAttention(Protocol):
    """The attentions of an encoder-decoder that are not the decoder's to its own text."""

    def attend(self, call: AttentionInputs) -> torch.Tensor | None:
        """``dtype[batch, positions, heads, size]``; ``None`` where it is the decoder's own."""


@contextmanager
def attend_through(cache: "RowCache | ProbeCache", source: SourceAttention | None = None) -> Iterator[None]:
    """Block in which attentions are those of this cache and, of an encoder-decoder, of a source."""
    tokens = _ACTIVE.set(cache), _SOURCE.set(source)
    try:
        yield
    finally:
        _ACTIVE.reset(tokens[0])
        _SOURCE.reset(tokens[1])


def row_attention(  # noqa: PLR0913, PLR0917 - the signature that transformers calls
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """``dtype[batch, tokens, heads, size]`` of queries ``dtype[batch, heads, tokens, size]``."""
    cache, source = _ACTIVE.get(), _SOURCE.get()
    index: Any = getattr(module, "layer_idx", None)
    if cache is None or attention_mask is not None or dropout or kwargs.get("s_aux") is not None:
        raise _own_attention(module)
    form = AttentionForm(scaling=scaling, softcap=softcap)
    if source is not None:
        attended = source.attend(
            AttentionInputs(
                module=module, query=query, key=key, value=value,
                form=form, bias=position_bias, window=sliding_window or 0,
            )
        )  # fmt: skip
        if attended is not None:
            return attended, None
    if index is None:
        raise _own_attention(module)
    window = _window_of(module, index, sliding_window)
    if isinstance(cache, ProbeCache):
        cache.note_attention(index, key)
        return _scores_of_probe(query, value), None
    layer = cache.layer_of_keys(key)
    if layer is not None and layer.is_direct:
        states = [state.heads_first() for state in layer.rows]
    else:
        states = [(key[row : row + 1], value[row : row + 1]) for row in range(query.shape[0])]
    shared = query.shape[1] // states[0][0].shape[1]
    mask = cache.mask(window=window, copies=shared, dtype=query.dtype)
    if position_bias is not None:
        mask = cache.biased_mask(mask, position_bias, shared)
    return attend_rows(query, states, mask, form), None


def attend_rows(
    query: torch.Tensor,
    states: Sequence[tuple[torch.Tensor, torch.Tensor]],
    mask: torch.Tensor | None,
    form: AttentionForm,
) -> torch.Tensor:
    """``dtype[rows, tokens, heads, size]``: each row of queries to keys and values of its own.

    ``states``: ``dtype[1, heads, positions, size]`` of keys and values; ``mask``: added to the scores, or ``None``.
    """
    if query.shape[2] == 1 and query.device.type == "cpu" and query.dtype in _EXACT:
        return _attend_one_token(query, states, mask, form).transpose(1, 2)
    rows = [
        _attend(query[row : row + 1], keys, values, None if mask is None else mask[row : row + 1], form)
        for row, (keys, values) in enumerate(states)
    ]
    return (rows[0] if len(rows) == 1 else torch.cat(rows)).transpose(1, 2)


def _own_attention(module: torch.nn.Module) -> UnsupportedOp:
    return UnsupportedOp(
        f"{type(module).__name__} attends with a mask, dropout or sinks of its own",
        fix="run the model without an engine",
    )


def _window_of(module: torch.nn.Module, index: int, named: int | None) -> int:
    """Positions to which a layer attends at most, 0 for all; by what it passes and by what its configuration says."""
    config: Any = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None) or ()
    kind = kinds[index] if index < len(kinds) else _WHOLE[0]
    if kind == "sliding_attention":
        return int(named or getattr(config, "sliding_window", 0) or 0)
    if kind not in _WHOLE:
        raise UnsupportedOp(
            f"layer {index} is of kind {kind}, which sessions do not keep", fix="run it without an engine"
        )
    return int(named or 0)


def _scores_of_probe(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    batch, heads, tokens, _ = query.shape
    return query.new_zeros(batch, tokens, heads, value.shape[3])


def _attend_one_token(
    query: torch.Tensor,
    states: Sequence[tuple[torch.Tensor, torch.Tensor]],
    mask: torch.Tensor | None,
    form: AttentionForm,
) -> torch.Tensor:
    """``dtype[rows, heads, 1, size]``: products a row, and all between them for all rows at once.

    On a CPU the calls of short attentions cost more than their numbers: a fused attention is a call a row that
    makes temporaries of its own, two products are two calls into memory of the step.
    """
    rows, heads, _, size = query.shape
    keys, values = states[0]
    kv_heads, kv_length = keys.shape[1], keys.shape[2]
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, size)
    grouped = grouped * (form.scaling if form.scaling is not None else size**-0.5)
    scores = query.new_empty(rows, kv_heads, heads // kv_heads, kv_length)
    for row, (keys, _) in enumerate(states):
        torch.bmm(grouped[row], keys[0].transpose(1, 2), out=scores[row])
    if form.softcap is not None:
        scores = torch.tanh(scores / form.softcap) * form.softcap
    weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    out = query.new_empty(rows, kv_heads, heads // kv_heads, values.shape[3])
    for row, (_, values) in enumerate(states):
        torch.bmm(weights[row], values[0], out=out[row])
    return out.reshape(rows, heads, 1, values.shape[3])


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, form: AttentionForm
) -> torch.Tensor:
    """``dtype[1, heads, tokens, size]`` of one row."""
    scaling, softcap = form.scaling, form.softcap
    _, heads, tokens, size = query.shape
    shared = heads // keys.shape[1]
    grouped = query.reshape(1, keys.shape[1], shared * tokens, size) if shared > 1 else query
    if softcap is None:
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
    else:
        scores = torch.matmul(grouped, keys.transpose(2, 3)) * (scaling if scaling is not None else size**-0.5)
        scores = torch.tanh(scores / softcap) * softcap
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1, dtype=torch.float32).to(query.dtype)
        out = torch.matmul(weights, values)
    return out.reshape(1, heads, tokens, values.shape[3])


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, row_attention)
