"""One step of a language model over rows of sessions: tokens in, logits out, the cache of each row as state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from transformers.modeling_outputs import BaseModelOutput

from tmmu.engine.capture.cross_attention import CrossCache, ProbedSource, both_caches
from tmmu.engine.capture.model_call import (
    IDS,
    LAST,
    OWN_DTYPES,
    POSITIONS,
    SOURCE,
    SOURCE_LENGTHS,
    SourceForm,
    build_model,
    call_model,
    source_form,
)
from tmmu.engine.capture.module_results import ModuleResults
from tmmu.engine.capture.relative_bias import bias_by_positions
from tmmu.engine.capture.row_attention import attend_through
from tmmu.engine.capture.row_cache import ProbeCache, RowCache, sort_tensors
from tmmu.engine.geometry import LOGITS, MIN_KV_LENGTH, Geometry, StateLengths, StateTensor
from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.modules import ModuleStack
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.huggingface import longest_sequence, refuse_quantized
from tmmu.passes.capture.trace import capture_workload
from tmmu.passes.capture.workload import OwnedTensor, Workload

ROW_SEPARATOR: Final = ":"
StateRow = Callable[[str], torch.Tensor]
"""The state of a session by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """``rows`` sessions, ``tokens`` of each, attending to the first ``kv_length`` positions of their state.

    ``source_length``: the positions of their sources, of which some may be padding; 0 of a model without an encoder.
    """

    rows: int
    tokens: int
    kv_length: int
    source_length: int = 0
    is_fresh: bool = False
    """Whether no row has read a token, where it matters: for state that recurs."""

    @property
    def name(self) -> str:
        """What its program is called."""
        source = f"-of-{self.source_length}" if self.source_length else ""
        return f"step-{self.rows}x{self.tokens}-{self.kv_length}{source}{'-fresh' if self.is_fresh else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """What a step is traced from: a configuration of transformers, the dtype of the weights, and the device.

    ``source``: what its encoder reads; ``None`` where it has none.
    """

    config: Any
    dtype: torch.dtype
    device: str
    geometry: Geometry
    direct: frozenset[int]
    """Layers whose attention reads the state where it lies."""
    source: SourceForm | None = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Of weights and buffers by name, where the configuration does not say them."""
    fuse: bool = False
    """Whether ops of its steps are fused."""


@dataclass(slots=True)
class _Probe:
    """What a step of one token tells of a model."""

    tensors: tuple[StateTensor, ...] = ()
    direct: frozenset[int] = frozenset()
    source: SourceForm | None = None
    source_positions: int = 0
    logits: StateTensor | None = None

    def note_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """``logits``, ``dtype[1, vocabulary]``, of which a session keeps the last row."""
        self.logits = StateTensor(name=LOGITS, dtype=logits.dtype, shape=(logits.shape[-1],), grows=False)
        return logits


def probe(  # noqa: PLR0913 - what a model is, by name
    config: Any,
    dtype: torch.dtype,
    *,
    device: str,
    alignment: int,
    architecture: type | None = None,
    dtypes: Mapping[str, torch.dtype] = OWN_DTYPES,
) -> StepModel:
    """Learns the geometry of a model's state from one traced step; ``UNSUPPORTED_OP`` for state of another kind.

    ``architecture``: the class that the configuration must name, since steps are traced from that alone. ``dtypes``: of
    weights and buffers by name, where the configuration does not say them.
    """
    refuse_quantized(config)
    found = _Probe()

    def load(_: object) -> Workload:
        model = build_model(config, dtype, dtypes)
        if architecture is not None and type(model) is not architecture:
            raise UnsupportedOp(
                f"a {architecture.__name__} has the configuration of a {type(model).__name__}",
                fix="make the engine of the language model that the configuration names",
            )
        found.source = source_form(model, dtype)
        inputs = _inputs(1, 1)
        run = _probe_text(model, found) if found.source is None else _probe_source(model, found, found.source)
        if found.source is not None:
            inputs[SOURCE] = found.source.empty(MIN_KV_LENGTH)
        return Workload(name="probe", folder="", run=run, module=model, kwargs=inputs)

    capture_workload(load, request_for(device))
    geometry = Geometry(
        tensors=found.tensors,
        longest=longest_sequence(config),
        alignment=alignment,
        source_positions=found.source_positions,
        logits=found.logits,
    )
    return StepModel(
        config=config,
        dtype=dtype,
        device=device,
        geometry=geometry,
        direct=found.direct,
        source=found.source,
        dtypes=dtypes,
    )


