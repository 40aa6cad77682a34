"""The pattern that each op is part of: attention and its projections, caches, convolution stages, recurrence and so on.

A pattern is a word and a number: which attention, which convolution stage. Derived from operators and dataflow alone,
so any graph has them, and no file does. Linear in the graph.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tmmu.ir.graph import PARAMETER, STATE
from tmmu.passes.semantics import families
from tmmu.passes.semantics.attentions import Attention
from tmmu.passes.semantics.dataflow import Dataflow

SELF_ATTENTION: Final = "self_attention"
CROSS_ATTENTION: Final = "cross_attention"
PROJECTION: Final = "attention_projection"
KV_CACHE: Final = "kv_cache"
CONVOLUTION: Final = "convolution"
RECURRENCE: Final = "recurrence"
FUSION: Final = "fusion"
EMBEDDING: Final = "embedding"
LINEAR: Final = "linear"
NORMALIZATION: Final = "normalization"
UPDATE: Final = "update"
PATTERNS: Final = (
    SELF_ATTENTION, CROSS_ATTENTION, PROJECTION, KV_CACHE, CONVOLUTION, RECURRENCE, FUSION, EMBEDDING, LINEAR,
    NORMALIZATION, "attention", "pooling", "reduction", "product", "softmax", "elementwise", "movement", "index",
    "resizing", "creation", UPDATE, "other",
)  # fmt: skip
"""The last ones say what an op does where it is part of nothing larger."""
STEPS_MIN: Final = 3
"""Products of one weight in one chain before they are steps of a recurrence."""
NEEDS_MAX: Final = 256
"""Ops between two steps of a recurrence that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """Per op of the graph, its pattern and the number of that attention or stage; -1 where it has none."""

    pattern: tuple[str, ...]
    number: tuple[int, ...]
    attentions: tuple[Attention, ...]
    stages: int
    """Runs of convolutions that write one spatial size."""
    grown_sizes: int
    """How many spatial sizes convolutions write, each larger than a smaller one before it: 2 and more in a U."""
    is_recurrent: bool


def find_patterns(flow: Dataflow, attentions: tuple[Attention, ...], joins: frozenset[int]) -> Patterns:
    """The patterns of a graph with these attentions, where the ops ``joins`` bring modalities together.

    The first that claims an op has it: update, cache, attention, join, recurrence, convolution, projection.
    """
    ops = flow.graph.ops
    claims: dict[int, tuple[str, int]] = {op: (UPDATE, -1) for op in flow.order if ops.stage[op] == "update"}
    _claim_attentions(claims, attentions)
    for op in joins:
        claims.setdefault(op, (FUSION, -1))
    steps = () if attentions else tuple(_recurrent_ops(flow))
    for op in steps:
        claims.setdefault(op, (RECURRENCE, -1))
    sizes = _claim_stages(claims, flow)
    _claim_projections(claims, attentions, flow)
    rows = [claims.get(op) or (_plain_pattern(flow, op), -1) for op in ops.ids]
    return Patterns(
        pattern=tuple(pattern for pattern, _ in rows),
        number=tuple(number for _, number in rows),
        attentions=attentions,
        stages=len(sizes),
        grown_sizes=_grown_sizes(sizes),
        is_recurrent=bool(steps),
    )


def _claim_attentions(claims: dict[int, tuple[str, int]], attentions: tuple[Attention, ...]) -> None:
    for number, attention in enumerate(attentions):
        for op in attention.cache_ops:
            claims.setdefault(op, (KV_CACHE, number))
    for number, attention in enumerate(attentions):
        for op in attention.core:
            claims.setdefault(op, (CROSS_ATTENTION if attention.is_cross else SELF_ATTENTION, number))


def _claim_projections(claims: dict[int, tuple[str, int]], attentions: tuple[Attention, ...], flow: Dataflow) -> None:
    for number, attention in enumerate(attentions):
        for op in (*attention.query_path, *attention.key_paths):
            claims.setdefault(op, (PROJECTION, number))
        result = next((r for r in flow.consumers(attention.core[-1]) if _is_weighted_product(flow, r)), None)
        if result is not None:
            claims.setdefault(result, (PROJECTION, number))


