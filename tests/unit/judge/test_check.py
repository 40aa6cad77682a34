"""Every rule of the judge has a sound plan that is broken in exactly that way."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.strategies import Builder
from tests.unit.ir.samples import (
    A1,
    A2,
    A3,
    G1,
    G3,
    OUT,
    TOKEN,
    C,
    K,
    S,
    W,
    X,
    arenas,
    edit,
    fitted,
    fused,
    graph,
    move,
    plan,
    row,
    without,
)
from tmmu.errors import PlanMismatch, PlanUnsound
from tmmu.ir.fault import Fault
from tmmu.ir.graph import Graph
from tmmu.ir.plan import MODES, PRESETS, Plan
from tmmu.ir.random_state import RANDOM_STATE_OPS
from tmmu.judge import ring_rules
from tmmu.judge.check import RULES, check_plan, judge
from tmmu.planner.prepare import prepare_memory

INFERENCE = plan()
WHOLE = plan("backward", "inference")
FORWARD = plan("forward", "train_full")
FITTED = fitted()
FUSED = fused()
SLOTS = plan("inference", "inference", "slots")
JOINT = plan("backward", "inference", "joint")
ACTIVATIONS, GRADIENTS = 2, 3


def swap_cells(base: Plan, column: str, buffer: int, partner: int) -> Plan:
    cells = getattr(base.buffers, column)
    first, second = row(base, buffer), row(base, partner)
    return edit(edit(base, f"buffers.{column}", cells[second], first), f"buffers.{column}", cells[first], second)


def forge_digest(base: Plan) -> Plan:
    copy = replace(base)
    copy.__dict__["digest"] = bytes(32)
    return copy


def gradients_at(base: Plan, offset: int) -> Plan:
    """Both gradients, which hold one place, at this offset."""
    return move(move(base, G3, offset), G1, offset)


def metric(base: Plan, name: str, value: int) -> Plan:
    return replace(base, metrics={**base.metrics, name: value})


MUTATIONS: tuple[tuple[str, str, Callable[[], Plan]], ...] = (
    ("columns", "a column too short", lambda: edit(INFERENCE, "buffers.offset", INFERENCE.buffers.offset[1:])),
    ("columns", "a number below zero", lambda: edit(INFERENCE, "buffers.offset", -64, 0)),
    ("columns", "a number of 65 bits", lambda: edit(INFERENCE, "slots.address", 2**64, 0)),
    ("columns", "a truth value as a number", lambda: edit(INFERENCE, "arenas.peak", True, 0)),
    ("columns", "text in the order", lambda: edit(INFERENCE, "order", ("0",))),
    ("words", "an unknown mode", lambda: replace(INFERENCE, mode="sideways")),
    ("words", "an unknown preset", lambda: replace(INFERENCE, preset="fast")),
    ("words", "an unknown layout", lambda: edit(INFERENCE, "arenas.layout", "tidy", ACTIVATIONS)),
    ("words", "a prefix of 7 bytes", lambda: replace(INFERENCE, token_prefix=TOKEN[:7])),
    ("arenas", "a segment changed", lambda: edit(INFERENCE, "arenas.segment", "stack", 0)),
    ("arenas", "parameters in a joint slab", lambda: edit(INFERENCE, "arenas.layout", "joint", 0)),
    ("arenas", "state packed", lambda: edit(INFERENCE, "arenas.layout", "packed", 1)),
    ("cells", "an arena that is none", lambda: edit(INFERENCE, "buffers.arena", 4, 0)),
    ("cells", "a slot that is none", lambda: edit(INFERENCE, "buffers.slot", 99, 0)),
    ("cells", "a buffer twice", lambda: edit(INFERENCE, "buffers.id", W, 1)),
    ("cells", "slots out of order", lambda: edit(INFERENCE, "slots.slot", 1, 0)),
    ("fit-form", "a kind that is none", lambda: edit(FITTED, "fit.rewrite.kind", "slower", 3)),
    ("fit-form", "a column too short", lambda: edit(FITTED, "fit.rewrite.kind", ("same",) * 7)),
    ("fit-form", "a range for what is no list", lambda: edit(FITTED, "fit.rewrite.part", (0, 1), 0)),
    ("fit-form", "a list's part without a range", lambda: edit(FITTED, "fit.rewrite.part", (), 6)),
    ("fit-form", "a range of no entries", lambda: edit(FITTED, "fit.rewrite.part", (2, 2), 6)),
    ("fit-form", "a range below zero", lambda: edit(FITTED, "fit.rewrite.part", (-1, 2), 6)),
    ("fit-form", "an origin that is no number", lambda: edit(FITTED, "fit.rewrite.origin", "0", 0)),
    ("fit-form", "an origin below zero", lambda: edit(FITTED, "fit.rewrite.origin", -1, 0)),
    ("fit-form", "a base's hash of 31 bytes", lambda: edit(FITTED, "fit.rewrite.base_hash", bytes(31))),
    ("fit-form", "a cost of 65 bits", lambda: edit(FITTED, "fit.cost.flops", 2**64)),
    ("fit-form", "a cost that is a truth value", lambda: edit(FITTED, "fit.cost.time_ppm", True)),
    ("fit-form", "a budget below zero", lambda: edit(FITTED, "fit.budget_bytes", -1)),
    ("fit-form", "a lever twice", lambda: edit(FITTED, "fit.levers", ("order", "order"))),
    ("fit-form", "a lever without a name", lambda: edit(FITTED, "fit.levers", ("",))),
    ("fit-form", "a hash of 31 bytes before fusing", lambda: edit(FUSED, "fit.fused.rewritten_hash", bytes(31))),
    ("fit-form", "a group twice", lambda: edit(FUSED, "fit.fused.apart", ("f" * 20,) * 2)),
    ("fit-form", "a group that is no digest", lambda: edit(FUSED, "fit.fused.apart", ("F" * 20,))),
    ("fit-form", "65 groups", lambda: edit(FUSED, "fit.fused.apart", tuple(f"{n:020x}" for n in range(65)))),
    ("ids", "a rewrite of fewer ops", lambda: shorter_rewrite(FITTED)),
    ("ids", "an op that is none", lambda: edit(INFERENCE, "order", 8, 0)),
    ("ids", "a buffer that is none", lambda: edit(INFERENCE, "buffers.id", 12, len(INFERENCE.buffers) - 1)),
    ("ids", "taking over a buffer that is none", lambda: edit(INFERENCE, "buffers.takes_over", 12, 3)),
    ("ir-hash", "another graph", lambda: replace(INFERENCE, ir_hash=bytes(32))),
    ("token-prefix", "another token", lambda: replace(INFERENCE, token_prefix=bytes(8))),
    ("digest", "a digest kept after a change", lambda: forge_digest(INFERENCE)),
    ("order", "an op dropped", lambda: edit(INFERENCE, "order", (0, 1, 3, 4, 5))),
    ("order", "an op run twice", lambda: edit(INFERENCE, "order", (0, 1, 1, 2, 3, 4, 5))),
    ("order", "an op of another stage", lambda: edit(INFERENCE, "order", (0, 1, 2, 3, 4, 5, 6))),
    ("read", "ops out of order", lambda: edit(INFERENCE, "order", (1, 0, 2, 3, 4, 5))),
    ("read", "the cache read before its update", lambda: edit(INFERENCE, "order", (0, 1, 3, 2, 4, 5))),
    ("read", "a result put over a live buffer", lambda: move(WHOLE, A2, 0)),
    ("read", "an argument that has no place", lambda: without(INFERENCE, A1)),
    ("write", "a result over an argument still read", lambda: move(INFERENCE, A3, 64)),
    ("write", "a result one alignment unit off", lambda: move(move(INFERENCE, OUT, 576), A3, 512)),
    ("write", "two results of one op over each other", lambda: move(INFERENCE, K, 0)),
    ("write", "taking over without saying so", lambda: edit(INFERENCE, "buffers.takes_over", OUT, row(INFERENCE, OUT))),
    ("read", "a gradient over an activation of its slab", lambda: gradients_at(JOINT, 0)),
    ("write", "a gradient over the activation that it is computed from", lambda: gradients_at(JOINT, 512)),
    ("write", "a result that has no place", lambda: without(INFERENCE, K)),
    ("output", "an output overwritten from another arena of its slab", lambda: gradients_at(JOINT, 512)),
    ("output", "an output overwritten", lambda: scratch_in_state(INFERENCE)),
    ("persistent", "the cache overwritten", lambda: scratch_in_state(INFERENCE)),
    ("saved", "a saved value overwritten", lambda: move(FORWARD, A1, FORWARD.buffers.offset[row(FORWARD, A3)])),
    ("persistent", "a parameter over another", lambda: move(INFERENCE, C, 0)),
    ("persistent", "a parameter half over another", lambda: move(INFERENCE, C, 16)),
    ("placed", "a buffer without a place", lambda: without(INFERENCE, K)),
    ("placed", "the caller's buffer placed", lambda: edit(INFERENCE, "buffers.id", X, 0)),
    ("arena", "a parameter on the stack", lambda: edit(INFERENCE, "buffers.arena", ACTIVATIONS, 0)),
    ("span", "a life cut short", lambda: edit(INFERENCE, "buffers.death", 3, row(INFERENCE, A1))),
    ("span", "a birth too late", lambda: edit(INFERENCE, "buffers.birth", 2, row(INFERENCE, A1))),
    ("takes-over", "taking over what lives on", lambda: edit(INFERENCE, "buffers.takes_over", A1, row(INFERENCE, A2))),
    ("takes-over", "overwriting where the preset does not", lambda: replace(INFERENCE, preset="train_full")),
    ("takes-over", "taking over what stands elsewhere", lambda: move(INFERENCE, A1, 64)),
    ("takes-over", "taking over from one unit further on", lambda: move(INFERENCE, OUT, 64)),
    ("padding", "bytes not rounded up", lambda: edit(INFERENCE, "buffers.bytes", 32, row(INFERENCE, A1))),
    ("padding", "a buffer one unit short", lambda: edit(INFERENCE, "buffers.bytes", 384, row(INFERENCE, A2))),
    ("alignment", "an offset between two units", lambda: move(INFERENCE, K, 513)),
    ("alignment", "no power of two", lambda: edit(INFERENCE, "arenas.alignment", 96, ACTIVATIONS)),
    ("alignment", "none at all", lambda: edit(INFERENCE, "arenas.alignment", 0, ACTIVATIONS)),
    ("overlap", "a dead result over a live buffer", lambda: move(INFERENCE, K, 448)),
    ("alignment", "two in one slab", lambda: edit(JOINT, "arenas.alignment", 128, GRADIENTS)),
    ("overlap", "a gradient and an activation of its slab, both alive", lambda: gradients_at(JOINT, 0)),
    ("slots", "two slots swapped", lambda: swap_cells(INFERENCE, "slot", K, A2)),
    ("slot-sharing", "a slot of a live buffer", lambda: edit(INFERENCE, "buffers.slot", 1, row(INFERENCE, K))),
    ("slot-sharing", "one slot for two parameters", lambda: edit(INFERENCE, "buffers.slot", 0, row(INFERENCE, C))),
    ("slot-count", "a slot too many", lambda: one_slot_more(INFERENCE)),
    ("slot-bytes", "a slot too small", lambda: edit(INFERENCE, "slots.bytes", 128, 3)),
    ("address", "one address twice", lambda: edit(INFERENCE, "slots.address", INFERENCE.slots.address[1], 0)),
    ("address", "an address of another token", lambda: edit(INFERENCE, "slots.address", 64, 0)),
    ("address", "an address between two units", lambda: edit(INFERENCE, "slots.address", 65, 0)),
    ("layout", "a gap between parameters", lambda: move(INFERENCE, C, 128)),
    ("layout", "a slot's buffer elsewhere", lambda: move(SLOTS, K, 704)),
    ("peak", "a peak too low", lambda: edit(INFERENCE, "arenas.peak", 640, ACTIVATIONS)),
    ("peak", "a peak too high", lambda: edit(INFERENCE, "arenas.peak", 768, ACTIVATIONS)),
    ("peak", "a joint arena's peak as if it were alone", lambda: edit(JOINT, "arenas.peak", 64, GRADIENTS)),
    ("peak", "the slab's size as each arena's peak", lambda: edit(JOINT, "arenas.peak", 768, GRADIENTS)),
    ("bound", "the slab's bound as an arena's own", lambda: edit(JOINT, "arenas.bound", 768, GRADIENTS)),
    ("page", "a page that is no power of two", lambda: edit(INFERENCE, "arenas.page", 4097, ACTIVATIONS)),
    ("bound", "a bound too low", lambda: edit(INFERENCE, "arenas.bound", 640, ACTIVATIONS)),
    (
        "proven",
        "a proof of a peak above the bound",
        lambda: move(edit(INFERENCE, "arenas.peak", 960, ACTIVATIONS), K, 768),
    ),
    ("proven", "a proof of a slab above its bound", lambda: slab_with_a_gap(JOINT)),
    ("capacity", "less room than the arena's end in its slab", lambda: edit(JOINT, "arenas.capacity", 639, GRADIENTS)),
    ("capacity", "less room than needed", lambda: edit(INFERENCE, "arenas.capacity", 703, ACTIVATIONS)),
    ("metrics", "the stack's peak as two peaks", lambda: metric(JOINT, "peak_bytes.stack", 768 + 640)),
    ("metrics", "the stack's bound as two bounds", lambda: metric(JOINT, "bound_bytes.stack", 768 + 64)),
    ("metrics", "a metric changed", lambda: metric(INFERENCE, "max_live", 7)),
    ("metrics", "a metric more", lambda: metric(INFERENCE, "luck", 7)),
    ("metrics", "a ratio changed", lambda: metric(INFERENCE, "activation_retention_ppm", 1)),
)


OTHER_GRAPHS = {"graph", "versions", "random"}
"""Rules that are broken by tests of their own, as their mutation needs another graph."""


def scratch_in_state(base: Plan) -> Plan:
    """Op 4's scratch in the bytes of the cache, which op 3 read for the last time, but the caller will read."""
    base = edit(base, "buffers.arena", 1, row(base, K))
    return move(edit(base, "buffers.slot", 0, row(base, K)), K, 0)


