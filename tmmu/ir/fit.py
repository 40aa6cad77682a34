"""What a plan of a rewritten graph says beside its places: the rewrite of its base, what it costs, and what it is for.

With the base this is all that there is to the rewritten graph, so that a plan needs no second file to be run. The graph
that the two make has the plan's ``ir_hash``.
"""

from dataclasses import dataclass
from typing import Final

from tmmu.ir.encoding.columns import column_map
from tmmu.ir.graph import Graph
from tmmu.ir.rewrite import KINDS, RERUN, TWIN, WITH_PART, Rewrite

VERSION: Final = 1
FUSED_VERSION: Final = 2
"""Of a key that says what was fused; one that does not is of version 1."""
AGAIN: Final = (RERUN, TWIN)
"""Kinds of ops that compute what was computed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCost:
    """What a step takes beyond its base: FLOPs and bytes written again, exact; time estimated, in ppm of the base's.

    Time is 0 where the step takes less. The field names are keys of the file: renaming one changes the format.
    """

    flops: int
    bytes: int
    time_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedRecord:
    """Of a rewritten graph whose ops were fused: the graph before that, and the groups that were cut for its peak.

    ``rewritten_hash``: ``ir_hash`` of what the rewrite makes of the base. ``apart``: digests of groups, each once. The
    two, and a version of torch, make the plan's graph. The field names are keys of the file.
    """

    rewritten_hash: bytes
    apart: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRecord:
    """``budget_bytes``: what was to be stayed below, ``None`` where nothing was. ``levers``: names, in their order."""

    rewrite: Rewrite
    cost: FitCost
    budget_bytes: int | None = None
    levers: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    """Names of the rules by which it is only near, each once; without any it has the bits of its base."""
    fused: FusedRecord | None = None
    """``None`` where the plan's graph is what the rewrite makes."""


def fit_cost(rewritten: Graph, rewrite: Rewrite, *, time_ppm: int) -> FitCost:
    """The cost of what runs again in a rewritten graph: its FLOPs, and the bytes of the buffers that it writes."""
    buffer_of, sizes = rewritten.values.buffer, rewritten.buffers.bytes
    again = [op for op in rewritten.ops.ids if rewrite.kind[op] in AGAIN]
    buffers = (dict.fromkeys(buffer_of[value] for value in rewritten.ops.writes[op]) for op in again)
    return FitCost(
        flops=sum(rewritten.notes.ops.flops[op] for op in again),
        bytes=sum(sizes[buffer] for row in buffers for buffer in row),
        time_ppm=time_ppm,
    )


def fit_map(fit: FitRecord) -> dict[str, object]:
    """The value of the key ``fit`` in a plan file (docs/spec/plan.cddl), by columns.

    A kind is its place in ``KINDS``; only kinds with a part have a row in ``part``.
    """
    rewrite = fit.rewrite
    fused: dict[str, object] = {} if fit.fused is None else {"fused": column_map(fit.fused)}
    return fused | {
        "version": FUSED_VERSION if fused else VERSION,
        "base_hash": rewrite.base_hash,
        "origin": rewrite.origin,
        "kind": tuple(map(KINDS.index, rewrite.kind)),
        "part": tuple(part for kind, part in zip(rewrite.kind, rewrite.part, strict=True) if kind in WITH_PART),
        "cost": column_map(fit.cost),
        "budget_bytes": fit.budget_bytes,
        "levers": fit.levers,
        "near": fit.near,
    }
