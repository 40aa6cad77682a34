"""One step of a language model over rows of sessions: tokens in, logits out, the cache of each row as state."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

import torch

from tmmu.engine.capture.row_attention import IMPLEMENTATION, attend_through
from tmmu.engine.capture.row_cache import ProbeCache, RowCache
from tmmu.engine.geometry import Geometry, StateTensor
from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.huggingface import build, cache_argument, longest_sequence, refuse_quantized
from tmmu.passes.capture.trace import capture_workload
from tmmu.passes.capture.workload import OwnedTensor, Workload

IDS, POSITIONS, LAST = "input_ids", "position_ids", "last"
ROW_SEPARATOR: Final = ":"
_KEPT: Final = "logits_to_keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """``rows`` sessions, ``tokens`` of each, attending to the first ``kv_length`` positions of their state."""

    rows: int
    tokens: int
    kv_length: int
    is_fresh: bool = False
    """Whether no row has read a token, where it matters: for state that recurs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """What a step is traced from: a configuration of transformers, the dtype of the weights, and the device."""

    config: Any
    dtype: torch.dtype
    device: str
    geometry: Geometry
    direct: frozenset[int]
    """Layers whose attention reads the state where it lies."""


def probe(
    config: Any, dtype: torch.dtype, *, device: str, alignment: int, architecture: type | None = None
) -> StepModel:
    """Learns the geometry of a model's state from one traced step; ``UNSUPPORTED_OP`` for state of another kind.

    ``architecture``: the class that the configuration must name, since steps are traced from that alone.
    """
    refuse_quantized(config)
    found: list[tuple[tuple[StateTensor, ...], frozenset[int]]] = []

    def load(_: object) -> Workload:
        model = _build(config, dtype)
        if architecture is not None and type(model) is not architecture:
            raise UnsupportedOp(
                f"a {architecture.__name__} has the configuration of a {type(model).__name__}",
                fix="make the engine of the language model that the configuration names",
            )
        cache = ProbeCache()

        def run(input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
            with attend_through(cache):
                logits = _call(model, cache, input_ids, position_ids)
            missing = sorted(set(cache.keys) - cache.attended)
            tensors = cache.tensors()
            if missing or not tensors:
                layer = f"layer {missing[0]}" if missing else type(model).__name__
                raise UnsupportedOp(
                    f"{layer} does not attend through transformers' interface", fix="run the model without an engine"
                )
            found.append((tensors, frozenset(cache.direct)))
            return logits

        return Workload(name="probe", folder="", run=run, module=model, kwargs=_inputs(1, 1))

    capture_workload(load, _request(device))
    tensors, direct = found[0]
    geometry = Geometry(tensors=tensors, longest=longest_sequence(config), alignment=alignment)
    return StepModel(config=config, dtype=dtype, device=device, geometry=geometry, direct=direct)


def capture_step(subject: StepModel, shape: StepShape) -> CapturedProgram:
    """The program of one step. Its state is named ``ROW:NAME``; logits are those of the last token of each row.

    Inputs: ``input_ids`` and ``position_ids``, ``int64[rows, tokens]``; with more than one token ``last``,
    ``int64[1]``, the token whose logits are returned, behind which tokens are padding.
    """

    def load(_: object) -> Workload:
        model = _build(subject.config, subject.dtype)
        rows = [
            {tensor.name: _empty(tensor, shape.kv_length) for tensor in subject.geometry.tensors}
            for _ in range(shape.rows)
        ]
        owned = tuple(
            OwnedTensor(role="state", name=f"{row}{ROW_SEPARATOR}{name}", tensor=tensor)
            for row, tensors in enumerate(rows)
            for name, tensor in tensors.items()
        )
        lookups: list[Callable[[str], torch.Tensor]] = [tensors.__getitem__ for tensors in rows]

        def run(input_ids: torch.Tensor, position_ids: torch.Tensor, last: torch.Tensor | None = None) -> torch.Tensor:
            cache = RowCache(
                subject.geometry.tensors, lookups, position_ids, direct=subject.direct, is_fresh=shape.is_fresh
            )
            with attend_through(cache):
                logits = _call(model, cache, input_ids, position_ids, last)
            cache.write_back()
            return logits

        inputs = _inputs(shape.rows, shape.tokens)
        if shape.tokens > 1:
            inputs[LAST] = torch.empty(1, dtype=torch.int64)
        return Workload(name=_name(shape), folder="", run=run, module=model, kwargs=inputs, owned=owned)

    return capture_workload(load, _request(subject.device))


def _name(shape: StepShape) -> str:
    return f"step-{shape.rows}x{shape.tokens}-{shape.kv_length}{'-fresh' if shape.is_fresh else ''}"


def _request(device: str) -> CaptureRequest:
    return CaptureRequest(model="engine", device=device)


def _build(config: Any, dtype: torch.dtype) -> torch.nn.Module:
    # A model writes its choice of attention into the configuration that it is made of.
    return build(deepcopy(config), dtype, attn_implementation=IMPLEMENTATION)


def _empty(tensor: StateTensor, kv_length: int) -> torch.Tensor:
    return torch.zeros(tensor.shape_for(kv_length), dtype=tensor.dtype)


def _inputs(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    return {name: torch.empty((rows, tokens), dtype=torch.int64) for name in (IDS, POSITIONS)}


def _call(
    model: torch.nn.Module,
    cache: Any,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    last: torch.Tensor | None = None,
) -> torch.Tensor:
    """``dtype[rows, vocabulary]``: of the only token, or of token ``last``, of each row."""
    arguments: dict[str, Any] = {IDS: input_ids, cache_argument(model): cache, "use_cache": True}
    names = signature(model.forward).parameters
    if POSITIONS in names:
        arguments[POSITIONS] = position_ids
    if last is not None and _KEPT in names:
        arguments[_KEPT] = last
    logits: torch.Tensor = model(**arguments).logits
    if last is not None and _KEPT not in names:
        logits = logits.index_select(1, last)
    return logits[:, 0]
