"""The corpus at its published sizes: captured, planned and judged, for inference and for a training step."""

from typing import Any

import pytest

from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.corpus import labelled, plan, ratio

DATA_DEPENDENT = {("DETR ResNet-50", "backward")}
"""Matching predictions to targets is control flow on data: it cannot be planned, and must say so."""


SAMPLED = {"inference": 3, "backward": 9}
"""Of so many architectures one is slow; the others are long."""
SLOWEST = {("Mamba 2.8B", "inference")}


def mark_of(row: int, mode: str) -> pytest.MarkDecorator:
    case = (ARCHITECTURES[row].name, mode)
    often = (row % SAMPLED[mode] == 0 and case not in SLOWEST) or case in DATA_DEPENDENT
    return pytest.mark.slow if often else pytest.mark.long


def cases() -> list[Any]:
    return [
        pytest.param(architecture, mode, id=f"{architecture.name}-{mode}", marks=mark_of(row, mode))
        for row, architecture in enumerate(ARCHITECTURES)
        for mode in ("inference", "backward")
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("architecture", "mode"), cases())
def test_every_architecture_is_captured_and_packs_to_the_bound(architecture: Architecture, mode: str) -> None:
    row = plan(architecture, mode, "cuda")
    if (architecture.name, mode) in DATA_DEPENDENT:
        assert "DataDependentOutputException" in row.reason
        return
    assert row.result is not None, row.reason
    assert ratio(row.result) <= 1.01
    assert labelled(row.result) >= 0.95 * len(row.result.graph.ops)


SMALL = {
    "GPT-2": {("llm_prefill", "text")},
    "BERT base": {("text_encoding", "text")},
    "ResNet-50": {("vision_encoding", "vision")},
    "CLIP B/32": {("vision_encoding", "vision"), ("text_encoding", "text"), ("multimodal_fusion", "fusion")},
    "Whisper small": {
        ("audio_encoding", "audio"),
        ("audio_decoding", "audio"),
        ("audio_decoding", "text"),
        ("audio_decoding", "fusion"),
    },
}
"""Architectures that plan in a second, and all that their ops are labelled with."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_small_part_of_the_corpus_is_labelled(name: str) -> None:
    result = plan(next(a for a in ARCHITECTURES if a.name == name), "inference", "cuda").result
    assert result is not None
    notes = result.graph.notes.ops
    assert labelled(result) == len(result.graph.ops)
    assert set(zip(notes.phase, notes.modality, strict=True)) == SMALL[name]