def _probe_text(model: torch.nn.Module, found: _Probe) -> Callable[..., torch.Tensor]:
    """The step of a model that has a text alone."""

    def run(input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        cache = ProbeCache()
        with attend_through(cache):
            logits = call_model(model, cache, input_ids, position_ids)
        _require_attention(model, cache)
        found.tensors, found.direct = cache.tensors(), frozenset(cache.direct)
        return found.note_logits(logits)

    return run


def _probe_source(model: Any, found: _Probe, form: SourceForm) -> Callable[..., torch.Tensor]:
    """The step of an encoder-decoder, the encoding of its source in it."""

    def run(input_ids: torch.Tensor, position_ids: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        own, across = ProbeCache(), ProbedSource(model.get_encoder())
        caches = both_caches(own, across.cache)
        with attend_through(own, across):
            logits = call_model(model, caches, input_ids, position_ids, source={form.input: source})
        layers = getattr(model.get_encoder().config, "num_hidden_layers", 0)
        if not form.is_features and across.encoder_calls != layers:
            raise UnsupportedOp(
                f"{across.encoder_calls} of {layers} layers of the encoder attend through transformers' interface",
                fix="run the model without an engine",
            )
        for cache in (own, across.cache):
            _require_attention(model, cache)
            if set(cache.keys) != set(range(len(own.keys))) or cache.direct != set(cache.keys):
                raise UnsupportedOp(
                    f"not every layer of {type(model).__name__} attends to text and source as they are kept",
                    fix="run the model without an engine",
                )
        found.tensors = sort_tensors(*own.tensors(), *across.cache.tensors())
        found.direct = frozenset(own.direct)
        found.source_positions = across.cache.keys[0].shape[2] if form.is_features else 0
        return found.note_logits(logits)

    return run


def _require_attention(model: torch.nn.Module, cache: ProbeCache) -> None:
    missing = sorted(set(cache.keys) - cache.attended)
    if missing or not cache.tensors():
        layer = f"layer {missing[0]}" if missing else type(model).__name__
        raise UnsupportedOp(
            f"{layer} does not attend through transformers' interface", fix="run the model without an engine"
        )


def capture_step(subject: StepModel, shape: StepShape, results: ModuleResults | None = None) -> CapturedProgram:
    """The program of one step. Its state is named ``ROW:NAME``; logits are those of the last token of each row.

    ``results`` takes down what the modules return.

    Inputs: ``input_ids`` and ``position_ids``, ``int64[rows, tokens]``; with more than one token ``last``,
    ``int64[1]``, the token whose logits are returned, behind which tokens are padding; where sources are tokens
    ``source_lengths``, ``int64[rows]``.
    """

    def load(_: object) -> Workload:
        model = build_model(subject.config, subject.dtype, subject.dtypes)
        lengths = StateLengths(shape.kv_length, shape.source_length)
        rows, owned = state_rows(subject.geometry.tensors, lengths, shape.rows)
        inputs = _inputs(shape.rows, shape.tokens)
        if shape.tokens > 1:
            inputs[LAST] = torch.empty(1, dtype=torch.int64)
        if subject.source is not None and not subject.source.is_features:
            inputs[SOURCE_LENGTHS] = torch.empty(shape.rows, dtype=torch.int64)
        run = _step_of(model, subject, shape, rows)
        modules = ModuleStack(None if results is None else results.note)
        return Workload(name=shape.name, folder="", run=run, module=model, kwargs=inputs, owned=owned, modules=modules)

    return capture_workload(load, request_for(subject.device))


def _step_of(model: Any, subject: StepModel, shape: StepShape, rows: list[StateRow]) -> Callable[..., torch.Tensor]:
    """What a step runs, over the state of ``rows``."""

    def run(
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        last: torch.Tensor | None = None,
        source_lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        tensors = subject.geometry.tensors
        cache = RowCache(tensors, rows, position_ids, direct=subject.direct, is_fresh=shape.is_fresh)
        if subject.source is None:
            with attend_through(cache):
                logits = call_model(model, cache, input_ids, position_ids, last)
        else:
            across = CrossCache(tensors, rows, source_lengths)
            bias_by_positions(model.get_decoder(), position_ids, shape.kv_length)
            # The decoder only looks whether there is a source; its keys and values are in the cache.
            sign = torch.zeros((shape.rows, 1, 1), dtype=subject.dtype, device=input_ids.device)
            source = {"encoder_outputs": BaseModelOutput(last_hidden_state=sign)}
            with attend_through(cache, across):
                logits = call_model(model, both_caches(cache, across), input_ids, position_ids, last, source)
        cache.write_back()
        return logits

    return run


def state_rows(
    tensors: Sequence[StateTensor], lengths: StateLengths, rows: int
) -> tuple[list[StateRow], tuple[OwnedTensor, ...]]:
    """The state of so many rows by name, and the same as tensors that a program keeps, named ``ROW:NAME``."""
    by_row = [{tensor.name: torch.zeros(tensor.shape_for(lengths), dtype=tensor.dtype) for tensor in tensors}
              for _ in range(rows)]  # fmt: skip
    owned = tuple(
        OwnedTensor(role="state", name=f"{row}{ROW_SEPARATOR}{name}", tensor=tensor)
        for row, state in enumerate(by_row)
        for name, tensor in state.items()
    )
    return [state.__getitem__ for state in by_row], owned


def request_for(device: str) -> CaptureRequest:
    """What a step is captured for."""
    return CaptureRequest(model="engine", device=device)


def _inputs(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    return {name: torch.empty((rows, tokens), dtype=torch.int64) for name in (IDS, POSITIONS)}
