from dataclasses import replace

import pytest

from tests.strategies import random_graph, seeded
from tests.unit.ir.samples import A0, A1, A2, OUT, TOKEN, C, K, S, W, arenas, described_graph, edit, graph, plan
from tmmu.ir.graph import Graph
from tmmu.ir.ring import Block, Copy, Member, Ring, Visit, VisitRef
from tmmu.planner.prepare import prepare_memory
from tmmu.report.contents import ReportContents, report_contents
from tmmu.report.ring_bars import RingBar, ring_chart


def described() -> Graph:
    """The sample with names, modules and lines: parameter ``net.0.weight``, ops of ``net.N`` at ``net.py:N``."""
    base = described_graph()
    names = tuple("net.0.weight" if buffer == W else "" for buffer in range(len(base.buffers)))
    count = len(base.ops)
    ops = replace(
        base.notes.ops,
        module=tuple(f"net.{op}" for op in range(count)),
        source=tuple(f"net.py:{op}" for op in range(count)),
    )
    return replace(base, notes=replace(base.notes, name="net", buffers=names, ops=ops))


def contents() -> ReportContents:
    return report_contents("sample", plan(), described())


def test_buffers_are_the_plan_s_rows() -> None:
    placed = plan().buffers
    shown = contents().buffers
    for column in ("id", "arena", "offset", "bytes", "birth", "death"):
        assert tuple(getattr(row, column) for row in shown) == getattr(placed, column), column


def test_buffer_says_what_the_graph_says_of_it() -> None:
    rows = {row.id: row for row in contents().buffers}
    state, activation, taker = rows[S], rows[A2], rows[A1]
    assert (state.role, state.dtype, state.windows) == ("state", "float32", ("float32[16]", "float32[8]"))
    assert (state.writers, state.readers, state.op) == ((2,), (2, 3), "")
    assert (activation.size, activation.bytes, activation.birth, activation.death) == (400, 448, 3, 5)
    assert (activation.op, activation.module, activation.source) == ("test.op", "net.3", "net.py:3")
    assert (activation.writers, activation.readers) == ((3,), (4,))
    assert (taker.takes_over, rows[A0].takes_over) == (A0, None)
    assert rows[K].readers == ()


def test_weight_has_the_module_of_its_name_and_no_maker() -> None:
    rows = {row.id: row for row in contents().buffers}
    weight = rows[W]
    assert (weight.name, weight.module, weight.op, weight.source) == ("net.0.weight", "net.0", "", "")
    assert (rows[C].module, rows[C].readers) == ("", (5,))


def test_address_is_that_of_the_slot() -> None:
    base, shown = plan(), contents()
    for row, buffer in enumerate(shown.buffers):
        slot = (shown.slots.arena[buffer.slot_row], shown.slots.slot[buffer.slot_row])
        assert slot == (base.buffers.arena[row], base.buffers.slot[row])


def test_slab_is_fullest_where_it_was_worked_out_by_hand() -> None:
    stack, state, text = contents().slabs
    assert (stack.name, stack.segment, stack.bytes, stack.bound) == ("activations", "stack", 704, 704)
    assert stack.levels == ((0, 64), (3, 512), (4, 704), (5, 64), (6, 0))
    assert (stack.peak_position, stack.peak_bytes) == (4, 704)
    live = [contents().buffers[row].id for row in stack.live]
    assert live == [A2, K, OUT - 1], "largest first; the place of A3 and OUT counts once, under who has it then"
    assert (state.peak_bytes, text.peak_bytes) == (64, 128)


def test_joint_arenas_are_one_slab_with_the_capacities_of_each() -> None:
    joint = plan(mode="backward", preset="train_full", layout="joint")
    joint = edit(joint, "arenas.capacity", 4096, 2)
    slab = report_contents("joint", joint, graph()).slabs[0]
    assert (slab.name, slab.arenas) == ("activations and gradients", (2, 3))
    assert slab.capacities == (("activations", 4096),)
    assert slab.bound == slab.peak_bytes == max(size for _, size in slab.levels)


def test_figures_add_up() -> None:
    figures = contents().figures
    assert (figures.text, figures.data, figures.stack, figures.inputs) == (128, 64, 704, 32)
    assert figures.total == 928
    assert (figures.model, figures.target, figures.ops, figures.buffers) == ("net", "cpu", 6, 9)


