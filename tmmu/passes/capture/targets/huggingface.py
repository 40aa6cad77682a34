"""A Hugging Face configuration, offline: the architecture it names, at its own sizes, with inputs that it takes."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tmmu.codec.files import read_file
from tmmu.codec.json_text import decode_json
from tmmu.errors import CaptureFailed, InvalidConfig, PlanCorrupt, UnsupportedOp
from tmmu.passes.capture.activities import Activity, in_activity
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.dtypes import parse_dtype
from tmmu.passes.capture.targets.sharded import as_rank
from tmmu.passes.capture.targets.staged import staged_workload
from tmmu.passes.capture.workload import OwnedTensor, Workload

_CACHE_NAMES: Final = ("cache", "past_key_values")
_DEFAULT_SEQUENCE: Final = 512


def load_huggingface(request: CaptureRequest, path: Path) -> Workload:
    """The model of a ``config.json`` or of the folder that holds one."""
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").is_file() or (path.is_file() and path.name != "config.json"):
        raise InvalidConfig(
            f"no config.json at {str(path)!r}", fix="give the folder that holds config.json, or the file"
        )
    with in_activity(Activity.CONFIGURATION):
        return workload_of(read_config(folder), request, name=_name(folder))


def workload_of(config: Any, request: CaptureRequest, *, name: str) -> Workload:
    """The workload of a configuration object."""
    if request.settings or request.inputs:
        raise InvalidConfig("--set and --input are for Python files", fix="use --batch, --seq and --dtype")
    refuse_quantized(config)
    dtype = _dtype(request, config)
    if request.decode:
        return _decode(config, request, dtype, name)
    if request.pp > 1:
        return staged_workload(
            lambda: _built(config, request, dtype), request, length=_sequence(request, config), dtype=dtype, name=name
        )
    training = request.mode != "inference"
    model = as_rank(_built(config, request, dtype), request)
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    kwargs = example_inputs(model, config, request, dtype, supervised=training and request.loss is None)
    if "use_cache" in inspect.signature(model.forward).parameters:
        kwargs["use_cache"] = False
    return Workload(name=name, folder="", run=model, module=model, kwargs=kwargs)


def _built(config: Any, request: CaptureRequest, dtype: torch.dtype) -> torch.nn.Module:
    """The whole architecture, with layers that run again where that is asked for."""
    whole = build(config, dtype)
    if request.checkpoint:
        _checkpoint_layers(whole)
    return whole


def _checkpoint_layers(model: Any) -> None:
    """Have the layers computed again for the gradient; ``INVALID_CONFIG`` for an architecture that has no such way."""
    try:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    except ValueError as error:
        raise InvalidConfig(
            f"--checkpoint: {' '.join(str(error).split())[:200]}", fix="leave it out: the architecture has no such way"
        ) from error


def read_config(folder: Path) -> Any:
    """The configuration of a folder, without a network and without code from it."""
    from transformers import AutoConfig  # noqa: PLC0415 - seconds to import, and only this target needs it

    try:
        decode_json(read_file(folder / "config.json"))
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError, PlanCorrupt) as error:
        message = " ".join(str(error).split())[:200]
        raise InvalidConfig(
            f"{folder / 'config.json'}: {message}", fix="give a configuration that transformers knows"
        ) from error


def refuse_quantized(config: Any) -> None:
    """``UNSUPPORTED_OP`` for weights that are stored otherwise than the architecture computes with them."""
    quantization = getattr(config, "quantization_config", None)
    if not quantization:
        return
    fields = quantization if isinstance(quantization, dict) else vars(quantization)
    method = fields.get("quant_method", "an unnamed method")
    raise UnsupportedOp(
        f"weights quantized by {getattr(method, 'value', method)} (quantization_config) are not modelled",
        fix="take quantization_config out of config.json to plan the model unquantized",
    )


def build(config: Any, dtype: torch.dtype, **options: Any) -> torch.nn.Module:
    """The architecture that the configuration names, without weights; ``options`` as ``from_config`` takes them."""
    import transformers  # noqa: PLC0415

    for name in config.architectures or ():
        architecture = getattr(transformers, name, None)
        if architecture is not None:
            return _instantiate(architecture, config, dtype, options)
    for auto in _auto_classes(config):
        if type(config) in auto._model_mapping:
            return _instantiate(auto._model_mapping[type(config)], config, dtype, options)
    raise CaptureFailed(f"transformers has no model for {type(config).__name__}", fix="name one in `architectures`")


def language_auto_class(config: Any) -> Any:
    """The auto class of transformers that makes the language model of a configuration."""
    import transformers  # noqa: PLC0415

    if not getattr(config, "is_encoder_decoder", False):
        return transformers.AutoModelForCausalLM
    speech: Any = transformers.AutoModelForSpeechSeq2Seq
    return speech if type(config) in speech._model_mapping else transformers.AutoModelForSeq2SeqLM


def _auto_classes(config: Any) -> tuple[Any, ...]:
    """Those that may know a configuration; a decoder alone is not what an encoder-decoder's means."""
    import transformers  # noqa: PLC0415

    others = (transformers.AutoModelForCausalLM, transformers.AutoModelForSeq2SeqLM, transformers.AutoModel)
    return language_auto_class(config), *others