def slab_with_a_gap(base: Plan) -> Plan:
    """The gradients above all else: 64 bytes more than are ever live."""
    high = edit(gradients_at(base, 768), "arenas.peak", 832, GRADIENTS)
    return metric(metric(high, "peak_bytes.stack", 832), "peak_bytes.gradients", 832)


def one_slot_more(base: Plan) -> Plan:
    more = edit(base, "arenas.slots", 4, ACTIVATIONS)
    table = more.slots
    columns = {"arena": 2, "slot": 3, "address": 64, "bytes": 0}
    return replace(more, slots=type(table)(**{name: (*getattr(table, name), cell) for name, cell in columns.items()}))


def shorter_rewrite(base: Plan) -> Plan:
    """One row fewer in each column of what the graph was made of."""
    assert base.fit is not None
    rows = {name: getattr(base.fit.rewrite, name)[:-1] for name in ("origin", "kind", "part")}
    return edit(base, "fit.rewrite", replace(base.fit.rewrite, **rows))


def rules_of(faults: tuple[Fault, ...]) -> set[str]:
    return {fault.rule for fault in faults}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("layout", ["joint", "packed", "slots", "sequential"])
def test_sound_plans_pass(mode: str, preset: str, layout: str) -> None:
    base = plan(mode, preset, layout)
    assert check_plan(graph(), base, token=TOKEN) == ()
    assert check_plan(graph(), base) == ()
    judge(graph(), base, token=TOKEN)
    assert check_plan(graph(), fitted(base), token=TOKEN) == ()


