"""The step that encodes a source: what the decoder attends to across, of all layers, as state of a session.

The whole model is traced, with one token, over a cache that keeps the keys and values of the source; nothing reads what
the decoder makes beside them, so that it is not part of the step.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tmmu.engine.capture.cross_attention import both_caches, source_mask
from tmmu.engine.capture.model_call import SOURCE, SOURCE_LENGTHS, build_model, call_model
from tmmu.engine.capture.row_attention import AttentionInputs, attend_rows, attend_through
from tmmu.engine.capture.row_cache import CROSS_KEY, CROSS_VALUE, PositionlessCache, ProbeCache, state_name
from tmmu.engine.capture.step import StateRow, StepModel, request_for, state_rows
from tmmu.engine.geometry import StateLengths
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.trace import capture_workload
from tmmu.passes.capture.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingShape:
    """A source of ``source_length`` positions, of which some may be padding, of one session."""

    source_length: int

    @property
    def rows(self) -> int:
        """One."""
        return 1

    @property
    def name(self) -> str:
        """What its program is called."""
        return f"encoding-{self.source_length}"


class WrittenCross(PositionlessCache):
    """Writes the keys and values of a source into the state of its row."""

    def __init__(self, row: StateRow) -> None:
        super().__init__(layers=[])
        self._row = row

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes ``dtype[1, heads, positions, size]``, all positions of a layer."""
        del args, kwargs
        for kind, tensor in ((CROSS_KEY, key_states), (CROSS_VALUE, value_states)):
            self._row(state_name(layer_idx, kind)).copy_(tensor[0].transpose(0, 1))
        return key_states, value_states


class EncoderAttention:
    """Attention of the encoder, to the first ``lengths`` positions of the source, ``int64[1]``, or to all."""

    def __init__(self, encoder: torch.nn.Module, lengths: torch.Tensor | None) -> None:
        self._encoder = set(encoder.modules())
        self._lengths = lengths
        self._masks: dict[int, tuple[torch.Tensor | None, torch.Tensor | None]] = {}

    def attend(self, call: AttentionInputs) -> torch.Tensor:
        """Of the decoder's calls, zeros: nothing reads them."""
        query, value = call.query, call.value
        if call.module not in self._encoder:
            return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        return attend_rows(query, [(call.key, value)], self._mask(call), call.form)

    def _mask(self, call: AttentionInputs) -> torch.Tensor | None:
        """Bias and padding, added once for all layers that have a bias in common."""
        key = 0 if call.bias is None else id(call.bias)
        if key not in self._masks:
            mask = call.bias
            if self._lengths is not None:
                padding = source_mask(self._lengths, call.key.shape[2], call.query.dtype)
                mask = padding if mask is None else mask + padding
            self._masks[key] = call.bias, mask
        return self._masks[key][1]


def capture_encoding(subject: StepModel, shape: EncodingShape) -> CapturedProgram:
    """The program that encodes a source. Its state is that of one row, as in ``capture_step``; its only output
    says nothing: a program has one.

    Inputs: ``source``, as the encoder reads it; of tokens also ``source_lengths``, ``int64[1]``, behind which they are
    padding.
    """
    form = subject.source
    assert form is not None

    def load(_: object) -> Workload:
        model: Any = build_model(subject.config, subject.dtype, subject.dtypes)
        across = tuple(tensor for tensor in subject.geometry.tensors if tensor.along == "source")
        (row,), owned = state_rows(across, StateLengths(0, shape.source_length), 1)

        def run(source: torch.Tensor, source_lengths: torch.Tensor | None = None) -> torch.Tensor:
            attention = EncoderAttention(model.get_encoder(), source_lengths)
            token = torch.zeros((1, 1), dtype=torch.int64, device=source.device)
            own = ProbeCache()
            with attend_through(own, attention):
                call_model(model, both_caches(own, WrittenCross(row)), token, token, source={form.input: source})
            return torch.zeros(1, device=source.device)

        inputs = {SOURCE: form.empty(shape.source_length)}
        if not form.is_features:
            inputs[SOURCE_LENGTHS] = torch.empty(1, dtype=torch.int64)
        return Workload(name=shape.name, folder="", run=run, module=model, kwargs=inputs, owned=owned)

    return capture_workload(load, request_for(subject.device))
