"""Models whose weights do not fit: captured programs with planned rings, and rings of modules by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from tests.rings import ring_at
from tests.runtime.harness import Make, capture_program, plan_of
from tmmu.ir.graph import CONSTANT, PARAMETER, Buffers, Graph, Notes, OpNotes, Ops, Values
from tmmu.ir.program import Program
from tmmu.ir.ring import Member, Ring
from tmmu.planner.ring.assemble import assemble
from tmmu.planner.ring.layers import ring_problem
from tmmu.planner.ring.policies import POLICY
from tmmu.planner.ring.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedCase:
    """A program, the bytes of its weights, and a ring for them."""

    program: Program
    weights: int
    ring: Ring


def plan_streamed(
    make: Make, inputs: Mapping[str, torch.Tensor], *, share: int = 4, policy: str = "cyclic"
) -> StreamedCase:
    """The captured module with a ring in ``1 / share`` of the bytes of its weights."""
    program, _ = capture_program(make, inputs)
    buffers = program.graph.buffers
    roles = (PARAMETER, CONSTANT)
    weights = sum(size for size, role in zip(buffers.bytes, buffers.role, strict=True) if role in roles)
    return StreamedCase(program=program, weights=weights, ring=ring_in(program, weights // share, policy))


def ring_in(program: Program, capacity: int, policy: str = "cyclic") -> Ring:
    """A ring of this policy in ``capacity`` bytes."""
    plan = plan_of(program)
    problem = ring_problem(
        program.graph, plan.order, mode="inference", preset="inference", alignment=256, profile=Profile()
    )
    candidate = POLICY[policy](problem, capacity, 1)
    assert candidate is not None
    return assemble(problem, candidate, policy=policy, capacity=capacity)


def outputs(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
    """The output tensor of the module, or its logits."""
    with torch.no_grad():
        result = module(**inputs)
    return result if isinstance(result, torch.Tensor) else result.logits


def ring_by_hand(
    module: nn.Module, parts: Sequence[str], *, slots: int = 2, resident: Sequence[str] = ()
) -> tuple[Ring, Graph]:
    """A ring of one block for each named part of a module, in that order, and the graph that names its weights.

    A part is a prefix of names. Resident parts lie above ``slots`` slots of the largest part, which the others take in
    turn.
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    first = {tensor.untyped_storage()._cdata: name for name, tensor in reversed(named)}
    tensors = [(name, tensor) for name, tensor in named if first[tensor.untyped_storage()._cdata] == name]
    names = [name for name, _ in tensors]
    sizes = [tensor.untyped_storage().nbytes() for _, tensor in tensors]
    groups = [[n for n, name in enumerate(names) if name.startswith(part)] for part in parts]
    padded = [-(-size // 64) * 64 for size in sizes]
    totals = [sum(padded[n] for n in group) for group in groups]
    slot = max(total for part, total in zip(parts, totals, strict=True) if part not in resident)
    spans, top, streamed = [], slot * slots, 0
    for part, total in zip(parts, totals, strict=True):
        address = top if part in resident else streamed % slots * slot
        top, streamed = (top + total, streamed) if part in resident else (top, streamed + 1)
        spans.append((address, address + total))
    ring = ring_at(spans, resident=[n for n, part in enumerate(parts) if part in resident])
    members = [_members(group, padded) for group in groups]
    rows = zip(ring.blocks, parts, members, strict=True)
    blocks = tuple(replace(block, name=part, members=row) for block, part, row in rows)
    return replace(ring, blocks=blocks), _weights_graph(names, sizes)


def _members(group: Sequence[int], padded: Sequence[int]) -> tuple[Member, ...]:
    starts = accumulate((padded[n] for n in group), initial=0)
    return tuple(Member(buffer=n, offset=offset) for n, offset in zip(group, starts, strict=False))


def _weights_graph(names: Sequence[str], sizes: Sequence[int]) -> Graph:
    """A graph of weights and no op."""
    nothing: tuple[Any, ...] = ()
    notes = OpNotes(phase=nothing, modality=nothing, flops=nothing, module=nothing, source=nothing)
    columns = dict.fromkeys(Ops.__slots__, nothing)
    return Graph(
        target="cpu",
        buffers=Buffers(bytes=tuple(sizes), role=(PARAMETER,) * len(names)),
        values=Values(buffer=nothing, offset=nothing, shape=nothing, stride=nothing, dtype=nothing),
        ops=Ops(**columns),
        inputs=nothing,
        outputs=nothing,
        notes=Notes(name="weights", buffers=tuple(names), ops=notes),
    )
