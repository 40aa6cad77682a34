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


def forced(graph: Graph, mode: str, *pairs: tuple[int, int], same_place: bool = True) -> Plan:
    """A plan of ``graph`` that makes each first buffer take over the second, and stand where that one stands."""
    made = prepare_memory(graph, mode=mode, preset="train_full", token=TOKEN, arenas=arenas())
    made = replace(made, preset="inference")
    for new, old in pairs:
        at = row(made, new)
        made = edit(made, "buffers.takes_over", old, at)
        if same_place:
            made = edit(made, "buffers.offset", made.buffers.offset[row(made, old)], at)
            made = edit(made, "buffers.slot", made.buffers.slot[row(made, old)], at)
    return made


def faults(graph: Graph, made: Plan) -> dict[str, list[Fault]]:
    found: dict[str, list[Fault]] = {}
    for fault in check_plan(graph, made):
        found.setdefault(fault.rule, []).append(fault)
    return found


def chain(**extra: object) -> tuple[Graph, int, int]:
    """x -> a -> y, the last step elementwise, and ``extra`` for that step."""
    b = Builder()
    x, a, y = b.buffer("input", (4, 4)), b.buffer("activation", (4, 4)), b.buffer("activation", (4, 4))
    b.op([x], [a])
    b.op([a], [y], **({"in_place": [(y, a)]} | extra))  # type: ignore[arg-type]
    return b.build([y]), y, a


def test_what_may_be_is_sound_in_bytes_and_by_definition() -> None:
    graph, y, a = chain()
    assert not {"takes-over", "write", "read", "output"} & faults(graph, forced(graph, "inference", (y, a))).keys()


def test_the_op_must_list_the_pair() -> None:
    graph, y, a = chain(in_place=[])
    found = faults(graph, forced(graph, "inference", (y, a)))
    assert "the op lists no such pair" in found["takes-over"][0].what
    assert "still reads" in found["write"][0].what


def test_the_op_must_read_it_by_that_window_alone() -> None:
    """y = a + a.T cannot be computed in the bytes of a."""
    b = Builder()
    x, a, y = b.buffer("input", (4, 4)), b.buffer("activation", (4, 4)), b.buffer("activation", (4, 4))
    b.op([x], [a])
    b.op([a, (a, TRANSPOSED)], [y], in_place=[(y, a)])
    graph = b.build([y])
    found = faults(graph, forced(graph, "inference", (y, a)))
    assert "another window" in found["takes-over"][0].what
    assert "still reads" in found["write"][0].what


def test_it_must_die_there() -> None:
    b = Builder()
    x, a, y, z = b.buffer("input"), *(b.buffer("activation") for _ in range(3))
    b.op([x], [a])
    b.op([a], [y], in_place=[(y, a)])
    b.op([a, y], [z])
    graph = b.build([z])
    found = faults(graph, forced(graph, "inference", (y, a)))
    assert f"buffer {a} lives on to 3" in found["takes-over"][0].what
    assert found["read"][0].by == 1


@pytest.mark.parametrize(("mode", "rule"), [("inference", "output"), ("forward", "saved")])
def test_it_must_not_be_needed_after_the_last_op(mode: str, rule: str) -> None:
    """The last op's argument dies at T, as everything does; it is an output, or kept for the gradient."""
    b = Builder()
    x, a, y = b.buffer("input"), b.buffer("activation"), b.buffer("activation")
    b.op([x], [a], saves=[a])
    b.op([a], [y], in_place=[(y, a)])
    graph = b.build([y, a] if rule == "output" else [y])
    found = faults(graph, forced(graph, mode, (y, a)))
    assert "read after the last op" in found["takes-over"][0].what
    assert found[rule][0].by == 1


def test_sizes_must_be_equal() -> None:
    """Padded they are: 64 bytes each, but one has a tail."""
    graph, y, a = chain()
    larger = edit(edit(graph, "buffers.bytes", 65, a), "ops.overwrites", ((), ()))
    found = faults(larger, forced(larger, "inference", (y, a)))
    assert any("sizes differ" in fault.what for fault in found["takes-over"])


