"""Complete plans of small programs, with answers worked out by hand."""

from dataclasses import replace

import pytest

from tests.strategies import Builder
from tmmu.errors import (
    AllocationOverflow,
    ArenaTooSmall,
    InvalidConfig,
    InvalidIrShapes,
    InvalidToken,
    TmmuError,
)
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.planner.arenas import default_arenas, parse_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

TOKEN = token_from_seed(1)
ACTIVATIONS = 2


def plan_of(graph: Graph, mode: str = "inference", preset: str = "inference", *, texts: tuple[str, ...] = ()) -> Plan:
    return prepare_memory(graph, mode=mode, preset=preset, token=TOKEN, arenas=parse_arenas(texts))


def spans(plan: Plan) -> dict[int, tuple[int, int]]:
    b = plan.buffers
    return dict(zip(b.id, zip(b.birth, b.death, strict=True), strict=True))


def chain(length: int, *, in_place: bool, output: bool = True) -> Graph:
    b = Builder()
    last = b.buffer("input", (64,))
    for step in range(length):
        new = b.buffer("activation", (64,))
        b.op([last], [new], in_place=[(new, last)] if in_place and step else [])
        last = new
    return b.build([last] if output else [])


def test_elementwise_chain_needs_one_slot() -> None:
    plan = plan_of(chain(6, in_place=True))
    assert plan.arenas.slots[ACTIVATIONS] == 1
    assert plan.arenas.peak[ACTIVATIONS] == 256
    assert plan.buffers.takes_over == (1, 1, 2, 3, 4, 5)
    assert spans(plan) == {1: (0, 2), 2: (1, 3), 3: (2, 4), 4: (3, 5), 5: (4, 6), 6: (5, 6)}


def test_elementwise_chain_without_coalescing_needs_two_slots() -> None:
    plan = plan_of(chain(6, in_place=True), preset="train_full")
    assert plan.arenas.slots[ACTIVATIONS] == 2
    assert plan.buffers.slot == (0, 1, 0, 1, 0, 1)
    assert plan.buffers.takes_over == plan.buffers.id


def test_chain_of_products_needs_two_slots() -> None:
    plan = plan_of(chain(6, in_place=False))
    assert plan.arenas.slots[ACTIVATIONS] == 2
    assert plan.arenas.peak[ACTIVATIONS] == plan.arenas.bound[ACTIVATIONS] == 512


def residual_block() -> Graph:
    """x; h = f(x); g = f(h); y = x + g, written over x."""
    b = Builder()
    source = b.buffer("input", (64,))
    x, h, g, y = (b.buffer("activation", (64,)) for _ in range(4))
    b.op([source], [x])
    b.op([x], [h])
    b.op([h], [g])
    b.op([x, g], [y], in_place=[(y, x), (y, g)])
    return b.build([y])


def test_residual_block_needs_three_slots() -> None:
    plan = plan_of(residual_block())
    assert plan.arenas.slots[ACTIVATIONS] == 3
    assert spans(plan) == {1: (0, 4), 2: (1, 3), 3: (2, 4), 4: (3, 4)}
    assert plan.buffers.takes_over == (1, 2, 3, 1)
    assert plan.buffers.slot == (0, 1, 2, 0)


def test_fan_out_lives_to_its_last_reader() -> None:
    b = Builder()
    x, p, q, r = (b.buffer("activation", (64,)) for _ in range(4))
    b.op([], [x])
    b.op([x], [p])
    b.op([x], [q])
    b.op([x], [r])
    plan = plan_of(b.build([p]))
    assert spans(plan) == {0: (0, 4), 1: (1, 4), 2: (2, 3), 3: (3, 4)}
    assert plan.arenas.slots[ACTIVATIONS] == 3
    assert plan.buffers.slot == (0, 1, 2, 2)


def test_diamond_with_ids_out_of_order_runs_topologically() -> None:
    b = Builder()
    x, left, right, out = (b.buffer("activation", (64,)) for _ in range(4))
    b.op([], [x])
    b.op([x], [left])
    b.op([x], [right])
    b.op([left, right], [out])
    graph = b.build([out])
    flipped = replace(graph, ops=replace(graph.ops, reads=graph.ops.reads[::-1], writes=graph.ops.writes[::-1]))
    assert plan_of(graph).order == (0, 1, 2, 3)
    assert plan_of(flipped).order == (3, 1, 2, 0)


