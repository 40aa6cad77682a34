"""Joint arenas: one slab, with answers worked out by hand; each arena has its own peak and bound."""

from dataclasses import replace

import pytest

from tests.strategies import Builder, random_graph, seeded
from tmmu.errors import AllocationOverflow, ArenaTooSmall
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan, segment_bytes, slabs_of
from tmmu.ir.problem import Placement, Problem
from tmmu.planner import joint
from tmmu.planner.arenas import parse_arenas
from tmmu.planner.joint import place_joint
from tmmu.planner.layout import place_packed, place_sequential
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

SEPARATE = ("activations=layout:packed", "gradients=layout:packed")
ACTIVATIONS, GRADIENTS = 2, 3


def problem(*rows: tuple[int, int, int]) -> Problem:
    """Rows of (size, birth, death)."""
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    size, birth, death = columns
    return Problem(size=tuple(size), birth=tuple(birth), death=tuple(death))


FALLING = problem((4, 0, 2), (4, 0, 4), (2, 0, 6))
RISING = problem((4, 2, 6), (4, 4, 6))
"""10 bytes are live when FALLING starts and 8 when RISING ends: 10 at most together."""


def test_joint_arenas_that_fall_and_rise_share_a_slab() -> None:
    slab = place_joint((2, 3), (FALLING, RISING))
    falling, rising = slab.placements
    assert (slab.arenas, slab.bound) == ((2, 3), 10)
    assert max(falling.peak, rising.peak) == 10
    assert (falling.bound, rising.bound) == (10, 8)
    assert falling.proven
    assert rising.proven
    assert (len(falling.offset), len(rising.offset)) == (3, 2)


@pytest.mark.parametrize("filled", [0, 1, 2])
def test_empty_arenas_move_nothing(filled: int) -> None:
    problems = [problem(), problem(), problem()]
    problems[filled] = FALLING
    slab = place_joint((0, 1, 2), problems)
    assert slab.placements[filled] == place_packed(FALLING)
    others = [part for index, part in enumerate(slab.placements) if index != filled]
    assert all((part.offset, part.peak, part.bound, part.proven) == ((), 0, 0, True) for part in others)


def test_joint_arena_alone_is_packed() -> None:
    slab = place_joint((3,), (RISING,))
    assert slab.placements == (place_packed(RISING),)
    assert slab.bound == 8


def test_joint_packing_is_never_above_the_stacked_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packer that lays more than three items end to end needs 21 bytes for these; the arenas stacked, 11."""
    nothing, one = problem((0, 0, 3), (5, 0, 3), (5, 3, 6)), problem((0, 3, 6), (6, 3, 6), (5, 0, 3))

    def packer(problem: Problem, *, search_nodes: int = 0) -> Placement:
        placement = place_sequential(problem) if len(problem) > 3 else place_packed(problem)
        return replace(placement, bound=11, proven=placement.peak == 11)

    monkeypatch.setattr(joint, "place_packed", packer)
    slab = place_joint((2, 3), (nothing, one))
    first, second = slab.placements
    assert (first.offset, second.offset) == ((0, 0, 0), (0, 5, 5))
    assert (first.peak, second.peak, slab.bound) == (5, 11, 11)
    assert first.proven
    assert second.method == "apart"


def test_slabs_are_the_joint_arenas_of_a_segment() -> None:
    segments = ("text", "stack", "data", "stack", "stack", "data")
    layouts = ("sequential", "joint", "joint", "packed", "joint", "joint")
    assert slabs_of(segments, layouts) == ((0,), (1, 4), (2, 5), (3,))
    assert slabs_of((), ()) == ()


def training_step(*sizes: tuple[int, int]) -> Graph:
    """A training step: each activation is saved, then, last first, replaced by a gradient that is an output."""
    b = Builder()
    source = b.buffer("input", (4,), "uint8")
    activations = [b.buffer("activation", (size,), "uint8") for size, _ in sizes]
    gradients = [b.buffer("gradient", (size,), "uint8") for _, size in sizes]
    for result in activations:
        b.op([source], [result])
    for read, result in reversed(list(zip(activations, gradients, strict=True))):
        b.op([read], [result], stage="backward")
    return b.build(gradients)


def plan_of(graph: Graph, *texts: str) -> Plan:
    arenas = parse_arenas(texts)
    return prepare_memory(graph, mode="backward", preset="train_full", token=token_from_seed(1), arenas=arenas)


def test_joint_training_step_needs_its_live_bytes_not_two_peaks() -> None:
    """Three activations of 256 bytes; each gradient is written while its activation is live: 4 live at once, not 6."""
    graph = training_step((256, 256), (256, 256), (256, 256))
    together, apart = plan_of(graph), plan_of(graph, *SEPARATE)
    assert (together.metrics["peak_bytes.stack"], together.metrics["bound_bytes.stack"]) == (1024, 1024)
    assert (apart.metrics["peak_bytes.stack"], apart.metrics["bound_bytes.stack"]) == (1536, 1536)
    assert together.arenas.bound[ACTIVATIONS:] == (768, 768)
    assert segment_bytes(together.arenas, "stack") == max(together.arenas.peak[ACTIVATIONS:]) == 1024
    assert together.arenas.proven == (True,) * 4


def test_joint_and_packed_arenas_are_two_slabs() -> None:
    graph = training_step((256, 256), (256, 256))
    mixed = plan_of(graph, "gradients=layout:packed")
    assert mixed.buffers == plan_of(graph, *SEPARATE).buffers
    assert mixed.metrics["peak_bytes.stack"] == 1024


def test_capacity_of_a_joint_arena_limits_its_own_end() -> None:
    graph = training_step((256, 256), (256, 256), (256, 256))
    ends = plan_of(graph).arenas.peak
    for name, end in (("activations", ends[ACTIVATIONS]), ("gradients", ends[GRADIENTS])):
        assert plan_of(graph, f"{name}=capacity:{end}").arenas.peak == ends
        with pytest.raises(ArenaTooSmall) as caught:
            plan_of(graph, f"{name}=capacity:{end - 1}")
        fields = caught.value.fields
        assert (fields["arena"], fields["peak"], fields["short"], fields["bound"]) == (name, end, 1, 768)
        alone = end - 1 >= 768
        assert ("layout:packed" in caught.value.fix) == alone
        if alone:
            assert plan_of(graph, f"{name}=capacity:{end - 1},layout:packed").arenas.peak


def test_stack_bytes_are_limited_to_64_bits() -> None:
    """In two slabs the halves exceed 64 bits. In one they need the bytes of one, since they are never live together."""
    b = Builder()
    early, late = b.buffer("activation", (8,), "uint8"), b.buffer("gradient", (8,), "uint8")
    b.op([], [early])
    b.op([], [late])
    graph = b.build([late])
    graph = replace(graph, buffers=replace(graph.buffers, bytes=(1 << 63, 1 << 63)))
    assert plan_of(graph).metrics["peak_bytes.stack"] == 1 << 63
    with pytest.raises(AllocationOverflow, match="the stack needs 18446744073709551616 bytes"):
        plan_of(graph, *SEPARATE)


def test_empty_gradients_arena_changes_no_offset() -> None:
    for seed in range(20):
        graph = random_graph(seeded(seed), ops=40)
        together, apart = plan_of(graph), plan_of(graph, *SEPARATE)
        assert together.arenas.slots[GRADIENTS] == 0
        assert together.buffers == apart.buffers
        assert (together.arenas.peak, together.metrics) == (apart.arenas.peak, apart.metrics)
