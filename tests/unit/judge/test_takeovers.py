"""Each reason why one buffer may not be computed in the bytes of another has a plan that does it all the same."""

from dataclasses import replace

import pytest

from tests.strategies import Builder
from tests.unit.ir.samples import TOKEN, arenas, edit, row
from tmmu.ir.fault import Fault
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.judge.check import check_plan
from tmmu.planner.prepare import prepare_memory

TRANSPOSED = (0, (4, 4), (1, 4), "float32")


def force_takeovers(graph: Graph, mode: str, *pairs: tuple[int, int], same_place: bool = True) -> Plan:
    """A plan of ``graph`` that makes each first buffer take over the second, and stand where that one stands."""
    base = prepare_memory(graph, mode=mode, preset="train_full", token=TOKEN, arenas=arenas())
    base = replace(base, preset="inference")
    for new, old in pairs:
        new_row = row(base, new)
        base = edit(base, "buffers.takes_over", old, new_row)
        if same_place:
            base = edit(base, "buffers.offset", base.buffers.offset[row(base, old)], new_row)
            base = edit(base, "buffers.slot", base.buffers.slot[row(base, old)], new_row)
    return base


def faults(graph: Graph, base: Plan) -> dict[str, list[Fault]]:
    by_rule: dict[str, list[Fault]] = {}
    for fault in check_plan(graph, base):
        by_rule.setdefault(fault.rule, []).append(fault)
    return by_rule


def chain(**extra: object) -> tuple[Graph, int, int]:
    """x -> a -> y, the last step elementwise, and ``extra`` for that step."""
    b = Builder()
    x, a, y = b.buffer("input", (4, 4)), b.buffer("activation", (4, 4)), b.buffer("activation", (4, 4))
    b.op([x], [a])
    b.op([a], [y], **({"in_place": [(y, a)]} | extra))  # type: ignore[arg-type]
    return b.build([y]), y, a


def test_takeover_of_a_listed_pair_is_sound() -> None:
    graph, y, a = chain()
    by_rule = faults(graph, force_takeovers(graph, "inference", (y, a)))
    assert not {"takes-over", "write", "read", "output"} & by_rule.keys()


def test_takeover_needs_a_listed_pair() -> None:
    graph, y, a = chain(in_place=[])
    by_rule = faults(graph, force_takeovers(graph, "inference", (y, a)))
    assert "the op lists no such pair" in by_rule["takes-over"][0].what
    assert "still reads" in by_rule["write"][0].what


def test_takeover_needs_the_pairs_window_alone() -> None:
    """y = a + a.T cannot be computed in the bytes of a."""
    b = Builder()
    x, a, y = b.buffer("input", (4, 4)), b.buffer("activation", (4, 4)), b.buffer("activation", (4, 4))
    b.op([x], [a])
    b.op([a, (a, TRANSPOSED)], [y], in_place=[(y, a)])
    graph = b.build([y])
    by_rule = faults(graph, force_takeovers(graph, "inference", (y, a)))
    assert "another window" in by_rule["takes-over"][0].what
    assert "still reads" in by_rule["write"][0].what


def test_taken_over_buffer_must_die_at_the_op() -> None:
    b = Builder()
    x, a, y, z = b.buffer("input"), *(b.buffer("activation") for _ in range(3))
    b.op([x], [a])
    b.op([a], [y], in_place=[(y, a)])
    b.op([a, y], [z])
    graph = b.build([z])
    by_rule = faults(graph, force_takeovers(graph, "inference", (y, a)))
    assert f"buffer {a} lives on to 3" in by_rule["takes-over"][0].what
    assert by_rule["read"][0].by == 1


@pytest.mark.parametrize(("mode", "rule"), [("inference", "output"), ("forward", "saved")])
def test_taken_over_buffer_must_not_be_live_out(mode: str, rule: str) -> None:
    """The last op's argument dies at T, as everything does; it is an output, or kept for the gradient."""
    b = Builder()
    x, a, y = b.buffer("input"), b.buffer("activation"), b.buffer("activation")
    b.op([x], [a], saves=[a])
    b.op([a], [y], in_place=[(y, a)])
    graph = b.build([y, a] if rule == "output" else [y])
    by_rule = faults(graph, force_takeovers(graph, mode, (y, a)))
    assert "read after the last op" in by_rule["takes-over"][0].what
    assert by_rule[rule][0].by == 1


