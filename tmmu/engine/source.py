"""What an encoder reads, as it is given to a session: checked, and a copy of the engine's own."""

from collections.abc import Sequence

import torch

from tmmu.engine.arguments import require_tokens, require_values, tokens_of, whole_of
from tmmu.engine.capture.model_call import SourceForm
from tmmu.engine.geometry import Geometry
from tmmu.engine.session import Session
from tmmu.errors import InvalidConfig


def source_tensor(
    form: SourceForm | None, source: Sequence[int] | torch.Tensor, session: Session, vocabulary: int
) -> torch.Tensor:
    """``int64[n]`` tokens, or ``dtype[bins, frames]`` features; ``INVALID_CONFIG`` for what a session has no room for.

    Features may have a batch of one.
    """
    if form is None:
        raise InvalidConfig("the model has no encoder", fix="have the session prefill its prompt")
    if form.is_features:
        return _features(form, source)
    tokens = tokens_of(source)
    require_tokens(tokens, vocabulary)
    room = session.capacities.source
    if len(tokens) > room:
        raise InvalidConfig(
            f"a source of {len(tokens)} tokens does not fit in a session for {room}",
            fix=f"open it with source={len(tokens)}",
            tokens=len(tokens),
            capacity=room,
        )
    return torch.tensor(tokens)


def room_for_source(geometry: Geometry, source: int | None, limit: int) -> int:
    """Positions of the longest source of a session; ``INVALID_CONFIG`` for more than ``limit``, the engine's."""
    length = longest_source(geometry, None if source is None else whole_of("source", source), limit)
    if length > limit:
        raise InvalidConfig(
            f"a session for a source of {length}, in an engine for {limit} at most",
            fix="make the engine with a larger max_source=",
            source=length,
        )
    return length


def longest_source(geometry: Geometry, limit: int | None, default: int) -> int:
    """Positions of the longest source for which there is room; ``INVALID_CONFIG`` where the model says it otherwise."""
    if limit is None:
        return geometry.source_positions or (default if geometry.has_source else 0)
    if not geometry.has_source:
        raise InvalidConfig("the model has no encoder", fix="give no length of a source")
    if geometry.source_positions not in {0, limit}:
        raise InvalidConfig(
            f"a source of {limit} positions, where all of the model's have {geometry.source_positions}",
            fix="give no length of a source",
        )
    return limit


def _features(form: SourceForm, source: Sequence[int] | torch.Tensor) -> torch.Tensor:
    expected = _described(form.dtype, form.shape)
    if not isinstance(source, torch.Tensor):
        raise InvalidConfig(f"features are {type(source).__name__}", fix=f"give a tensor {expected}")
    require_values("features", source)
    shape = tuple(source.shape[1:] if source.dim() == len(form.shape) + 1 and len(source) == 1 else source.shape)
    if shape != form.shape or source.dtype != form.dtype:
        raise InvalidConfig(
            f"features are {_described(source.dtype, tuple(source.shape))}, where the encoder reads {expected}",
            fix="give the features of one window, in the dtype of the weights",
        )
    return source.detach().reshape(form.shape).clone()


def _described(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype)[6:]}{list(shape)}"