def test_empty_buffers_have_slots_and_no_bytes() -> None:
    b = Builder()
    x, empty, y = b.buffer("activation", (64,)), b.buffer("activation", (0, 4)), b.buffer("activation", (64,))
    b.op([], [x])
    b.op([x], [empty])
    b.op([x, empty], [y])
    plan = plan_of(b.build([y]))
    assert plan.arenas.slots[ACTIVATIONS] == 3
    assert plan.buffers.bytes == (256, 0, 256)
    assert plan.buffers.offset[1] == 0
    assert plan.arenas.peak[ACTIVATIONS] == 512


def saving_graph() -> Graph:
    """Three ops in a row; the first saves its result, the second its own, and is marked for recomputation."""
    b = Builder()
    source = b.buffer("input", (64,))
    x, y, z = (b.buffer("activation", (64,)) for _ in range(3))
    b.op([source], [x], saves=[x])
    b.op([x], [y], saves=[y], recompute=True)
    b.op([y], [z])
    return b.build([z])


@pytest.mark.parametrize(
    ("mode", "preset", "expected"),
    [
        ("inference", "inference", {1: (0, 2), 2: (1, 3), 3: (2, 3)}),
        ("inference", "train_full", {1: (0, 2), 2: (1, 3), 3: (2, 3)}),
        ("forward", "train_full", {1: (0, 3), 2: (1, 3), 3: (2, 3)}),
        ("forward", "remat_enabled", {1: (0, 3), 2: (1, 3), 3: (2, 3)}),
        ("backward", "train_full", {1: (0, 6), 2: (1, 5), 3: (2, 3)}),
        ("backward", "remat_enabled", {1: (0, 6), 2: (1, 3), 3: (2, 3)}),
    ],
)
def test_saved_values_live_as_the_mode_says(mode: str, preset: str, expected: dict[int, tuple[int, int]]) -> None:
    assert spans(plan_of(saving_graph(), mode, preset)) == expected


def test_graph_with_backward_ops_is_not_mirrored() -> None:
    b = Builder()
    weight, x = b.buffer("parameter", (64,)), b.buffer("activation", (64,))
    gradient, state = b.buffer("gradient", (64,)), b.buffer("state", (64,))
    b.op([weight], [x], saves=[x])
    b.op([x], [gradient], stage="backward")
    b.op([gradient, state], [], [(state, b.whole[state])], stage="update")
    graph = b.build([])
    assert spans(plan_of(graph, "backward", "train_full")) == {0: (0, 3), 1: (0, 2), 2: (1, 3), 3: (0, 3)}
    assert plan_of(graph, "backward").order == (0, 1, 2)
    assert spans(plan_of(graph, "forward")) == {0: (0, 1), 1: (0, 1), 3: (0, 1)}


def test_empty_graph_has_a_plan() -> None:
    plan = plan_of(Builder().build([]))
    assert plan.order == ()
    assert plan.arenas.peak == (0, 0, 0, 0)
    assert plan.metrics["peak_logical_slots"] == 0


def test_parameters_are_sequential_with_a_slot_each() -> None:
    b = Builder()
    for size in (3, 100, 0):
        b.buffer("parameter", (size,))
    plan = plan_of(b.build([]))
    assert plan.buffers.offset == (0, 256, 768)
    assert plan.buffers.slot == (0, 1, 2)
    assert plan.arenas.peak[0] == plan.arenas.bound[0] == 768
    assert plan.arenas.proven[0]


def test_inputs_and_unwritten_activations_are_not_placed() -> None:
    b = Builder()
    b.buffer("input", (4,))
    b.buffer("activation", (4,))
    constant = b.buffer("constant", (4,))
    assert plan_of(b.build([])).buffers.id == (constant,)


