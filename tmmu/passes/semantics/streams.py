"""Streams: which of the caller's tensors an op works on, and what kind of data each of these carries.

A *stream* is one input that carries data; masks, positions and counts carry none. An op works on every stream that
reaches it, but across an attention the stream of the queries alone goes on: what is attended to informs it. What an
input carries is told by the first operator that works on it: a lookup in a table (text), a convolution over one axis
(audio) or more (vision), a product of rows (tabular). Names help where they say so. Linear, with one machine word of
streams per op for up to 64 inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from re import compile as pattern_of
from typing import Final

from tmmu.ir.graph import CONSTANT, INPUT, PARAMETER
from tmmu.passes.semantics import families
from tmmu.passes.semantics.attentions import Attention
from tmmu.passes.semantics.dataflow import ROOT, Dataflow

TEXT: Final = "text"
VISION: Final = "vision"
AUDIO: Final = "audio"
TABULAR: Final = "tabular"
UNKNOWN: Final = "unknown"

_WORD: Final = pattern_of(r"[a-z]+")
_NEUTRAL_WORDS: Final = frozenset(
    [
        "mask",
        "masks",
        "position",
        "positions",
        "timestep",
        "timesteps",
        "sigma",
        "labels",
        "label",
        "cache",
        "seed",
        "length",
        "lengths",
        "sizes",
        "past",
    ]
)
_NAMED: Final = (
    (AUDIO, frozenset(["audio", "waveform", "waveforms", "mel", "spectrogram", "speech", "wav", "features"])),
    (VISION, frozenset(["pixel", "pixels", "image", "images", "img", "video", "frames"])),
    (TEXT, frozenset(["text", "token", "tokens", "ids", "embeds", "encoder_hidden_states", "prompt"])),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Per op, the bits of the streams that reach it; per bit, the modality of that input."""

    bits: Sequence[int]
    modality: tuple[str, ...]
    is_joining: frozenset[int]
    """Ops at which streams that were apart before come together."""

    def modalities(self, bits: int) -> frozenset[str]:
        """The modalities of some streams, unknown ones left out."""
        names = (name for index, name in enumerate(self.modality) if bits >> index & 1)
        return frozenset(name for name in names if name != UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What the first operators say of an input: families and forms, and how many tables it indexes."""

    words: frozenset[str]
    tables: int


def find_streams(flow: Dataflow, attentions: Sequence[Attention]) -> Streams:
    """The streams of a graph, in one walk along its order."""
    roots = _root_buffers(flow)
    found = {families.family_of(target) for target in set(flow.graph.ops.target)}
    is_mixing = bool(attentions) or not found.isdisjoint({families.CONVOLUTION, families.RECURRENCE})
    modality = _input_modalities(flow, roots, is_mixing=is_mixing)
    number = {buffer: index for index, buffer in enumerate(b for b in roots if modality[b] != "")}
    bits = [0] * len(flow.graph.ops)
    queries = {op: attention for attention in attentions if attention.is_cross for op in attention.core}
    joining: set[int] = set()
    for op in flow.order:
        reads = _stream_operands(flow, op, queries.get(op))
        parts = [_bits_of(flow, value, bits, number) for value in reads]
        for part in parts:
            bits[op] |= part
        if bits[op] and all(part != bits[op] for part in parts):
            joining.add(op)
        if not bits[op] and op in queries:
            bits[op] = _all_bits(flow, op, bits, number)
    names = tuple(modality[buffer] for buffer in number)
    return Streams(bits=bits, modality=names, is_joining=frozenset(joining))


def _stream_operands(flow: Dataflow, op: int, attention: Attention | None) -> Sequence[int]:
    """What an op reads; in a cross-attention what comes from the queries alone."""
    reads = flow.graph.ops.reads[op]
    if attention is None:
        return reads
    inside = set(attention.core)
    return [value for value in reads if value == attention.query or flow.writer[value] in inside]


def _all_bits(flow: Dataflow, op: int, bits: Sequence[int], number: dict[int, int]) -> int:
    """For queries that no input reaches (learned ones): what is attended to."""
    total = 0
    for value in flow.graph.ops.reads[op]:
        total |= _bits_of(flow, value, bits, number)
    return total


def _bits_of(flow: Dataflow, value: int, bits: Sequence[int], number: dict[int, int]) -> int:
    op = flow.writer[value]
    if op != ROOT:
        return bits[op]
    index = number.get(flow.graph.values.buffer[value])
    return 0 if index is None else 1 << index


def _root_buffers(flow: Dataflow) -> list[int]:
    """The caller's buffers, in the order of the inputs."""
    values = flow.graph.values
    inputs = dict.fromkeys(values.buffer[value] for value in flow.graph.inputs)
    return [buffer for buffer in inputs if flow.graph.buffers.role[buffer] == INPUT]


def _input_modalities(flow: Dataflow, roots: Sequence[int], *, is_mixing: bool) -> dict[int, str]:
    """Per input buffer its modality; empty text for one that carries no data of its own."""
    evidence = _evidence(flow, roots)
    graph = flow.graph
    first: dict[int, int] = {graph.values.buffer[value]: value for value in reversed(graph.inputs)}
    return {buffer: _modality_of(flow, first[buffer], evidence[buffer], is_mixing=is_mixing) for buffer in roots}


def _modality_of(flow: Dataflow, value: int, evidence: _Evidence, *, is_mixing: bool) -> str:
    values = flow.graph.values
    shape, dtype = values.shape[value], values.dtype[value]
    words = set(_WORD.findall(flow.graph.notes.buffers[values.buffer[value]].lower()))
    named = next((modality for modality, names in _NAMED if words & names), None)
    if dtype.startswith(("int", "uint")) and "convolution2" not in evidence.words:
        return _modality_of_ids(shape, words, evidence, named, is_mixing=is_mixing)
    if dtype == "bool" or len(shape) < 2 or words & _NEUTRAL_WORDS:
        return ""
    return named or _modality_of_numbers(shape, evidence)


def _modality_of_ids(
    shape: tuple[int, ...], words: set[str], evidence: _Evidence, named: str | None, *, is_mixing: bool
) -> str:
    """Whole numbers carry data where they index a table: text, or the features of a row."""
    if "embedding" not in evidence.words or words & _NEUTRAL_WORDS:
        return ""
    is_row = not is_mixing and (len(shape) < 2 or evidence.tables > 2)
    return named or (TABULAR if "bag" in evidence.words or is_row else TEXT)


def _modality_of_numbers(shape: tuple[int, ...], evidence: _Evidence) -> str:
    if len(shape) == 4 and 3 in (shape[1], shape[3]):
        return VISION
    if "convolution2" in evidence.words:
        return VISION
    if "convolution1" in evidence.words:
        return AUDIO
    if len(shape) > 3:
        return VISION
    return TABULAR if len(shape) == 2 and "product" in evidence.words else UNKNOWN


def _evidence(flow: Dataflow, roots: Sequence[int]) -> dict[int, _Evidence]:
    """What each input meets: followed through ops that keep its elements, and through the first products."""
    number = {buffer: index for index, buffer in enumerate(roots)}
    bits = [0] * len(flow.graph.ops)
    words: list[set[str]] = [set() for _ in roots]
    tables: list[set[int]] = [set() for _ in roots]
    for op in flow.order:
        reads = flow.graph.ops.reads[op]
        reaching = 0
        for value in reads:
            reaching |= _bits_of(flow, value, bits, number)
        if not reaching:
            continue
        word = _word_of(flow, op)
        for index in _positions(reaching):
            words[index] |= {word} if word else set()
            tables[index] |= {flow.graph.values.buffer[v] for v in reads[:1] if word == "embedding"}
            words[index] |= {"bag"} if "_bag" in flow.graph.ops.target[op] else set()
        bits[op] = reaching if word in {"", "product"} else 0
    return {buffer: _Evidence(frozenset(words[index]), len(tables[index])) for buffer, index in number.items()}


def _positions(bits: int) -> list[int]:
    return [index for index in range(bits.bit_length()) if bits >> index & 1]


def _word_of(flow: Dataflow, op: int) -> str:
    """The evidence that an op gives of what reaches it; empty where it gives none, and the input goes on."""
    target, reads = flow.graph.ops.target[op], flow.graph.ops.reads[op]
    family = families.family_of(target)
    if family == families.CONVOLUTION:
        return "convolution1" if len(flow.graph.values.shape[flow.result(op)]) < 4 else "convolution2"
    is_lookup = family in {families.EMBEDDING, families.INDEX} and flow.role(reads[0]) in {PARAMETER, CONSTANT}
    if is_lookup and flow.writer[reads[0]] == ROOT:
        return "embedding" if flow.role(reads[0]) == PARAMETER else "lookup"
    if family in {families.RECURRENCE, families.ATTENTION, families.SOFTMAX}:
        return family
    return "product" if family == families.PRODUCT else ""