def _instantiate(model_class: Any, config: Any, dtype: torch.dtype, options: Mapping[str, Any]) -> torch.nn.Module:
    from transformers.initialization import no_init_weights  # noqa: PLC0415

    architecture = model_class[0] if isinstance(model_class, (tuple, list)) else model_class
    with no_init_weights():
        model: torch.nn.Module = architecture._from_config(config, dtype=dtype, **options)
    tie: Any = model.tie_weights
    tie()  # initialization would have done it
    return model


def _name(folder: Path) -> str:
    return folder.resolve().name or "model"


def _dtype(request: CaptureRequest, config: Any) -> torch.dtype:
    if request.dtype is not None:
        return parse_dtype(request.dtype)
    own = getattr(config, "dtype", None)
    return own if isinstance(own, torch.dtype) else torch.float32


# -- inputs


@dataclass(frozen=True, slots=True)
class _InputSizes:
    """What decides the shape of an input."""

    config: Any
    batch: int
    sequence: int
    dtype: torch.dtype


def example_inputs(
    model: torch.nn.Module, config: Any, request: CaptureRequest, dtype: torch.dtype, *, supervised: bool
) -> dict[str, Any]:
    """One tensor for each input that the architecture's ``forward`` requires, by the table below.

    ``supervised``: with what makes it return its own loss.
    """
    names = inspect.signature(model.forward).parameters
    sizes = _InputSizes(config, request.batch, _sequence(request, config), dtype)
    main = getattr(model, "main_input_name", "input_ids")
    required = [name for name in names if name == main or name in _required_inputs(config, names)]
    inputs: dict[str, Any] = {name: _INPUTS[name](sizes) for name in required if name in _INPUTS}
    if request.seq is not None and not any(name.endswith("input_ids") for name in inputs):
        raise InvalidConfig(f"{type(model).__name__} takes no tokens", fix="drop --seq")
    if not inputs:
        raise CaptureFailed(f"no inputs are known for {type(model).__name__}", fix="plan it from a file: FILE.py:NAME")
    if supervised:
        inputs |= _supervision(names, sizes, inputs)
    return inputs


def _supervision(names: Mapping[str, Any], sizes: _InputSizes, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What makes the architecture return its own loss: labels, or the flag of contrastive models."""
    if "labels" in names:
        return {"labels": _labels(sizes, inputs)}
    return {"return_loss": True} if "return_loss" in names else {}


def _required_inputs(config: Any, names: Mapping[str, Any]) -> set[str]:
    """Inputs beside the main one that the architecture cannot do without."""
    required = set()
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        required.add("decoder_input_ids")
    if hasattr(config, "vision_config") and "pixel_values" in names:
        required |= {"pixel_values", "input_ids"} & set(names)
    return required


def _sequence(request: CaptureRequest, config: Any) -> int:
    longest = longest_sequence(config)
    if request.seq is not None and longest and request.seq > longest:
        raise InvalidConfig(f"the model has positions for {longest} tokens, not {request.seq}", fix="lower --seq")
    return request.seq or min(_DEFAULT_SEQUENCE, longest or _DEFAULT_SEQUENCE)


def longest_sequence(config: Any) -> int:
    """How many tokens the configuration has positions for; 0 where it does not say."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    limits = [getattr(text, name, None) for name in ("max_target_positions", "max_position_embeddings", "n_positions")]
    return next((size for size in limits if isinstance(size, int) and size > 0), 0)


def _ids(sizes: _InputSizes) -> torch.Tensor:
    return torch.empty((sizes.batch, sizes.sequence), dtype=torch.int64)


def _pixels(sizes: _InputSizes) -> torch.Tensor:
    vision = getattr(sizes.config, "vision_config", None) or sizes.config
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    channels = getattr(vision, "num_channels", None) or 3
    return torch.empty((sizes.batch, channels, height, width), dtype=sizes.dtype)


def feature_shape(config: Any) -> tuple[int, int]:
    """(bins, frames) of the features of speech that a model takes."""
    return getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500)


