"""The ring planner on one screen: from a plan to the same plan with a ring for its weights."""

from dataclasses import dataclass, field, replace
from typing import NoReturn

from tmmu.errors import ArenaTooSmall, InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.ir.ring import POLICIES, Ring
from tmmu.planner.arenas import readable_size
from tmmu.planner.ring.assemble import assemble
from tmmu.planner.ring.layers import ring_problem
from tmmu.planner.ring.least_capacity import least_capacity
from tmmu.planner.ring.policies import POLICY
from tmmu.planner.ring.problem import RingProblem
from tmmu.planner.ring.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class RingRequest:
    """All that a ring depends on beside the plan: bytes of device memory for weights, a policy, a device's speed.

    ``depth`` is the least prefetch distance: how many visits of streamed blocks ahead of its own each copy must be
    issued; 0 leaves it open.
    """

    capacity: int
    policy: str = "cyclic"
    depth: int = 0
    profile: Profile = field(default_factory=Profile)


def prepare_ring(graph: Graph, plan: Plan, request: RingRequest) -> Plan:
    """``plan`` with a ring. All else in it is unchanged, the offsets of its parameters included.

    Errors: ``INVALID_CONFIG`` for an unknown policy or a plan without weights that are only read; ``ARENA_TOO_SMALL``
    if no schedule is found in the capacity, with the least capacity in which one is.
    """
    return replace(plan, ring=plan_ring(problem_of(graph, plan, request.profile), request))


def problem_of(graph: Graph, plan: Plan, profile: Profile) -> RingProblem:
    """The blocks, visits and times of a plan on a device of this profile."""
    alignment = plan.arenas.alignment[plan.arenas.name.index("parameters")]
    return ring_problem(graph, plan.order, mode=plan.mode, preset=plan.preset, alignment=alignment, profile=profile)


def plan_ring(problem: RingProblem, request: RingRequest) -> Ring:
    """The ring of a problem; errors as ``prepare_ring``."""
    if request.policy not in POLICIES:
        raise InvalidConfig(
            f"unknown policy {request.policy!r}", fix=f"use one of {', '.join(POLICIES)}", policy=request.policy
        )
    if not problem.bytes:
        raise InvalidConfig(
            "no weight is only read: there is nothing to stream", fix="leave the ring out, or plan without an optimizer"
        )
    candidate = POLICY[request.policy](problem, request.capacity, request.depth)
    if candidate is None:
        _refuse(problem, request)
    return assemble(problem, candidate, policy=request.policy, capacity=request.capacity)


def _refuse(problem: RingProblem, request: RingRequest) -> NoReturn:
    least = least_capacity(problem, request.policy, request.depth)
    pinned = sum(size for size, stays in zip(problem.bytes, problem.pinned, strict=True) if stays)
    free = [block for block, stays in enumerate(problem.pinned) if not stays]
    largest = max(free, key=lambda block: (problem.bytes[block], -block), default=0)
    depth = f" at depth {request.depth}" if request.depth else ""
    must = f"{_bytes(pinned)} are read at several places and stay, and of the others " if pinned else ""
    name = problem.names[largest] or "that of the model itself"
    raise ArenaTooSmall(
        f"no {request.policy} ring{depth} fits in {_bytes(request.capacity)}: {must}"
        f"the largest layer, {name}, has {_bytes(problem.bytes[largest])}",
        fix="choose another policy or depth" if least is None else f"give it {least} bytes",
        arena="parameters",
        capacity=request.capacity,
        least=least,
        largest=problem.bytes[largest],
        pinned=pinned,
        policy=request.policy,
        depth=request.depth,
    )


def _bytes(count: int) -> str:
    return f"{count} bytes ({readable_size(count)})"
