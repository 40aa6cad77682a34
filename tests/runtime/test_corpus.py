"""Planned is the captured program, and the module, bit for bit.

A dozen published architectures, half of them in training and half in inference; slowly, all in both.
"""

import pytest

from tests.kernels import one_thread, plain_kernels
from tmmu.errors import CaptureFailed

pytest.importorskip("transformers")

from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.execute import Row, has_succeeded, line, row_of, summary

INFERRED = ("Gemma 3 4B (text)", "DeepSeek V2 Lite", "OLMoE 1B-7B", "CLIP B/32", "PaliGemma 3B", "Whisper small")
TRAINED = ("Llama 3.1 8B", "GPT-2", "BLOOM 176B", "T5 base", "BERT base", "ViT base")
UNTRAINED = "DETR ResNet-50"


def demand_every_bit(architecture: Architecture, *, training: bool) -> None:
    with plain_kernels(), one_thread():
        row = row_of(architecture, training=training)
    assert row.ops > 0, row.reason
    assert row.results > 0
    assert (row.plain, row.module) == (0, 0), line(row)


def cases() -> list[object]:
    """Each architecture in both modes; those that are not named above are slow."""
    modes, quick = {False: "inference", True: "training"}, {False: INFERRED, True: TRAINED}
    marks = {True: (), False: pytest.mark.slow}
    return [
        pytest.param(model, training, id=f"{model.name}-{modes[training]}", marks=marks[model.name in quick[training]])
        for model in ARCHITECTURES
        for training in modes
        if not (training and model.name == UNTRAINED)
    ]


@pytest.mark.parametrize(("architecture", "training"), cases())
def test_architectures_have_the_bits_of_program_and_module(architecture: Architecture, training: bool) -> None:
    demand_every_bit(architecture, training=training)


def test_untrainable_architecture_says_why() -> None:
    (architecture,) = (candidate for candidate in ARCHITECTURES if candidate.name == UNTRAINED)
    row = row_of(architecture, training=True)
    assert row.ops == 0
    assert CaptureFailed.code in row.reason


def test_differences_are_reported_and_fail_the_corpus() -> None:
    equal = Row(name="one", training=False, ops=3, results=2)
    differing = Row(name="two", training=True, ops=3, results=2, plain=1, module=1, distance=0.5)
    assert has_succeeded([equal] * 19 + [differing])
    assert not has_succeeded([equal] * 18 + [differing])
    assert not has_succeeded([equal, Row(name="none", training=False, reason="CAPTURE_FAILED")])
    assert list(summary([equal, differing])) == [
        "1 of 2 runs have every bit of the captured program",
        "1 of 2 runs have every bit of the module",
    ]
    assert "5.0e-01" in line(differing)