@pytest.mark.parametrize(("rule", "_text", "broken"), MUTATIONS, ids=[f"{rule}: {text}" for rule, text, _ in MUTATIONS])
def test_each_broken_plan_breaks_its_rule(rule: str, _text: str, broken: Callable[[], Plan]) -> None:
    faults = check_plan(graph(), broken(), token=TOKEN)
    assert rule in rules_of(faults)


def test_every_rule_has_a_mutation() -> None:
    rules = [name for rule in RULES for name in rule.rules]
    assert len(rules) == len(set(rules))
    assert set(rules) - set(ring_rules.NAMES) == {rule for rule, _, _ in MUTATIONS} | OTHER_GRAPHS
    assert all(len(rule.demands) > 10 for rule in RULES)


def test_illegal_graph_is_a_fault() -> None:
    broken = edit(graph(), "values.offset", 8, 0)
    assert rules_of(check_plan(broken, INFERENCE)) == {"graph"}


def fault_of(base: Plan, rule: str, *, of: Graph | None = None) -> Fault:
    return next(fault for fault in check_plan(of or graph(), base, token=TOKEN) if fault.rule == rule)


def test_clobbered_read_names_op_buffer_bytes_and_culprit() -> None:
    """A2 is put over A1; op 3 reads A1 last, so nothing is lost there. In the whole step, op 7 reads A1."""
    fault = fault_of(move(WHOLE, A2, 0), "read")
    assert (fault.op, fault.buffer, fault.arena, fault.bytes, fault.by) == (7, A1, "activations", (0, 32), 3)
    assert "bytes 0 to 32 of activations hold buffer 6 as op 3 wrote it" in fault.what


