"""Where an engine has its model from: a module of transformers, a configuration, or a folder with both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tmmu.engine.arguments import require_values
from tmmu.engine.capture.model_call import build_model
from tmmu.engine.sampling import Suppression
from tmmu.errors import InvalidConfig
from tmmu.passes.capture.targets.huggingface import language_auto_class, read_config
from tmmu.runtime.weights.load import content_key
from tmmu.runtime.weights.sources import tensor_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A configuration, the dtype of the weights, and the weights by name, row by row in memory.

    ``stop``: tokens that end a text. ``start``: those with which the decoder of an encoder-decoder begins.
    ``suppression``: those that are never chosen. ``architecture``: the class of the model, where there is one.
    """

    config: Any
    dtype: torch.dtype
    weights: Mapping[str, torch.Tensor]
    stop: tuple[int, ...]
    start: tuple[int, ...] = ()
    suppression: Suppression = field(default_factory=Suppression)
    architecture: type | None = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Of the weights and buffers of a model, which may have been converted as a whole; empty without one."""


def load_checkpoint(model: Any, weights: Mapping[str, torch.Tensor] | None) -> Checkpoint:
    """The checkpoint of what an engine is made of.

    ``model``: a ``PreTrainedModel``, whose weights stay its own; a ``PreTrainedConfig`` with ``weights`` by name; or a
    folder with ``config.json`` and safetensors. ``INVALID_CONFIG`` for anything else.
    """
    from transformers import PreTrainedConfig, PreTrainedModel  # noqa: PLC0415 - seconds to import

    if isinstance(model, (str, Path)):
        return _of_folder(Path(model), weights)
    if isinstance(model, PreTrainedConfig):
        if weights is None:
            raise InvalidConfig("a configuration has no weights", fix="give weights= by name, or a model")
        with torch.device("meta"):
            tensors = _by_first_name(build_model(model, torch.float32), _in_rows(weights))
        dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), torch.float32)
        return Checkpoint(
            config=model, dtype=dtype, weights=tensors, stop=_stop_of(None, model), start=_start_of(None, model)
        )
    if isinstance(model, PreTrainedModel):
        return _of_module(model, weights)
    raise InvalidConfig(
        f"an engine is not made of a {type(model).__name__}",
        fix="give a model or a configuration of transformers, or a folder with config.json and safetensors",
    )


def weight_keys(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The content key of each weight by name: computed once, for all steps that hold it."""
    keys = {}
    for name, tensor in checkpoint.weights.items():
        size = tensor.untyped_storage().nbytes()
        if size == tensor.numel() * tensor.element_size():
            keys[name] = content_key(tensor_source(name, tensor, size), size)
    return keys


def has_encoder(folder: Path) -> bool:
    """Whether the model of a folder encodes a prompt, to decode of that. ``INVALID_CONFIG`` where it encodes speech."""
    from transformers import AutoModelForSpeechSeq2Seq  # noqa: PLC0415

    config = read_config(_folder_of(folder))
    if language_auto_class(config) is AutoModelForSpeechSeq2Seq:
        raise InvalidConfig(
            f"{folder}: the model reads speech, not a prompt", fix="encode its features in a session of tmmu.Engine"
        )
    return bool(getattr(config, "is_encoder_decoder", False))


def random_model(folder: Path, seed: int) -> Any:
    """The model of a folder's ``config.json`` with the random weights that ``seed`` gives, whatever files it has."""
    config = read_config(_folder_of(folder))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        try:
            return language_auto_class(config).from_config(config).eval()
        except Exception as error:  # the same at a configuration of no language model
            message = " ".join(str(error).split())[:200]
            raise InvalidConfig(f"{folder}: {message}", fix="give the configuration of a language model") from error


def _folder_of(path: Path) -> Path:
    """The folder that has ``config.json``, of that file or of itself."""
    folder = path.parent if path.name == "config.json" else path
    if not (folder / "config.json").is_file():
        raise InvalidConfig(f"no config.json at {str(folder)!r}", fix="give the folder that holds it")
    return folder


