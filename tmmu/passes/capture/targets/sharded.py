"""A model of transformers as one rank has it, cut by the plans that its configuration brings."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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
    return model if request.world is None else distribution_of(model, request).apply(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How transformers cuts a model over ranks: its configuration, and the meshes of ``pp``, ``fsdp``, ``tp``, ``ep``.

    ``text`` says the sizes as options.
    """

    config: Any
    meshes: Any
    text: str

    def stage_group(self) -> Any:
        """The process group of the ranks that have the stages of one pipeline, in their order."""
        return self.meshes.get_mesh("pp").get_group()

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model, or a stage of it, cut for this rank; errors as of ``as_rank``."""
        kind: Any = type(model)
        try:
            with _unrecorded():
                cut: torch.nn.Module = kind.maybe_distribute_model(model, self.config, self.meshes)
        except ValueError as error:
            raise _refusal(self.text, error) from error
        return cut


def distribution_of(model: torch.nn.Module, request: CaptureRequest) -> Distribution:
    """How this model is cut over the request's ranks, in the process group of all of them."""
    _require_whole_heads(model, request.tp)
    kind: Any = type(model)
    try:
        from transformers.distributed.configuration_utils import DistributedConfig  # noqa: PLC0415 - seconds to import

        prepare = kind.prepare_distribute_model
    except (ImportError, AttributeError) as error:
        raise UnsupportedOp(
            "this transformers does not cut models over ranks by DistributedConfig", fix="install transformers 5.24"
        ) from error
    text = f"--tp {request.tp} --fsdp {request.fsdp}" + (f" --ep {request.ep}" if request.ep > 1 else "")
    try:
        config = DistributedConfig(tp_size=request.tp, fsdp_size=request.fsdp, ep_size=request.ep)
        config.pp_size = request.pp  # for the meshes: it refuses fsdp beside its own stages, which are not used
        _, _, meshes = prepare(config)
        config.pp_size = 1
    except ValueError as error:
        raise _refusal(text, error) from error
    return Distribution(config=config, meshes=meshes, text=text)


def _refusal(text: str, error: ValueError) -> InvalidConfig:
    return InvalidConfig(
        f"{text}: {' '.join(str(error).split())[:200]}", fix="choose sizes that the architecture has a plan for"
    )


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