def test_eager_is_told_by_its_own_calls() -> None:
    assert contents().eager is None  # the trace is of a step, and the plan of its forward half
    eager = report_contents("sample", plan(mode="backward", preset="train_full"), described()).eager
    assert eager is not None
    assert eager.levels == ((0, 64), (1, 320), (3, 256), (4, 272), (5, 256))
    assert (eager.calls, eager.figures.position, eager.figures.stack_bytes) == (6, 1, 320)
    assert [(row.bytes, row.module) for row in eager.live] == [(256, "block"), (64, "")]


def test_plan_alone_has_places_and_no_names() -> None:
    alone = report_contents("alone", plan(), None)
    assert alone.eager is None
    assert alone.positions.op == ()
    assert alone.figures.inputs is None
    assert {row.role for row in alone.buffers} == {"parameters", "state", "activations"}
    assert {(row.name, row.windows, row.writers, row.size) for row in alone.buffers} == {("", (), (), None)}
    assert alone.slabs == contents().slabs


def test_contents_are_told_again_in_the_same_way() -> None:
    assert contents() == contents()


@pytest.mark.parametrize("seed", range(8))
def test_levels_are_the_sums_of_what_is_placed(seed: int) -> None:
    graph = random_graph(seeded(seed), ops=40)
    placed = prepare_memory(graph, mode="backward", preset="train_full", token=TOKEN, arenas=arenas())
    shown = report_contents("random", placed, graph)
    for slab in shown.slabs:
        rows = [row for row in shown.buffers if row.arena in slab.arenas]
        assert {row.takes_over for row in rows} == {None}, "train_full overwrites nothing"
        for at, size in slab.levels:
            assert sum(row.bytes for row in rows if row.birth <= at < row.death) == size
        assert all(row.offset + row.bytes <= slab.bytes for row in rows)
        assert sum(shown.buffers[row].bytes for row in slab.live) == slab.peak_bytes


def small_ring() -> Ring:
    """A resident block and two that stream: the copy of the first visit is issued in the pass before."""
    blocks = tuple(
        Block(name=name, bytes=64, resident=name == "tied", address=address, members=(Member(buffer=W, offset=0),))
        for name, address in (("tied", 0), ("one", 64), ("two", 128))
    )
    visits = (Visit(block=0, first=0, last=5), Visit(block=1, first=1, last=2), Visit(block=2, first=4, last=4))
    copies = (
        Copy(visit=1, start=VisitRef(visit=2, lag=1), waits=()),
        Copy(visit=2, start=VisitRef(visit=1, lag=0), waits=()),
    )
    return Ring(policy="cyclic", capacity=256, alignment=64, depth=1, blocks=blocks, visits=visits, copies=copies)


def test_ring_is_bars_of_one_pass_and_a_copy_across_passes_is_two() -> None:
    chart = ring_chart(small_ring(), 6)
    assert chart.bars == (
        RingBar(block=0, kind="resident", start=0, end=6),
        RingBar(block=1, kind="visit", start=1, end=3),
        RingBar(block=2, kind="visit", start=4, end=5),
        RingBar(block=1, kind="copy", start=4, end=6),
        RingBar(block=1, kind="copy", start=0, end=1),
        RingBar(block=2, kind="copy", start=1, end=4),
    )
    assert (chart.bytes, chart.resident, chart.weights, chart.moved) == (192, 64, 192, 128)


def contents_of_every_chart() -> ReportContents:
    """The sample's whole step, so that there is a run of eager, with a ring."""
    whole = plan(mode="backward", preset="train_full")
    return report_contents("sample", replace(whole, ring=small_ring()), described())


def test_whole_step_with_a_ring_has_every_chart() -> None:
    """The pages that a browser opens are of these contents: without a browser a chart that went is seen here."""
    shown = contents_of_every_chart()
    assert shown.slabs
    assert shown.eager is not None
    assert shown.ring is not None


def test_ring_takes_the_place_of_the_text_in_the_total() -> None:
    ringed = report_contents("ring", replace(plan(), ring=small_ring()), graph())
    assert (ringed.figures.text, ringed.figures.total) == (192, 928 - 128 + 192)
    assert ringed.ring is not None
