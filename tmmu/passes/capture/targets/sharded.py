"""A model of transformers as one rank has it, cut by the plans that its configuration brings."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.request import CaptureRequest
from tmmu.torch_private import current_dispatch_mode


def as_rank(model: torch.nn.Module, request: CaptureRequest) -> torch.nn.Module:
    """The model with its weights cut for the request's rank by transformers itself; as it is without a ``world``.

    ``INVALID_CONFIG`` for an architecture that has no plan for it, or whose sizes do not allow it.
    """
    if request.world is None:
        return model
    _require_whole_heads(model, request.tp)
    kind: Any = type(model)
    try:
        from transformers.distributed.configuration_utils import DistributedConfig  # noqa: PLC0415 - seconds to import

        distribute = kind.prepare_distribute_model, kind.maybe_distribute_model
    except (ImportError, AttributeError) as error:
        raise UnsupportedOp(
            "this transformers does not cut models over ranks by DistributedConfig", fix="install transformers 5.24"
        ) from error
    prepare, apply = distribute
    try:
        config, _, meshes = prepare(DistributedConfig(tp_size=request.tp, fsdp_size=request.fsdp, ep_size=request.ep))
        with _unrecorded():
            model = apply(model, config, meshes)
    except ValueError as error:
        experts = f" --ep {request.ep}" if request.ep > 1 else ""
        raise InvalidConfig(
            f"--tp {request.tp} --fsdp {request.fsdp}{experts}: {' '.join(str(error).split())[:200]}",
            fix="choose sizes that the architecture has a plan for",
        ) from error
    return model


def _unrecorded() -> AbstractContextManager[None]:
    """Block whose calls nothing is asked about later: a shard has no value that a trace may count on."""
    mode = current_dispatch_mode()
    return mode.pause() if isinstance(mode, Recorder) else nullcontext()


def _require_whole_heads(model: torch.nn.Module, tp: int) -> None:
    """``INVALID_CONFIG`` where a rank would have parts of heads."""
    config: Any = model.config
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(text, name, None)
        if isinstance(heads, int) and heads % tp:
            raise InvalidConfig(f"--tp {tp}: the model has {heads} heads ({name})", fix=f"choose a divisor of {heads}")