def _features(sizes: _InputSizes) -> torch.Tensor:
    return torch.empty((sizes.batch, *feature_shape(sizes.config)), dtype=sizes.dtype)


def _waveform(sizes: _InputSizes) -> torch.Tensor:
    return torch.empty((sizes.batch, 16000), dtype=sizes.dtype)


_INPUTS: Final[Mapping[str, Callable[[_InputSizes], torch.Tensor]]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "pixel_values": _pixels,
    "input_features": _features,
    "input_values": _waveform,
}


def _labels(sizes: _InputSizes, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if any("Segmentation" in name for name in sizes.config.architectures or ()) and "pixel_values" in inputs:
        batch, _, height, width = inputs["pixel_values"].shape
        return torch.empty((batch, height, width), dtype=torch.int64)
    tokens = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    shape = tokens.shape if tokens is not None else (sizes.batch,)
    return torch.empty(tuple(shape), dtype=torch.int64)


# -- one decode step


def _decode(config: Any, request: CaptureRequest, dtype: torch.dtype, name: str) -> Workload:
    """One token per sequence against a static cache of ``cache_len`` positions, updated where it lies."""
    from transformers import StaticCache  # noqa: PLC0415

    if request.mode != "inference":
        raise InvalidConfig("a decode step is inference", fix="drop --mode, or drop --decode")
    if getattr(config, "is_encoder_decoder", False):
        raise CaptureFailed("a decode step of an encoder-decoder is not modelled", fix="plan it without --decode")
    if request.seq is not None:
        raise InvalidConfig("a decode step is one token", fix="drop --seq; --cache-len says how many came before")
    length = request.cache_len or _sequence(request, config)
    model = as_rank(build(config, dtype), request)
    slot = cache_argument(model)
    cache = StaticCache(config=config, max_cache_len=length)
    _fill(cache, config, request, dtype)
    kwargs = {
        "input_ids": torch.empty((request.batch, 1), dtype=torch.int64),
        "attention_mask": torch.empty((request.batch, length), dtype=torch.int64),
        slot: cache,
        "use_cache": True,
    }

    def logits(**inputs: Any) -> Any:
        """The cache is state, not output."""
        return model(**inputs).logits

    return Workload(name=f"{name}-decode", folder="", run=logits, module=model, kwargs=kwargs, owned=_states(cache))


def cache_argument(model: torch.nn.Module) -> str:
    """The name under which ``forward`` takes a cache; ``CAPTURE_FAILED`` for a model that takes none."""
    names = inspect.signature(model.forward).parameters
    slot = next((cache for cache in _CACHE_NAMES if cache in names), None)
    if slot is None:
        raise CaptureFailed(f"{type(model).__name__} takes no cache", fix="plan it without --decode")
    return slot


def _fill(cache: Any, config: Any, request: CaptureRequest, dtype: torch.dtype) -> None:
    """Allocate every layer of the cache as its own attention module will fill it: a rank has its own heads alone."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache.early_initialization(request.batch, heads // request.tp, size, dtype, torch.device("cpu"))


def _states(cache: Any) -> tuple[OwnedTensor, ...]:
    return tuple(
        OwnedTensor(role="state", name=f"cache.{index}.{key}", tensor=value)
        for index, layer in enumerate(cache.layers)
        for key, value in vars(layer).items()
        if isinstance(value, torch.Tensor)
    )