def _of_module(model: Any, weights: Mapping[str, torch.Tensor] | None) -> Checkpoint:
    named = _in_rows(dict([*model.named_parameters(), *model.named_buffers()]))
    replaced = _by_first_name(model, _in_rows({} if weights is None else weights))
    unknown = sorted(map(str, replaced.keys() - named.keys() - model.state_dict().keys()))
    if unknown:
        raise InvalidConfig(f"the model has no weight {unknown[0]!r:.80}", fix="name weights as its state_dict does")
    dtypes = {name: tensor.dtype for name, tensor in named.items()}
    named |= replaced
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    generation, config = getattr(model, "generation_config", None), model.config
    return Checkpoint(
        config=config,
        dtype=dtype,
        weights=named,
        stop=_stop_of(generation, config),
        start=_start_of(generation, config),
        suppression=_suppression_of(generation),
        architecture=type(model),
        dtypes=dtypes,
    )


def _in_rows(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights row by row, whatever order theirs is in memory; ``INVALID_CONFIG`` for one without bytes."""
    if not isinstance(weights, Mapping):
        raise InvalidConfig(f"weights are a {type(weights).__name__}", fix="give tensors by name, as state_dict does")
    for name, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidConfig(f"{name} is no tensor", fix="give the model its weights")
        require_values(str(name), tensor)
    return {name: tensor.detach().contiguous() for name, tensor in weights.items()}


def _by_first_name(model: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights by the names that steps know: of a tied weight, the first. Names that the model has not stay.

    ``INVALID_CONFIG`` for a weight of another shape than the model's, and for two values of a tied one.
    """
    own = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(tensor), name) for name, tensor in own.items()}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if name in own and tensor.shape != own[name].shape:
            forms = [f"[{', '.join(map(str, each.shape))}]" for each in (tensor, own[name])]
            raise InvalidConfig(f"{name} is {forms[0]}, and {forms[1]} in the model", fix="give weights of this model")
        known = names.get(name, name)
        if not _is_same(tensors.setdefault(known, tensor), tensor):
            raise InvalidConfig(f"{name} is tied to {known}, and their values differ", fix="give a tied weight once")
    return tensors


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (one.dtype == other.dtype and one.device == other.device and one.equal(other))


def _of_folder(path: Path, weights: Mapping[str, torch.Tensor] | None) -> Checkpoint:
    folder = _folder_of(path)
    config = read_config(folder)  # refuses what is hostile, with a line
    try:
        model = language_auto_class(config).from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype="auto"
        )
    except Exception as error:  # what libraries raise at files that are no weights of it
        message = " ".join(str(error).split())[:200]
        raise InvalidConfig(
            f"{folder}: {message}", fix="give a folder with config.json and safetensors", missing="weights"
        ) from error
    return _of_module(model, weights)


def _stop_of(generation: Any, config: Any) -> tuple[int, ...]:
    """Tokens that end a text: those of the generation settings, else of the configuration."""
    found = getattr(generation, "eos_token_id", None)
    found = getattr(config, "eos_token_id", None) if found is None else found
    return () if found is None else tuple(found) if isinstance(found, (list, tuple)) else (int(found),)


def _start_of(generation: Any, config: Any) -> tuple[int, ...]:
    """The token with which a decoder begins, as ``generate`` of transformers takes it; none without an encoder."""
    if not getattr(config, "is_encoder_decoder", False):
        return ()
    named = [getattr(owner, name, None) for name in ("decoder_start_token_id", "bos_token_id")
             for owner in (generation, config)]  # fmt: skip
    return next(((token,) for token in named if isinstance(token, int)), ())


def _suppression_of(generation: Any) -> Suppression:
    """What the generation settings suppress."""
    always, first = (getattr(generation, name, None) or () for name in ("suppress_tokens", "begin_suppress_tokens"))
    return Suppression(always=tuple(always), first=tuple(first))