def test_stale_read_names_the_last_writer() -> None:
    fault = fault_of(edit(INFERENCE, "order", (0, 1, 3, 2, 4, 5)), "read")
    assert (fault.op, fault.buffer, fault.by) == (3, S, None)
    assert "nothing has written it yet" in fault.what


def test_clobbered_state_names_the_culprit() -> None:
    fault = fault_of(scratch_in_state(INFERENCE), "persistent")
    assert (fault.buffer, fault.arena, fault.bytes, fault.by) == (S, "state", (0, 64), 4)


def test_mirrored_gradient_needs_saved_values() -> None:
    """No backward ops: op 1 saves A, its gradient is position 2T-1-1."""
    b = Builder()
    x, a, k, y = (b.buffer(role) for role in ("input", "activation", "scratch", "activation"))
    b.op([x], [a], saves=[a])
    b.op([a], [k])
    b.op([x], [y])
    made_graph = b.build([y])
    base = prepare_memory(made_graph, mode="backward", preset="train_full", token=TOKEN, arenas=arenas())
    assert check_plan(made_graph, base) == ()
    fault = fault_of(move(base, y, base.buffers.offset[row(base, a)]), "saved", of=made_graph)
    assert (fault.op, fault.buffer, fault.by) == (0, a, 2)
    assert "at 5, the gradient of op 0" in fault.what