def test_one_buffer_is_taken_over_once() -> None:
    """Two results in the bytes of one argument."""
    b = Builder()
    x, a, y, z = b.buffer("input"), *(b.buffer("activation") for _ in range(3))
    b.op([x], [a])
    b.op([a], [y, z], in_place=[(y, a), (z, a)])
    graph = b.build([y, z])
    found = faults(graph, forced(graph, "inference", (y, a), (z, a)))
    assert "taken over already" in found["takes-over"][0].what
    assert "also writes" in found["write"][0].what
    assert not faults(graph, forced(graph, "inference", (y, a))).keys() & {"takes-over", "write"}


def test_it_must_be_born_there() -> None:
    b = Builder()
    x, a, y = b.buffer("input"), b.buffer("activation"), b.buffer("activation")
    b.op([x], [y])
    b.op([x], [a])
    b.op([a, y], [], [(y, b.whole[y])])
    graph = b.build([y])
    found = faults(graph, forced(graph, "inference", (y, a)))
    assert "takes-over" in found


def test_what_persists_takes_over_nothing() -> None:
    b = Builder()
    s, t = b.buffer("state"), b.buffer("state")
    b.op([s], [], [(t, b.whole[t])])
    graph = b.build([t])
    assert "takes-over" in faults(graph, forced(graph, "inference", (t, s)))


def test_a_ring_of_takeovers_is_a_fault_and_ends() -> None:
    graph, y, a = chain()
    assert "takes-over" in faults(graph, forced(graph, "inference", (y, a), (a, y)))


def test_slot_and_offset_must_be_the_same() -> None:
    graph, y, a = chain()
    found = faults(graph, forced(graph, "inference", (y, a), same_place=False))
    assert "slots or offsets differ" in found["takes-over"][0].what


def test_a_stale_window_is_stale_where_its_bytes_are_untouched() -> None:
    """Op 1 changes the second half of s, so the program has a new version; the first half's bytes are as they were."""
    b = Builder()
    s, a = b.buffer("state", (16,)), b.buffer("activation")
    b.op([(s, (0, (8,), (1,), "float32"))], [a])
    b.op([a], [], [(s, (32, (8,), (1,), "float32"))])
    b.op([a], [], [(s, (32, (8,), (1,), "float32"))])
    graph = b.build([s])
    made = prepare_memory(graph, mode="inference", preset="train_full", token=TOKEN, arenas=arenas())
    assert check_plan(graph, made) == ()
    other = b.buffer("input")
    b.op([(s, (0, (8,), (1,), "float32")), other], [b.buffer("activation")])
    longer = b.build([s])
    good = prepare_memory(longer, mode="inference", preset="train_full", token=TOKEN, arenas=arenas())
    found = faults(longer, replace(good, order=(0, 1, 3, 2)))
    assert found["read"][0].op == 3
    assert "op 1 wrote it last" in found["read"][0].what


def test_the_callers_input_has_versions_too() -> None:
    b = Builder()
    x, a = b.buffer("input"), b.buffer("activation")
    b.op([x], [a])
    b.op([], [], [(x, b.whole[x])])
    graph = b.build([a, x])
    made = prepare_memory(graph, mode="inference", preset="train_full", token=TOKEN, arenas=arenas())
    assert check_plan(graph, made) == ()
    assert faults(graph, replace(made, order=(1, 0)))["read"][0].by == 1


def test_a_newcomer_from_below_and_from_above_is_seen() -> None:
    """Both are live and partly over each other: one starts below, or above, the other."""
    b = Builder()
    x, a, y = b.buffer("input"), b.buffer("activation", (64,)), b.buffer("activation", (64,))
    b.op([x], [a])
    b.op([x], [y])
    graph = b.build([a, y])
    made = prepare_memory(graph, mode="inference", preset="train_full", token=TOKEN, arenas=arenas())
    for first, second, shared in ((0, 64, (64, 256)), (64, 0, (64, 256)), (0, 192, (192, 256))):
        moved = edit(edit(made, "buffers.offset", first, row(made, a)), "buffers.offset", second, row(made, y))
        fault = faults(graph, moved)["overlap"][0]
        assert (fault.buffer, fault.bytes) == (y, shared)
