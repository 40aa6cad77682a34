"""On random legal graphs the planner agrees with the reference simulator and packs without overlap."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import graphs, random_graph, seeded
from tmmu.ir.graph import Graph
from tmmu.ir.plan import LAYOUTS, MODES, PRESETS, ArenaSpec, Plan, encode_plan
from tmmu.planner.arenas import default_arenas, parse_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.reference import chains, simulate
from tmmu.planner.token import token_from_seed

TOKEN = token_from_seed(5)
GRADIENTS = 3


def plan_of(graph: Graph, mode: str, preset: str, arenas: tuple[ArenaSpec, ...] | None = None) -> Plan:
    return prepare_memory(graph, mode=mode, preset=preset, token=TOKEN, arenas=arenas or default_arenas())


def require_simulated(graph: Graph, plan: Plan, arenas: tuple[ArenaSpec, ...]) -> None:
    expected = simulate(graph, plan.order, mode=plan.mode, preset=plan.preset, token=TOKEN, arenas=arenas)
    b, names = plan.buffers, plan.arenas.name
    slots = zip((names[a] for a in plan.slots.arena), plan.slots.slot, strict=True)
    keys = list(slots)
    assert dict(zip(b.id, zip(b.birth, b.death, strict=True), strict=True)) == expected.span
    assert dict(zip(b.id, b.takes_over, strict=True)) == expected.takes_over
    assert dict(zip(b.id, ((names[a], s) for a, s in zip(b.arena, b.slot, strict=True)), strict=True)) == expected.slot
    assert dict(zip(keys, plan.slots.address, strict=True)) == expected.address
    assert dict(zip(keys, plan.slots.bytes, strict=True)) == expected.slot_bytes
    if plan.order:
        assert dict(zip(names, plan.arenas.slots, strict=True)) == expected.max_live
    assert plan.metrics["max_live"] == plan.metrics["peak_logical_slots"] == sum(plan.arenas.slots)


def slab_names(plan: Plan) -> list[str]:
    """Per arena, the slab that holds it: the shared stack, or its own."""
    layouts = zip(plan.arenas.name, plan.arenas.layout, strict=True)
    return ["stack" if layout == "joint" else name for name, layout in layouts]


def most_live(rows: list[tuple[int, int, int]]) -> int:
    return max((sum(n for x, y, n in rows if x <= t < y) for t, _, _ in rows), default=0)


def require_stack_metrics(plan: Plan, items: list[tuple[str, int, int, int]]) -> None:
    """Stack metrics are sums over slabs: peaks are highest ends, bounds the most live bytes, whatever the layout."""
    a, slabs = plan.arenas, slab_names(plan)
    stack = sorted({slab for slab, segment in zip(slabs, a.segment, strict=True) if segment == "stack"})
    peak = {slab: max(p for name, p in zip(slabs, a.peak, strict=True) if name == slab) for slab in stack}
    items_of = {slab: [row[1:] for row in items if row[0] == slab] for slab in stack}
    bound = {slab: most_live(items_of[slab]) for slab in stack}
    assert plan.metrics["peak_bytes.stack"] == sum(peak.values())
    assert plan.metrics["bound_bytes.stack"] == sum(bound.values())
    for slab, proven in zip(slabs, a.proven, strict=True):
        assert slab not in stack or proven == (peak[slab] == bound[slab])


def require_sound_layout(plan: Plan) -> None:
    b = plan.buffers
    spans = dict(zip(b.id, zip(b.birth, b.death, strict=True), strict=True))
    over = dict(zip(b.id, b.takes_over, strict=True))
    row = {buffer: index for index, buffer in enumerate(b.id)}
    slabs = slab_names(plan)
    items = [(row[r], birth, death, members) for r, (birth, death, members) in chains(spans, over).items()]
    for r, _, _, members in items:
        assert {b.offset[row[m]] for m in members} == {b.offset[r]}
        assert b.offset[r] % plan.arenas.alignment[b.arena[r]] == 0
    for (first, birth, death, _), (second, born, dead, _) in combinations(items, 2):
        if slabs[b.arena[first]] == slabs[b.arena[second]] and birth < dead and born < death:
            apart = (
                b.offset[first] + b.bytes[first] <= b.offset[second]
                or b.offset[second] + b.bytes[second] <= b.offset[first]
            )
            assert apart or not (b.bytes[first] and b.bytes[second])
    require_stack_metrics(plan, [(slabs[b.arena[r]], birth, death, b.bytes[r]) for r, birth, death, _ in items])
    for index, peak in enumerate(plan.arenas.peak):
        arena_items = [r for r, *_ in items if b.arena[r] == index]
        tops = [b.offset[r] + b.bytes[r] for r in arena_items]
        assert max(tops, default=0) <= peak if plan.arenas.layout[index] == "slots" else max(tops, default=0) == peak
        live = [(birth, death, b.bytes[r]) for r, birth, death, _ in items if r in arena_items]
        most = most_live(live)
        never_reused = plan.arenas.segment[index] != "stack"
        assert plan.arenas.bound[index] == (sum(n for _, _, n in live) if never_reused else most) <= peak


@settings(deadline=None)
@given(graphs(shuffled=None), st.sampled_from(MODES), st.sampled_from(PRESETS), st.sampled_from((1, 128, 256)))
def test_planner_and_simulator_agree(graph: Graph, mode: str, preset: str, alignment: int) -> None:
    arenas = default_arenas(alignment)
    plan = plan_of(graph, mode, preset, arenas)
    require_simulated(graph, plan, arenas)
    require_sound_layout(plan)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(deadline=None, max_examples=50)
@given(graph=graphs(), mode=st.sampled_from(MODES))
def test_every_layout_is_sound(layout: str, graph: Graph, mode: str) -> None:
    alignment = 64 if layout == "joint" else 128
    arenas = parse_arenas(
        [f"activations=layout:{layout},alignment:{alignment}", f"gradients=layout:{layout},alignment:64"]
    )
    plan = plan_of(graph, mode, "inference", arenas)
    require_simulated(graph, plan, arenas)
    require_sound_layout(plan)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("preset", PRESETS)
def test_planner_and_simulator_agree_on_longer_programs(mode: str, preset: str) -> None:
    taken = 0
    for seed in range(12):
        graph = random_graph(seeded(seed), ops=80, joint=seed % 2 == 0, shuffled=seed % 3 == 0)
        plan = plan_of(graph, mode, preset)
        require_simulated(graph, plan, default_arenas())
        require_sound_layout(plan)
        taken += sum(a != b for a, b in zip(plan.buffers.id, plan.buffers.takes_over, strict=True))
    assert (taken > 0) == (preset != "train_full")


@settings(deadline=None, max_examples=30)
@given(graphs(shuffled=None), st.sampled_from(MODES))
def test_plans_of_equal_arguments_have_equal_bytes(graph: Graph, mode: str) -> None:
    first, second = plan_of(graph, mode, "inference"), plan_of(graph, mode, "inference")
    assert encode_plan(first) == encode_plan(second)
    again = prepare_memory(
        graph, mode=mode, preset="inference", token=TOKEN, arenas=default_arenas(), order=first.order
    )
    assert again.digest == first.digest


@settings(deadline=None, max_examples=60)
@given(graphs(joint=True), st.sampled_from(PRESETS))
def test_joint_stack_moves_offsets_and_nothing_else(graph: Graph, preset: str) -> None:
    """Slots, addresses and takeovers are the replay identity; the joint stack is never larger than two slabs."""
    joint = plan_of(graph, "backward", preset)
    apart = plan_of(graph, "backward", preset, parse_arenas(["activations=layout:packed", "gradients=layout:packed"]))
    assert joint.slots == apart.slots
    assert replace(joint.buffers, offset=()) == replace(apart.buffers, offset=())
    assert (joint.arenas.bound, joint.arenas.slots) == (apart.arenas.bound, apart.arenas.slots)
    assert joint.metrics["peak_bytes.stack"] <= apart.metrics["peak_bytes.stack"]
    assert joint.metrics["bound_bytes.stack"] <= apart.metrics["bound_bytes.stack"]
    if not apart.arenas.slots[GRADIENTS]:
        assert joint.buffers == apart.buffers
        assert joint.arenas.peak == apart.arenas.peak