def test_recomputed_values_are_released_by_the_preset_alone() -> None:
    """A2 is saved and recomputable: K may stand on it in ``remat_enabled``, not in ``inference``."""
    retained, released = plan("forward", "inference"), plan("forward", "remat_enabled")
    assert retained.buffers.death[row(retained, A2)] == 6
    assert released.buffers.death[row(released, A2)] == 5
    wrong = replace(released, preset="inference")
    assert "span" in rules_of(check_plan(graph(), wrong))


def test_update_out_of_turn_is_a_fault_even_where_nothing_reads() -> None:
    b = Builder()
    x, s = b.buffer("input"), b.buffer("state")
    b.op([x], [], [(s, b.whole[s])])
    b.op([x], [], [(s, b.whole[s])])
    made_graph = b.build()
    base = prepare_memory(made_graph, mode="inference", preset="inference", token=TOKEN, arenas=arenas())
    assert check_plan(made_graph, base) == ()
    assert "versions" in rules_of(check_plan(made_graph, replace(base, order=(1, 0))))


@pytest.mark.parametrize("target", RANDOM_STATE_OPS)
def test_random_state_ops_keep_their_position(target: str) -> None:
    b = Builder()
    base = [b.buffer("activation", (8,)) for _ in range(3)]
    for buffer in base:
        b.op([], [buffer])
    loose = b.build(base)
    fixed = replace(loose, ops=replace(loose.ops, target=("aten.rand.default", target, "aten.rand.default")))
    for order in ((1, 0, 2), (0, 2, 1), (2, 1, 0)):
        assert not check_plan(loose, plan_in_order(loose, order))
        faults = check_plan(fixed, replace(plan_in_order(loose, order), ir_hash=fixed.ir_hash))
        assert rules_of(faults) == {"random"}
        assert {fault.op for fault in faults} == {1}
    assert not check_plan(fixed, plan_in_order(fixed, (0, 1, 2)))


def plan_in_order(graph: Graph, order: tuple[int, ...]) -> Plan:
    return prepare_memory(graph, mode="inference", preset="inference", token=TOKEN, arenas=arenas("joint"), order=order)


def test_judge_raises_by_who_must_act() -> None:
    judge(graph(), INFERENCE)
    with pytest.raises(PlanMismatch, match="is for graph"):
        judge(graph(), replace(INFERENCE, ir_hash=bytes(32)))
    with pytest.raises(PlanMismatch, match="token"):
        judge(graph(), INFERENCE, token=bytes(64))
    with pytest.raises(PlanMismatch, match="token"):
        judge(graph(), INFERENCE, token=TOKEN[:63])
    with pytest.raises(PlanUnsound) as caught:
        judge(graph(), move(INFERENCE, C, 0))
    assert caught.value.fields["count"] == len(check_plan(graph(), move(INFERENCE, C, 0)))
    listed = caught.value.fields["faults"]
    assert isinstance(listed, list)
    assert isinstance(listed[0], dict)
    assert listed[0]["buffer"] == C or listed[0]["buffer"] == W


