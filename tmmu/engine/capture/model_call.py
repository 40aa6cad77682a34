"""How a model of transformers is made and called for a step: by the names of what its ``forward`` takes."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

import torch

from tmmu.engine.capture.relative_bias import biased_modules
from tmmu.engine.capture.row_attention import IMPLEMENTATION
from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.targets.huggingface import build, cache_argument, feature_shape

IDS, POSITIONS, LAST = "input_ids", "position_ids", "last"
SOURCE, SOURCE_LENGTHS = "source", "source_lengths"
_DECODER: Final = "decoder_"
"""What stands before the names of a decoder's inputs where there is an encoder, too."""
_KEPT: Final = "logits_to_keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceForm:
    """What an encoder reads: ``int64[1, n]`` tokens, or ``dtype[1, *shape]`` features, under the name ``input``."""

    input: str
    dtype: torch.dtype = torch.int64
    shape: tuple[int, ...] = ()

    @property
    def is_features(self) -> bool:
        """Whether it reads features, which are all of one shape."""
        return self.dtype.is_floating_point

    def empty(self, tokens: int) -> torch.Tensor:
        """A source of so many tokens, without values; of features, one."""
        return torch.empty((1, *(self.shape if self.is_features else (tokens,))), dtype=self.dtype)


OWN_DTYPES: Final[Mapping[str, torch.dtype]] = {}


def build_model(config: Any, dtype: torch.dtype, dtypes: Mapping[str, torch.dtype] = OWN_DTYPES) -> torch.nn.Module:
    """The model of a configuration, without weights, whose attentions are those of rows.

    ``dtypes``: of weights and buffers by name, where they are others than ``dtype`` and the model's own choice give:
    those of a model that was converted as a whole.
    """
    # A model writes its choice of attention into the configuration that it is made of.
    model: torch.nn.Module = build(deepcopy(config), dtype, attn_implementation=IMPLEMENTATION)
    converted: dict[torch.Tensor, torch.Tensor] = {}  # a tied weight stays one
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        if dtypes.get(name, tensor.dtype) != tensor.dtype:
            if tensor not in converted:
                other = tensor.detach().to(dtypes[name])
                is_weight = isinstance(tensor, torch.nn.Parameter)
                converted[tensor] = torch.nn.Parameter(other, tensor.requires_grad) if is_weight else other
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, converted[tensor])
    return model


def source_form(model: Any, dtype: torch.dtype) -> SourceForm | None:
    """What the encoder of a model reads; ``None`` where it has none. ``UNSUPPORTED_OP`` for what no session keeps."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return None
    name = model.main_input_name
    names = signature(model.forward).parameters
    if _DECODER + POSITIONS not in names and not biased_modules(model.get_decoder()):
        raise UnsupportedOp(
            f"the decoder of {type(model).__name__} counts its own positions", fix="run the model without an engine"
        )
    if name == IDS:
        return SourceForm(input=name)
    if name == "input_features":
        return SourceForm(input=name, dtype=dtype, shape=feature_shape(model.config))
    raise UnsupportedOp(
        f"the encoder of {type(model).__name__} reads {name}, no tokens or features",
        fix="run the model without an engine",
    )


def call_model(  # noqa: PLR0913, PLR0917 - what a step is
    model: torch.nn.Module,
    cache: Any,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    last: torch.Tensor | None = None,
    source: dict[str, Any] | None = None,
) -> torch.Tensor:
    """``dtype[rows, vocabulary]``: of the only token, or of token ``last``, of each row.

    ``source``: what an encoder-decoder takes beside, by name.
    """
    prefix = "" if source is None else _DECODER
    arguments: dict[str, Any] = {prefix + IDS: input_ids, cache_argument(model): cache, "use_cache": True}
    arguments |= source or {}
    names = signature(model.forward).parameters
    if prefix + POSITIONS in names:
        arguments[prefix + POSITIONS] = position_ids
    if last is not None and _KEPT in names:
        arguments[_KEPT] = last
    logits: torch.Tensor = model(**arguments).logits
    if last is not None and _KEPT not in names:
        logits = logits.index_select(1, last)
    return logits[:, 0]
