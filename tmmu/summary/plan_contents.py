"""Contents of a plan: the caller's input tensors, and the kinds of state in the data segment."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tmmu.ir.graph import LOSS_MODULE, Graph
from tmmu.ir.plan import Plan

STATE_KINDS: Final = ("weights", "optimizer", "cache", "buffers")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerInput:
    """One input tensor; ``name`` is empty if the graph has none for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """Bytes of the data segment of one ``kind``: ``weights``, ``optimizer``, ``cache`` or ``buffers``."""

    kind: str
    bytes: int


def caller_inputs(graph: Graph) -> tuple[CallerInput, ...]:
    """The graph's inputs, in the program's order."""
    values, names = graph.values, graph.notes.buffers
    return tuple(
        CallerInput(name=names[values.buffer[value]], dtype=values.dtype[value], shape=values.shape[value])
        for value in graph.inputs
    )


def loss_text(graph: Graph) -> str:
    """The loss that tmmu takes itself, such as ``mse`` or ``cross_entropy:dim=2``; empty for one of the model's own."""
    modules = (module for module in graph.notes.ops.module if module.startswith(LOSS_MODULE))
    return next(modules, "").removeprefix(LOSS_MODULE)


def state_parts(plan: Plan, graph: Graph) -> tuple[StatePart, ...]:
    """Bytes of the data segment by kind, in the order of ``STATE_KINDS``; they add up to the segment."""
    data = {index for index, segment in enumerate(plan.arenas.segment) if segment == "data"}
    stage = graph.ops.stage
    updated = {
        graph.values.buffer[value] for op in plan.order if stage[op] == "update" for value in graph.ops.writes[op]
    }
    sizes: Counter[str] = Counter()
    for buffer, arena, size in zip(plan.buffers.id, plan.buffers.arena, plan.buffers.bytes, strict=True):
        if arena in data:
            sizes[_state_kind(graph.notes.buffers[buffer], updated=buffer in updated)] += size
    return tuple(StatePart(kind=kind, bytes=sizes[kind]) for kind in STATE_KINDS if sizes[kind])


def _state_kind(name: str, *, updated: bool) -> str:
    """The kind of a state buffer, by the name that capture gave it and by whether the update stage writes it."""
    for prefix, kind in (("optimizer.", "optimizer"), ("cache.", "cache")):
        if name.startswith(prefix):
            return kind
    return "weights" if updated else "buffers"
