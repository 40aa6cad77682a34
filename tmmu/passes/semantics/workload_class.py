"""The class of a workload: what kind of model it is, what it works on, and what it is at."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tmmu.ir.graph import Graph
from tmmu.passes.semantics.patterns import CROSS_ATTENTION, EMBEDDING, FUSION, KV_CACHE, LINEAR, Patterns

ARCHITECTURES: Final = (
    "decoder", "encoder", "encoder_decoder", "multimodal_decoder", "multimodal_encoder", "transformer", "u_net",
    "state_space", "convolutional", "recurrent", "recommender", "perceptron", "other",
)  # fmt: skip
"""``transformer``: attention in a step that trains, where no mask among its tensors says whether it decodes."""
_TOKENS: Final = frozenset({"llm_prefill", "llm_decode"})
_DECODINGS: Final = frozenset({"vision_decoding", "audio_decoding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadClass:
    """The class of a graph. ``modality`` is that of most ops, ``phases`` in the order in which they begin."""

    architecture: str
    modality: str
    phases: tuple[str, ...]
    attentions: int
    cross_attentions: int
    caches: int
    convolution_stages: int


def classify_workload(graph: Graph, patterns: Patterns) -> WorkloadClass:
    """The class of a graph with labels and patterns."""
    notes = graph.notes.ops
    counts = Counter(notes.modality)
    counts.pop("unknown", None)
    return WorkloadClass(
        architecture=_architecture(graph, patterns),
        modality=max(sorted(counts), key=counts.__getitem__, default="unknown"),
        phases=tuple(dict.fromkeys(notes.phase)),
        attentions=len(patterns.attentions),
        cross_attentions=sum(attention.is_cross for attention in patterns.attentions),
        caches=len({buffer for attention in patterns.attentions for buffer in attention.cache}),
        convolution_stages=patterns.stages,
    )


def _architecture(graph: Graph, patterns: Patterns) -> str:
    notes, words = graph.notes.ops, set(patterns.pattern)
    labels = set(zip(notes.phase, notes.modality, strict=True))
    decodes = any(phase in _TOKENS or (phase.endswith("_decoding") and name == "text") for phase, name in labels)
    decodes = decodes or any(a.is_masked_causally or (a.cache_ops and not a.is_cross) for a in patterns.attentions)
    if patterns.grown_sizes > 1:
        return "u_net"
    if patterns.attentions:
        return _transformer(words, set(notes.phase), decodes=decodes)
    if patterns.is_recurrent:
        return "recurrent"
    if patterns.stages:
        return "state_space" if decodes else "convolutional"
    if "tabular" in notes.modality:
        return "recommender" if EMBEDDING in words else "perceptron"
    return "perceptron" if LINEAR in words else "other"


def _transformer(words: set[str], phases: set[str], *, decodes: bool) -> str:
    """Learned queries that pool an encoder's result are a cross-attention too, and make no decoder."""
    if CROSS_ATTENTION in words and (decodes or not phases.isdisjoint(_DECODINGS)):
        return "encoder_decoder"
    if FUSION in words or "multimodal_fusion" in phases:
        return "multimodal_decoder" if decodes else "multimodal_encoder"
    if decodes or KV_CACHE in words:
        return "decoder"
    return "transformer" if "training" in phases else "encoder"