def test_error_of_many_faults_is_short() -> None:
    base = edit(INFERENCE, "buffers.offset", tuple(1 for _ in INFERENCE.buffers.offset))
    with pytest.raises(PlanUnsound) as caught:
        judge(graph(), base)
    assert len(str(caught.value)) < 400


def test_output_that_no_op_writes_must_be_intact() -> None:
    """The parameter itself is returned; a scratch buffer on its bytes is a fault of the output too."""
    b = Builder()
    x, w, k = b.buffer("input"), b.buffer("parameter"), b.buffer("scratch")
    b.op([x], [k])
    made_graph = b.build([w])
    base = prepare_memory(made_graph, mode="inference", preset="inference", token=TOKEN, arenas=arenas())
    assert check_plan(made_graph, base) == ()
    broken = edit(edit(base, "buffers.arena", 0, row(base, k)), "buffers.slot", 0, row(base, k))
    assert fault_of(broken, "output", of=made_graph).by == 0


def test_huge_numbers_neither_hang_nor_crash() -> None:
    top = 2**64 - 1
    base = edit(INFERENCE, "arenas.slots", top, ACTIVATIONS)
    assert rules_of(check_plan(graph(), base)) == {"cells"}
    base = move(edit(INFERENCE, "buffers.death", top, 0), K, top - 63)
    assert {"span", "peak"} <= rules_of(check_plan(graph(), base))


def test_arenas_share_bytes_only_where_both_are_joint() -> None:
    """The gradients at 0, where A1 lives: sound in a slab of their own, a fault in the slab of the activations."""
    shared = gradients_at(JOINT, 0)
    faults = {fault.rule for fault in check_plan(graph(), shared)} - {"peak", "metrics"}
    assert faults == {"read", "overlap"}
    fault = fault_of(shared, "read")
    assert (fault.op, fault.buffer, fault.arena, fault.bytes, fault.by) == (7, A1, "activations", (0, 32), 6)
    assert "buffers 4 and 10 share bytes 0 to 64 of gradients at 6" in fault_of(shared, "overlap").what
    for alone in (ACTIVATIONS, GRADIENTS):
        apart = edit(edit(shared, "arenas.layout", "packed", alone), "arenas.peak", 64, GRADIENTS)
        apart = metric(metric(apart, "peak_bytes.gradients", 64), "peak_bytes.stack", 832)
        assert check_plan(graph(), metric(apart, "bound_bytes.stack", 832)) == ()


def test_slab_is_proven_as_a_whole() -> None:
    """Its arenas may be above their own bounds in a slab that is minimal; in one that is not, none is proven."""
    assert WHOLE.buffers.arena[row(WHOLE, G1)] == GRADIENTS
    assert JOINT.arenas.proven[GRADIENTS]
    assert JOINT.arenas.peak[GRADIENTS] > JOINT.arenas.bound[GRADIENTS]
    loose = slab_with_a_gap(JOINT)
    assert [fault.arena for fault in check_plan(graph(), loose)] == ["activations", "gradients"]
    modest = edit(edit(loose, "arenas.proven", False, ACTIVATIONS), "arenas.proven", False, GRADIENTS)
    assert check_plan(graph(), modest) == ()


def test_slab_has_one_alignment_even_where_every_offset_obeys_both() -> None:
    faults = check_plan(graph(), edit(JOINT, "arenas.alignment", 32, GRADIENTS))
    alignment_faults = [fault for fault in faults if fault.rule == "alignment"]
    assert [(fault.arena, fault.what) for fault in alignment_faults] == [
        ("gradients", "gradients shares a slab with activations, but not its alignment")
    ]


def test_sequential_arena_of_activations_is_bounded_by_what_lives_at_once() -> None:
    planned = plan("inference", "inference", "sequential")
    packed = plan("inference", "inference", "packed")
    assert planned.arenas.bound[ACTIVATIONS] == packed.arenas.bound[ACTIVATIONS] < planned.arenas.peak[ACTIVATIONS]
    assert not planned.arenas.proven[ACTIVATIONS]
    assert planned.arenas.proven[0]
    assert planned.arenas.bound[0] == planned.arenas.peak[0]
    assert not check_plan(graph(), planned, token=TOKEN)
    claimed = edit(planned, "arenas.proven", True, ACTIVATIONS)
    assert [fault.rule for fault in check_plan(graph(), claimed, token=TOKEN)] == ["proven"]
