"""Modality and phase of each op, from patterns and streams.

A *decoder* is what makes tokens one after another: its attention is causal, or it has none at all, and it ends in a
score for every word of its table. What a decoder computes is text; whom it listens to says which decoding it is.
Everything else encodes what it is given, until it grows in space (a resizing, a transposed convolution), where it
decodes. Ops that no input reaches belong to those that read them. Linear in the graph.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.ir.graph import PARAMETER, STATE
from tmmu.passes.semantics import families
from tmmu.passes.semantics.attentions import Attention
from tmmu.passes.semantics.dataflow import ROOT, Dataflow
from tmmu.passes.semantics.streams import AUDIO, TEXT, UNKNOWN, VISION, Streams

FUSION: Final = "fusion"
VOCABULARY_MIN: Final = 16
"""Rows of a table of words; a table of fewer is one of positions, types or classes."""
_FUSION_WORDS: Final = frozenset(["projector", "connector", "crossmodal", "fusion", "merger", "resampler", "qformer"])
_DECODER_WORDS: Final = frozenset({"decoder", "vocoder"})
_WORKING: Final = frozenset(
    {families.PRODUCT, families.ATTENTION, families.NORMALIZATION, families.CONVOLUTION, families.RECURRENCE}
)
_WORD: Final = re.compile(r"[a-z]+")
_ENCODING: Final = {TEXT: "text_encoding", VISION: "vision_encoding", AUDIO: "audio_encoding"}
_DECODING: Final = {VISION: "vision_decoding", AUDIO: "audio_decoding"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Per op of the graph, its modality and phase."""

    modality: tuple[str, ...]
    phase: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A part of a graph that makes tokens: the sets of streams that it works on, and the phase of its ops."""

    bits: frozenset[int]
    phase: str


def label_ops(
    flow: Dataflow, attentions: Sequence[Attention], streams: Streams, decoder: Decoder | None, *, trains: bool
) -> Labels:
    """The labels of a graph; where it ``trains``, every phase is ``training``."""
    rows = _label_reached(flow, attentions, streams, decoder)
    _label_gradients(flow, rows)
    complete = _label_unreached(flow, rows)
    phase = ("training",) * len(rows) if trains else tuple(phase for _, phase in complete)
    return Labels(modality=tuple(modality for modality, _ in complete), phase=phase)


def find_decoder(
    flow: Dataflow, attentions: Sequence[Attention], streams: Streams, causal: frozenset[int]
) -> Decoder | None:
    """The decoder of a graph, or ``None``. ``causal``: ops that were told to attend to earlier positions alone."""
    heads = _vocabulary_heads(flow, streams)
    caches = [a for a in attentions if not a.is_cross and a.cache_ops]
    if not heads and not caches:
        return None
    own = [a for a in attentions if not a.is_cross and (a.is_masked_causally or a.cache_ops or causal & set(a.core))]
    joined = {bits for bits in heads if len(streams.modalities(bits)) > 1}  # a prefix may see all of itself
    if attentions and not own and not joined:
        return None
    reached = {streams.bits[a.core[-1]] for a in own} or joined or heads
    if heads and reached.isdisjoint(heads):
        reached = joined  # a causal encoder beside another stream, which ends in words
    if not reached:
        return None
    apart = {streams.bits[a.core[-1]] for a in attentions} - reached
    texts = (b for b in set(streams.bits) if b and b not in apart and streams.modalities(b) <= {TEXT})
    leading = frozenset(b for b in texts if any(b & r == b for r in reached))
    return Decoder(bits=leading | reached, phase=_decoding_phase(flow, attentions, own, streams, reached))


def _decoding_phase(
    flow: Dataflow, attentions: Sequence[Attention], own: Sequence[Attention], streams: Streams, reached: set[int]
) -> str:
    """Named after whom the decoder listens to; else by how many positions it adds to its cache."""
    for attention in attentions:
        if attention.is_cross and streams.bits[attention.core[-1]] in reached:
            heard = streams.modalities(_heard_bits(flow, attention, streams)) & set(_DECODING)
            if heard:
                return _DECODING[min(heard)]
    if own:
        # Grouped heads may stand where positions do, so the ids are asked too.
        adds_one = all(a.query_length == 1 for a in own) or _has_one_position(flow)
        return "llm_decode" if adds_one and any(a.cache for a in own) else "llm_prefill"
    return "llm_decode" if _writes_state(flow) and _has_one_position(flow) else "llm_prefill"


def _heard_bits(flow: Dataflow, attention: Attention, streams: Streams) -> int:
    """The streams of what a cross-attention attends to."""
    total = 0
    for op in attention.core:
        for value in flow.graph.ops.reads[op]:
            if value != attention.query and flow.writer[value] not in attention.core:
                total |= streams.bits[flow.writer[value]] if flow.writer[value] != ROOT else 0
    return total


def _writes_state(flow: Dataflow) -> bool:
    return any(flow.role(value) == STATE for op in flow.order for value in flow.graph.ops.writes[op])


def _has_one_position(flow: Dataflow) -> bool:
    """Whether a table is looked up for one position of each sequence."""
    values, inputs = flow.graph.values, set(flow.graph.inputs)
    return any(
        len(values.shape[value]) == 2 and values.shape[value][1] == 1
        for op in flow.order
        if families.family_of(flow.graph.ops.target[op]) == families.EMBEDDING
        for value in flow.graph.ops.reads[op]
        if value in inputs
    )


def _vocabulary_heads(flow: Dataflow, streams: Streams) -> set[int]:
    """Streams that end in a product whose rows have a score for each row of a table of words that was looked up."""
    graph, heads = flow.graph, set[int]()
    sizes = {
        graph.values.shape[reads[0]][0]
        for op in flow.order
        if families.family_of(graph.ops.target[op]) == families.EMBEDDING
        and (reads := graph.ops.reads[op])
        and flow.role(reads[0]) in {PARAMETER, STATE}
        and graph.values.shape[reads[0]]
    }
    multiplied = _multiplied_ops(flow)
    for op in flow.order:
        if families.family_of(graph.ops.target[op]) == families.PRODUCT and op not in multiplied:
            shape = graph.values.shape[flow.result(op)]
            is_weighted = any(flow.is_weight(value) for value in graph.ops.reads[op])
            if is_weighted and shape and shape[-1] in sizes and shape[-1] >= VOCABULARY_MIN and streams.bits[op]:
                heads.add(streams.bits[op])
    return heads


def _multiplied_ops(flow: Dataflow) -> frozenset[int]:
    """Ops whose numbers go into another product, attention or norm of the forward stage; choices do not."""
    graph, later = flow.graph, set[int]()
    for op in reversed(flow.order):
        readers = [r for r in flow.consumers(op) if graph.ops.stage[r] == "forward"]
        worked = any(families.family_of(graph.ops.target[r]) in _WORKING for r in readers)
        is_choice = graph.ops.writes[op] and graph.values.dtype[flow.result(op)].startswith(("int", "bool"))
        if not graph.ops.writes[op] or (not is_choice and (worked or any(r in later for r in readers))):
            later.add(op)
    return frozenset(later)


def _label_reached(
    flow: Dataflow, attentions: Sequence[Attention], streams: Streams, decoder: Decoder | None
) -> list[tuple[str, str] | None]:
    """(modality, phase) of each op that a stream reaches; ``None`` of others."""
    crossing = dict(_fusing_attentions(flow, attentions, streams))
    serving = {op: a.core[-1] for a in attentions if a.is_cross for op in a.key_paths}
    grown = _grown_ops(flow, streams)
    rows: list[tuple[str, str] | None] = [None] * len(flow.graph.ops)
    for op in flow.order:
        if not streams.bits[op]:
            continue
        modality = _modality_of_op(flow, op, streams, decoder)
        bits = streams.bits[serving.get(op, op)]
        if decoder is not None and bits in decoder.bits:
            phase = decoder.phase
        else:
            phase = _encoding_phase(flow, op, modality, is_grown=op in grown)
        if op in crossing:
            modality = FUSION
            phase = phase if decoder is not None and bits in decoder.bits else "multimodal_fusion"
        rows[op] = (modality, phase)
    for op in flow.order:
        row = rows[op]
        if row is not None and joins_modalities(flow, op, streams):
            rows[op] = (FUSION, "multimodal_fusion")
    return rows


def joins_modalities(flow: Dataflow, op: int, streams: Streams) -> bool:
    """Whether streams of different modalities, apart in all that the op reads, come together in it."""
    if op not in streams.is_joining or len(streams.modalities(streams.bits[op])) < 2:
        return False
    writers = (flow.writer[value] for value in flow.graph.ops.reads[op])
    return all(len(streams.modalities(streams.bits[w])) < 2 for w in writers if w != ROOT)


def _fusing_attentions(
    flow: Dataflow, attentions: Sequence[Attention], streams: Streams
) -> Iterator[tuple[int, Attention]]:
    """Ops of attentions whose queries and keys are of different modalities."""
    for attention in attentions:
        if attention.is_cross:
            own = streams.modalities(streams.bits[attention.core[-1]])
            heard = streams.modalities(_heard_bits(flow, attention, streams))
            if heard - own:
                yield from ((op, attention) for op in attention.core)


def _modality_of_op(flow: Dataflow, op: int, streams: Streams, decoder: Decoder | None) -> str:
    if decoder is not None and streams.bits[op] in decoder.bits:
        return TEXT
    words = set(_WORD.findall(flow.graph.notes.ops.module[op].lower()))
    modalities = streams.modalities(streams.bits[op])
    if len(modalities) > 1 or (words & _FUSION_WORDS and len(streams.modality) > 1):
        return FUSION
    return min(modalities, default=UNKNOWN)


def _encoding_phase(flow: Dataflow, op: int, modality: str, *, is_grown: bool) -> str:
    if modality == FUSION:
        return "multimodal_fusion"
    words = set(_WORD.findall(flow.graph.notes.ops.module[op].lower()))
    if modality in _DECODING and (is_grown or words & _DECODER_WORDS):
        return _DECODING[modality]
    return _ENCODING.get(modality, "forward")


def _grown_ops(flow: Dataflow, streams: Streams) -> frozenset[int]:
    """Ops behind one that grows in space; all ops of a stream that never shrank before."""
    behind, shrunk, generating = set[int](), set[int](), set[int]()
    for op in flow.order:
        reads = [w for value in flow.graph.ops.reads[op] if (w := flow.writer[value]) != ROOT]
        growth = _growth(flow, op) if streams.bits[op] else 0
        if growth < 0 or any(w in shrunk for w in reads):
            shrunk.add(op)
        if any(w in behind for w in reads):
            behind.add(op)
        elif growth > 0:
            behind.add(op)
            if op not in shrunk:
                generating.add(streams.bits[op])
    before = {op for op in flow.order if streams.bits[op] in generating and op not in shrunk}
    return frozenset(behind | before)


def _growth(flow: Dataflow, op: int) -> int:
    """1 where the op writes more places than it reads, -1 where fewer: resizing, pooling, convolution."""
    family = families.family_of(flow.graph.ops.target[op])
    if family not in {families.RESIZING, families.CONVOLUTION, families.POOLING} or not flow.graph.ops.writes[op]:
        return 0
    after = flow.graph.values.shape[flow.result(op)][2:]
    operand = flow.graph.ops.reads[op][0]
    before = flow.graph.values.shape[operand][2:]
    if len(before) != len(after) or not after:
        return 0
    grows = all(b >= 1.5 * a for a, b in zip(before, after, strict=True))
    shrinks = all(1.5 * b <= a for a, b in zip(before, after, strict=True))
    return 1 if grows else -1 if shrinks else 0


def _label_gradients(flow: Dataflow, rows: list[tuple[str, str] | None]) -> None:
    """An op of the backward stage works on what the forward ops of its module work on, though more reaches it."""
    ops, module = flow.graph.ops, flow.graph.notes.ops.module
    forward: dict[str, tuple[str, str]] = {}
    for op in flow.order:
        row = rows[op]
        if ops.stage[op] == "forward" and row is not None:
            forward.setdefault(module[op], row)
        elif ops.stage[op] == "backward" and module[op]:
            rows[op] = forward.get(module[op], row)


def _label_unreached(flow: Dataflow, rows: list[tuple[str, str] | None]) -> list[tuple[str, str]]:
    """Ops that no stream reaches take the label of their first reader, else the commonest of the graph."""
    for op in reversed(flow.order):
        if rows[op] is None:
            readers = sorted(set(flow.consumers(op)))
            rows[op] = next((rows[r] for r in readers if rows[r] is not None), None)
    counts = Counter(row for row in rows if row is not None)
    commonest = max(sorted(counts), key=counts.__getitem__, default=(UNKNOWN, "forward"))
    return [row or commonest for row in rows]
