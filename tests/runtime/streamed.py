"""Models whose weights do not fit: captured, their ring planned, and run through it beside themselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.runtime.harness import Make, captured, planned
from tmmu.ir.calls import Program
from tmmu.ir.graph import CONSTANT, PARAMETER
from tmmu.ir.ring import Ring
from tmmu.planner.ring.assemble import assemble
from tmmu.planner.ring.layers import ring_problem
from tmmu.planner.ring.policies import POLICY
from tmmu.planner.ring.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """A program, the bytes of its weights, and a ring for them."""

    program: Program
    weights: int
    ring: Ring


def streamed(make: Make, inputs: Mapping[str, torch.Tensor], *, share: int = 4, policy: str = "cyclic") -> Streamed:
    """The module's ring in one part in ``share`` of its weights."""
    program, _ = captured(make, inputs)
    buffers = program.graph.buffers
    kept = (PARAMETER, CONSTANT)
    weights = sum(size for size, role in zip(buffers.bytes, buffers.role, strict=True) if role in kept)
    return Streamed(program=program, weights=weights, ring=ring_in(program, weights // share, policy))


def ring_in(program: Program, capacity: int, policy: str = "cyclic") -> Ring:
    """A ring of this policy in so many bytes."""
    plan = planned(program)
    problem = ring_problem(
        program.graph, plan.order, mode="inference", preset="inference", alignment=256, profile=Profile()
    )
    choice = POLICY[policy](problem, capacity, 1)
    assert choice is not None
    return assemble(problem, choice, policy=policy, capacity=capacity)


def outputs(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
    """What the module says."""
    with torch.no_grad():
        found = module(**inputs)
    return found if isinstance(found, torch.Tensor) else found.logits
