"""Phase and modality of each op, by rules over module paths, operators and shapes; unknown rather than a guess."""

import re
from dataclasses import replace
from typing import Final

from tmmu.ir.graph import STATE, Graph
from tmmu.ir.program import Program

_WORDS: Final = re.compile(r"[a-z]+")

_MODALITY_WORDS: Final = (
    ("fusion", frozenset({"projector", "connector", "crossmodal", "fusion", "merger", "resampler", "qformer"})),
    ("audio", frozenset({"audio", "speech", "wav", "mel", "spectrogram", "acoustic", "codec"})),
    ("vision", frozenset({"vision", "visual", "image", "pixel", "patch", "vit", "pixels", "patches", "backbone"})),
    ("text", frozenset({"text", "language", "lm", "token", "tokens", "wte", "word", "vocab"})),
)
"""Words of a module path and the modality that they name; the first rule that matches wins."""


def label_phases(program: Program) -> Program:
    """The program with phase and modality noted for every op."""
    graph = program.graph
    modality = _modalities(graph)
    phase = _phases(graph, modality)
    ops = replace(graph.notes.ops, phase=phase, modality=modality)
    return replace(program, graph=replace(graph, notes=replace(graph.notes, ops=ops)))


def modality_of_path(path: str) -> str | None:
    """The modality that a module path names, if it names one."""
    words = set(_WORDS.findall(path.lower()))
    return next((name for name, rule_words in _MODALITY_WORDS if words & rule_words), None)


def modality_of_input(name: str, shape: tuple[int, ...], dtype: str) -> str | None:
    """What an input carries, by its name and shape."""
    words = set(_WORDS.findall(name.lower()))
    if words & {"pixel", "image", "images", "pixels", "img"} or (len(shape) == 4 and shape[1] == 3):
        return "vision"
    if words & {"audio", "features", "waveform", "mel", "values"} and dtype.startswith(("float", "bfloat")):
        return "audio"
    if dtype in ("int64", "int32") and len(shape) == 2:
        return "text"
    return None


def _input_modalities(graph: Graph) -> tuple[str, ...]:
    values, names = graph.values, graph.notes.buffers
    modalities = [
        modality_of_input(names[values.buffer[v]], values.shape[v], values.dtype[v])
        for v in graph.inputs
        if len(values.shape[v]) > 0
    ]
    return tuple(dict.fromkeys(m for m in modalities if m is not None))


def _modalities(graph: Graph) -> tuple[str, ...]:
    inputs = _input_modalities(graph)
    alone = inputs[0] if len(inputs) == 1 else "unknown"
    memo: dict[str, str] = {}
    for path in graph.notes.ops.module:
        if path not in memo:
            named = modality_of_path(path) if len(inputs) != 1 else None
            memo[path] = named or alone
    return tuple(memo[path] for path in graph.notes.ops.module)


def _phases(graph: Graph, modality: tuple[str, ...]) -> tuple[str, ...]:
    if any(stage != "forward" for stage in graph.ops.stage):
        return ("training",) * len(graph.ops)
    text = _text_phase(graph)
    by_modality = {"vision": "vision_encoding", "fusion": "multimodal_fusion", "text": text}
    return tuple(
        "vision_decoding" if m == "vision" and "decoder" in path else by_modality.get(m, "forward")
        for m, path in zip(modality, graph.notes.ops.module, strict=True)
    )


def _text_phase(graph: Graph) -> str:
    """Decode: a KV cache is updated for one position. Prefill: causal attention over a prompt. Else forward."""
    values, ops = graph.values, graph.ops
    attends = any("attention" in target for target in ops.target)
    cached = any(
        graph.buffers.role[values.buffer[v]] == STATE and len(values.shape[v]) == 4
        for writes in ops.writes
        for v in writes
    )
    names = graph.notes.buffers
    lengths = [
        values.shape[v][1]
        for v in graph.inputs
        if len(values.shape[v]) == 2 and values.dtype[v] in ("int64", "int32") and "mask" not in names[values.buffer[v]]
    ]
    if cached and lengths and max(lengths) == 1:
        return "llm_decode"
    produces_tokens = any("lm_head" in path or "head" in path for path in graph.notes.ops.module)
    return "llm_prefill" if attends and produces_tokens and lengths else "forward"
