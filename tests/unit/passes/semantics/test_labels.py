"""What an op belongs to is told by operators and dataflow: one nameless model of each kind, and what it must be."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import nn

from tests.unit.passes.semantics import models
from tests.unit.passes.semantics.models import Stack, ids, program_of_module
from tmmu.ir.graph import Graph
from tmmu.ir.program import Program
from tmmu.passes.semantics.analysis import Analysis, analyze
from tmmu.passes.semantics.workload_class import WorkloadClass, classify_workload


@dataclass(frozen=True)
class Kind:
    """A model, its arguments, and what must be said of it: (phase, modality) in order, and counts of patterns."""

    module: Callable[[], nn.Module]
    args: tuple[torch.Tensor, ...]
    architecture: str
    labels: tuple[tuple[str, str], ...]
    patterns: dict[str, int]
    modality: str = "text"


picture, sound = torch.zeros(1, 3, 32, 32), torch.zeros(1, 20, 32)
PREFILL, DECODE, ENCODE = ("llm_prefill", "text"), ("llm_decode", "text"), ("text_encoding", "text")
SEE, DRAW, JOIN = ("vision_encoding", "vision"), ("vision_decoding", "vision"), ("multimodal_fusion", "fusion")

KINDS = {
    "prefill into a cache": Kind(
        lambda: models.Cached(0), (ids(1, 6),), "decoder", (PREFILL,),
        {"kv_cache": 2, "self_attention": 1, "attention_projection": 3, "embedding": 1},
    ),
    "decode step over a cache": Kind(
        lambda: models.Cached(5), (ids(1, 1),), "decoder", (DECODE,),
        {"kv_cache": 2, "self_attention": 1, "attention_projection": 3, "embedding": 1},
    ),
    "decoder by a flag": Kind(
        lambda: Stack(causal=True), (ids(2, 8),), "decoder", (PREFILL,),
        {"self_attention": 2, "attention_projection": 8, "embedding": 1},
    ),
    "decoder by a triangle": Kind(
        lambda: Stack(causal=True, composed=True), (ids(2, 8),), "decoder", (PREFILL,), {"self_attention": 10},
    ),
    "encoder with a score per word": Kind(
        lambda: Stack(composed=True), (ids(2, 8),), "encoder", (ENCODE,), {"self_attention": 8, "embedding": 1},
    ),
    "causal encoder": Kind(
        lambda: Stack(causal=True, head=False), (ids(2, 8),), "encoder", (ENCODE,), {"self_attention": 2},
    ),
    "encoder and decoder of text": Kind(
        models.TextPair, (ids(2, 8), ids(2, 5)), "encoder_decoder", (ENCODE, PREFILL),
        {"cross_attention": 8, "self_attention": 18, "embedding": 2},
    ),
    "residual network": Kind(
        models.Stages, (torch.zeros(1, 1, 32, 32),), "convolutional", (SEE,), {"convolution": 25, "linear": 1},
        modality="vision",
    ),
    "patches": Kind(
        models.Patches, (picture,), "encoder", (SEE,), {"self_attention": 2, "attention_projection": 8},
        modality="vision",
    ),
    "patches, attention composed": Kind(
        lambda: models.Patches(composed=True), (picture,), "encoder", (SEE,), {"self_attention": 8}, modality="vision",
    ),
    "sound to words": Kind(
        models.Sound, (sound, ids(1, 4)), "encoder_decoder",
        (("audio_encoding", "audio"), ("audio_decoding", "text"), ("audio_decoding", "audio"),
         ("audio_decoding", "fusion")),
        {"self_attention": 4, "cross_attention": 2, "embedding": 1}, modality="audio",
    ),
    "picture and text apart": Kind(
        models.TwoTowers, (picture, ids(3, 8)), "multimodal_encoder", (SEE, ENCODE, JOIN),
        {"self_attention": 4, "fusion": 1},
    ),
    "picture before words": Kind(
        models.PicturePrompt, (picture, ids(1, 6)), "multimodal_decoder", (SEE, PREFILL, JOIN),
        {"self_attention": 2, "fusion": 1},
    ),
    "recurrent cell": Kind(models.Recurrent, (ids(2, 5),), "recurrent", (PREFILL,), {"recurrence": 5, "embedding": 1}),
    "recurrent layer": Kind(models.Library, (ids(2, 5),), "recurrent", (PREFILL,), {"embedding": 1}),
    "recommender": Kind(
        models.Recommender, (torch.zeros(4, 13), ids(3, 4, 2)), "recommender", (("forward", "tabular"),),
        {"embedding": 3, "linear": 2}, modality="tabular",
    ),
    "perceptron": Kind(
        lambda: nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 2)), (torch.zeros(4, 9),), "perceptron",
        (("forward", "tabular"),), {"linear": 2, "elementwise": 1}, modality="tabular",
    ),
    "u-net that a text guides": Kind(
        models.UNet, (torch.zeros(1, 4, 16, 16), ids(1, 7)), "u_net", (SEE, ENCODE, JOIN, DRAW),
        {"cross_attention": 1, "embedding": 1}, modality="vision",
    ),
    "generator": Kind(
        models.Generator, (torch.zeros(2, 16),), "convolutional", (DRAW,), {"convolution": 4, "linear": 1},
        modality="vision",
    ),
}  # fmt: skip


@cache
def program(name: str) -> Program:
    return program_of_module(KINDS[name].module, *KINDS[name].args)


def analysis(name: str) -> tuple[Graph, Analysis, WorkloadClass]:
    graph = program(name).graph
    found = analyze(graph)
    return graph, found, classify_workload(graph, found.patterns)


@pytest.mark.parametrize("name", KINDS)
def test_kind_has_its_labels(name: str) -> None:
    notes = program(name).graph.notes.ops
    assert set(zip(notes.phase, notes.modality, strict=True)) == set(KINDS[name].labels)
    assert tuple(dict.fromkeys(notes.phase)) == tuple(dict.fromkeys(phase for phase, _ in KINDS[name].labels)) or (
        "picture" in name or "u-net" in name
    )


@pytest.mark.parametrize("name", KINDS)
def test_kind_has_its_patterns_and_class(name: str) -> None:
    _, found, workload = analysis(name)
    counts = Counter(found.patterns.pattern)
    assert {pattern: counts[pattern] for pattern in KINDS[name].patterns} == KINDS[name].patterns
    assert (workload.architecture, workload.modality) == (KINDS[name].architecture, KINDS[name].modality)


def test_fixtures_have_no_names_that_tell() -> None:
    for name in KINDS:
        notes = program(name).graph.notes
        words = {word for text in notes.ops.module for word in text.split(".")}
        assert all(len(word) < 3 or word in {"layers", "tables", "first", "second", "up", "down"} for word in words), (
            words
        )


def test_decoder_attends_to_what_it_heard_across_modalities() -> None:
    graph, found, workload = analysis("sound to words")
    assert (workload.attentions, workload.cross_attentions) == (6, 2)
    cross = [op for op, pattern in enumerate(found.patterns.pattern) if pattern == "cross_attention"]
    assert [graph.notes.ops.modality[op] for op in cross] == ["fusion", "fusion"]


def test_stages_are_runs_of_one_spatial_size() -> None:
    graph, found, workload = analysis("residual network")
    convolutions = [op for op, t in enumerate(graph.ops.target) if t == "aten.convolution.default"]
    assert [found.patterns.number[op] for op in convolutions] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert workload.convolution_stages == 3


def test_cache_buffers_are_those_of_the_attention() -> None:
    graph, found, workload = analysis("decode step over a cache")
    (attention,) = found.patterns.attentions
    assert sorted(graph.buffers.role[buffer] for buffer in attention.cache) == ["state", "state"]
    assert (attention.query_length, attention.key_length, workload.caches) == (1, 16, 2)


def test_attention_is_cross_only_where_queries_have_another_source() -> None:
    _, found, _ = analysis("encoder and decoder of text")
    assert [a.is_cross for a in found.patterns.attentions] == [False, False, False, True, False, True]


def test_positions_in_a_window_of_both_sides_are_not_causal() -> None:
    class Window(models.Mixer):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            places = torch.arange(x.shape[1])
            mask = (places[None, :] - places[:, None]).abs() <= 2
            q, k, v = self.heads(self.a(x)), self.heads(self.b(y)), self.heads(self.c(y))
            return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)

    class Local(Stack):
        def __init__(self) -> None:
            super().__init__(layers=1)
            self.layers[0].m = Window()

    notes = program_of_module(Local, ids(2, 8)).graph.notes.ops
    assert set(notes.phase) == {"text_encoding"}


def test_step_that_trains_is_training_and_keeps_modalities() -> None:
    graph = program("sound to words").graph
    stage = ("backward", *graph.ops.stage[1:])
    labels = analyze(replace(graph, ops=replace(graph.ops, stage=stage))).labels
    assert set(labels.phase) == {"training"}
    assert {"audio", "text"} <= set(labels.modality)


def test_graph_without_inputs_or_ops_has_labels() -> None:
    empty = program_of_module(nn.Identity, torch.zeros(2)).graph
    assert analyze(empty).labels.phase == ()
    assert classify_workload(empty, analyze(empty).patterns).architecture == "other"