def test_takeover_needs_equal_sizes() -> None:
    """Padded they are: 64 bytes each, but one has a tail."""
    graph, y, a = chain()
    larger = edit(edit(graph, "buffers.bytes", 65, a), "ops.overwrites", ((), ()))
    by_rule = faults(larger, force_takeovers(larger, "inference", (y, a)))
    assert any("sizes differ" in fault.what for fault in by_rule["takes-over"])


def test_buffer_is_taken_over_once() -> None:
    """Two results in the bytes of one argument."""
    b = Builder()
    x, a, y, z = b.buffer("input"), *(b.buffer("activation") for _ in range(3))
    b.op([x], [a])
    b.op([a], [y, z], in_place=[(y, a), (z, a)])
    graph = b.build([y, z])
    by_rule = faults(graph, force_takeovers(graph, "inference", (y, a), (z, a)))
    assert "taken over already" in by_rule["takes-over"][0].what
    assert "also writes" in by_rule["write"][0].what
    assert not faults(graph, force_takeovers(graph, "inference", (y, a))).keys() & {"takes-over", "write"}


def test_taking_buffer_must_be_born_at_the_op() -> None:
    b = Builder()
    x, a, y = b.buffer("input"), b.buffer("activation"), b.buffer("activation")
    b.op([x], [y])
    b.op([x], [a])
    b.op([a, y], [], [(y, b.whole[y])])
    graph = b.build([y])
    by_rule = faults(graph, force_takeovers(graph, "inference", (y, a)))
    assert "takes-over" in by_rule


def test_persistent_buffers_take_over_nothing() -> None:
    b = Builder()
    s, t = b.buffer("state"), b.buffer("state")
    b.op([s], [], [(t, b.whole[t])])
    graph = b.build([t])
    assert "takes-over" in faults(graph, force_takeovers(graph, "inference", (t, s)))


def test_cycle_of_takeovers_is_a_fault_and_ends() -> None:
    graph, y, a = chain()
    assert "takes-over" in faults(graph, force_takeovers(graph, "inference", (y, a), (a, y)))


def test_takeover_needs_one_slot_and_offset() -> None:
    graph, y, a = chain()
    by_rule = faults(graph, force_takeovers(graph, "inference", (y, a), same_place=False))
    assert "slots or offsets differ" in by_rule["takes-over"][0].what


def test_window_of_an_old_version_is_stale_even_with_its_bytes_intact() -> None:
    """Op 1 changes the second half of s, so the program has a new version; the first half's bytes are as they were."""
    b = Builder()
    s, a = b.buffer("state", (16,)), b.buffer("activation")
    b.op([(s, (0, (8,), (1,), "float32"))], [a])
    b.op([a], [], [(s, (32, (8,), (1,), "float32"))])
    b.op([a], [], [(s, (32, (8,), (1,), "float32"))])
    graph = b.build([s])
    base = prepare_memory(graph, mode="inference", preset="train_full", token=TOKEN, arenas=arenas())
    assert check_plan(graph, base) == ()
    extra_input = b.buffer("input")
    b.op([(s, (0, (8,), (1,), "float32")), extra_input], [b.buffer("activation")])
    longer = b.build([s])
    good = prepare_memory(longer, mode="inference", preset="train_full", token=TOKEN, arenas=arenas())
    by_rule = faults(longer, replace(good, order=(0, 1, 3, 2)))
    assert by_rule["read"][0].op == 3
    assert "op 1 wrote it last" in by_rule["read"][0].what


def test_input_buffers_have_versions() -> None:
    b = Builder()
    x, a = b.buffer("input"), b.buffer("activation")
    b.op([x], [a])
    b.op([], [], [(x, b.whole[x])])
    graph = b.build([a, x])
    base = prepare_memory(graph, mode="inference", preset="train_full", token=TOKEN, arenas=arenas())
    assert check_plan(graph, base) == ()
    assert faults(graph, replace(base, order=(1, 0)))["read"][0].by == 1


def test_overlap_is_found_from_below_and_from_above() -> None:
    """Both are live and partly over each other: one starts below, or above, the other."""
    b = Builder()
    x, a, y = b.buffer("input"), b.buffer("activation", (64,)), b.buffer("activation", (64,))
    b.op([x], [a])
    b.op([x], [y])
    graph = b.build([a, y])
    base = prepare_memory(graph, mode="inference", preset="train_full", token=TOKEN, arenas=arenas())
    for first, second, shared in ((0, 64, (64, 256)), (64, 0, (64, 256)), (0, 192, (192, 256))):
        moved = edit(edit(base, "buffers.offset", first, row(base, a)), "buffers.offset", second, row(base, y))
        fault = faults(graph, moved)["overlap"][0]
        assert (fault.buffer, fault.bytes) == (y, shared)
