"""What a planned step is and takes, in a few numbers that stay once the plan is bound and let go."""

from dataclasses import dataclass

from tmmu.engine.capture.encoder import EncodingShape
from tmmu.engine.capture.step import StepModel, StepShape
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.summary.plan_summary import Memory, memory_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """``rows`` sessions, up to ``tokens`` of each; the lengths are those of ``StepShape``.

    ``phase``: the IR's word. ``memory``: bytes by how long they live: ``text`` as long as the engine, ``data`` as long
    as the sessions of its rows, ``stack`` as long as the step; ``inputs`` are the caller's.
    """

    phase: str
    rows: int
    tokens: int
    kv_length: int
    source_length: int
    memory: Memory


def summary_of(subject: StepModel, shape: StepShape | EncodingShape, graph: Graph, plan: Plan) -> StepSummary:
    """The summary of a step's plan."""
    memory = memory_of(plan, graph)
    if isinstance(shape, EncodingShape):
        phase = "audio_encoding" if subject.source is not None and subject.source.is_features else "text_encoding"
        length = shape.source_length
        return StepSummary(phase=phase, rows=1, tokens=length, kv_length=0, source_length=length, memory=memory)
    return StepSummary(
        phase="llm_prefill" if shape.tokens > 1 else "llm_decode",
        rows=shape.rows,
        tokens=shape.tokens,
        kv_length=shape.kv_length,
        source_length=shape.source_length,
        memory=memory,
    )