def test_slots_layout_takes_the_sum_of_slot_sizes() -> None:
    b = Builder()
    small, large, medium = b.buffer("activation", (4,)), b.buffer("activation", (1024,)), b.buffer("activation", (512,))
    b.op([], [small])
    b.op([small], [large])
    b.op([large], [medium])
    graph = b.build([])
    packed, slots = plan_of(graph), plan_of(graph, texts=("activations=layout:slots",))
    assert slots.slots == packed.slots
    assert slots.buffers.slot == (0, 1, 0)
    assert slots.slots.bytes[:2] == (2048, 4096)
    assert slots.buffers.offset == (0, 2048, 0)
    assert (slots.arenas.peak[ACTIVATIONS], slots.arenas.bound[ACTIVATIONS]) == (6144, 6144)
    assert slots.arenas.proven[ACTIVATIONS]


@pytest.mark.parametrize("texts", [("activations=capacity:512",), ("activations=capacity:512,page:4096",)])
def test_capacity_may_be_met_exactly(texts: tuple[str, ...]) -> None:
    assert plan_of(chain(4, in_place=False), texts=texts).arenas.peak[ACTIVATIONS] == 512


def test_arena_too_small_says_by_how_much() -> None:
    with pytest.raises(ArenaTooSmall) as caught:
        plan_of(chain(4, in_place=False), texts=("activations=capacity:511",))
    fields = caught.value.fields
    assert (fields["arena"], fields["peak"], fields["capacity"], fields["short"]) == ("activations", 512, 511, 1)
    assert "512" in str(caught.value)


def graph_of_sizes(*sizes: int, role: str = "activation") -> Graph:
    b = Builder()
    buffers = [b.buffer(role, (8,), "uint8") for _ in sizes]
    b.op([], buffers if role == "activation" else [])
    graph = b.build(buffers if role == "activation" else [])
    return replace(graph, buffers=replace(graph.buffers, bytes=sizes))


@pytest.mark.parametrize("role", ["activation", "parameter", "state"])
@pytest.mark.parametrize("sizes", [(2**64 - 1,), (2**63, 2**63), (2**62,) * 4])
def test_arena_beyond_64_bits_is_an_overflow(role: str, sizes: tuple[int, ...]) -> None:
    with pytest.raises(AllocationOverflow):
        plan_of(graph_of_sizes(*sizes, role=role))


@pytest.mark.parametrize("sizes", [(2**64 - 256,), (2**63, 2**62, 2**61), (2**61,) * 7])
def test_arena_within_64_bits_is_planned(sizes: tuple[int, ...]) -> None:
    plan = plan_of(graph_of_sizes(*sizes))
    assert plan.arenas.peak[ACTIVATIONS] == sum(sizes)
    assert min(plan.buffers.offset) == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"mode": "training"}, InvalidConfig),
        ({"preset": "fast"}, InvalidConfig),
        ({"token": bytes(63)}, InvalidToken),
        ({"arenas": default_arenas()[:3]}, InvalidConfig),
        ({"order": (0, 1, 2)}, InvalidConfig),
        ({"order": (1, 0, 2, 3)}, InvalidConfig),
    ],
)
def test_invalid_arguments_are_refused(change: dict[str, object], error: type[TmmuError]) -> None:
    arguments = {"mode": "inference", "preset": "inference", "token": TOKEN, "arenas": default_arenas()}
    with pytest.raises(error):
        prepare_memory(residual_block(), **(arguments | change))  # type: ignore[arg-type]


def test_unknown_role_is_refused() -> None:
    graph = residual_block()
    odd = replace(graph, buffers=replace(graph.buffers, role=("input", "weights", *graph.buffers.role[2:])))
    with pytest.raises(InvalidIrShapes):
        plan_of(odd)


def test_notes_do_not_change_the_digest() -> None:
    graph = residual_block()
    noted = replace(graph, notes=replace(graph.notes, name="other"))
    assert plan_of(graph).digest == plan_of(noted).digest


def test_metrics_of_a_chain() -> None:
    metrics = plan_of(chain(4, in_place=False)).metrics
    assert metrics == {
        "peak_logical_slots": 2,
        "max_live": 2,
        "memory_reuse_ppm": 500_000,
        "activation_retention_ppm": 500_000,
        "internal_fragmentation_ppm": 0,
        "peak_bytes.parameters": 0,
        "peak_bytes.state": 0,
        "peak_bytes.activations": 512,
        "peak_bytes.gradients": 0,
        "peak_bytes.stack": 512,
        "bound_bytes.stack": 512,
    }