def _grown_sizes(sizes: list[tuple[int, ...]]) -> int:
    """Sizes behind the smallest, each larger than all that came between."""
    if not sizes:
        return 0
    counts = [_product(size) for size in sizes]
    most, grown = min(counts), 0
    for count in counts[counts.index(most) :]:
        if count > most:
            most, grown = count, grown + 1
    return grown


def _product(size: tuple[int, ...]) -> int:
    total = 1
    for extent in size:
        total *= extent
    return total


def _claim_stages(claims: dict[int, tuple[str, int]], flow: Dataflow) -> list[tuple[int, ...]]:
    """Convolutions and what follows them elementwise, normalized or pooled; returns the spatial size of each stage.

    A stage is a run of convolutions, in order, whose results have one spatial size; those of a single place (as in
    squeeze and excitation) belong to the stage that they stand in.
    """
    sizes: list[tuple[int, ...]] = []
    for op in flow.order:
        family = families.family_of(flow.graph.ops.target[op])
        shape = flow.graph.values.shape[flow.result(op)] if flow.graph.ops.writes[op] else ()
        if family == families.CONVOLUTION and flow.graph.ops.stage[op] == "forward":
            if not sizes or (shape[2:] != sizes[-1] and any(extent > 1 for extent in shape[2:])):
                sizes.append(shape[2:])
            claims.setdefault(op, (CONVOLUTION, len(sizes) - 1))
        elif family == families.CONVOLUTION:
            claims.setdefault(op, (CONVOLUTION, -1))
        elif len(shape) > 2 and (family in _AROUND_CONVOLUTION or families.passes_through(flow.graph.ops.target[op])):
            behind = _claim_behind(claims, flow, op)
            if behind is not None:
                claims.setdefault(op, behind)
    return sizes


_AROUND_CONVOLUTION: Final = frozenset({families.POOLING, families.RESIZING})


def _claim_behind(claims: dict[int, tuple[str, int]], flow: Dataflow, op: int) -> tuple[str, int] | None:
    """The claim of the op that computed the main argument, where that is a convolution's and keeps its axes."""
    value = flow.main_operand(op)
    if value < 0 or len(flow.graph.values.shape[value]) != len(flow.graph.values.shape[flow.result(op)]):
        return None
    claim = claims.get(flow.writer[value])
    return claim if claim is not None and claim[0] == CONVOLUTION else None


def _recurrent_ops(flow: Dataflow) -> Iterator[int]:
    """Operators of recurrent layers, and products by one weight, each of which needs the one before."""
    steps: dict[int, list[int]] = defaultdict(list)
    for op in flow.order:
        target = flow.graph.ops.target[op]
        if families.family_of(target) == families.RECURRENCE:
            yield op
        elif families.family_of(target) == families.PRODUCT:
            for value in flow.graph.ops.reads[op]:
                if flow.role(value) == PARAMETER and len(flow.graph.values.shape[value]) == 2:
                    steps[flow.graph.values.buffer[value]].append(op)
    for ops in steps.values():
        if len(ops) >= STEPS_MIN and _is_chain(flow, *ops[:2]):
            yield from ops


def _is_chain(flow: Dataflow, first: int, second: int) -> bool:
    """Whether the second op needs the first: looked for backwards, at most ``NEEDS_MAX`` ops."""
    pending, visited = [second], {second}
    while pending and len(visited) < NEEDS_MAX:
        for value in flow.graph.ops.reads[pending.pop()]:
            op = flow.writer[value]
            if op == first:
                return True
            if op >= 0 and op not in visited:
                visited.add(op)
                pending.append(op)
    return False


def _is_weighted_product(flow: Dataflow, op: int) -> bool:
    target = flow.graph.ops.target[op]
    return families.family_of(target) == families.PRODUCT and any(
        flow.role(value) in {PARAMETER, STATE} for value in flow.graph.ops.reads[op]
    )


def _plain_pattern(flow: Dataflow, op: int) -> str:
    family = families.family_of(flow.graph.ops.target[op])
    return LINEAR if family == families.PRODUCT and _is_weighted_product(flow, op) else family
