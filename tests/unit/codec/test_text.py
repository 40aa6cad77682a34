"""The printed form is stable, complete and one line per thing."""

from dataclasses import replace

from hypothesis import given, settings

from tests.strategies import graphs
from tests.unit.ir.samples import edit, fitted, fused, graph, plan
from tmmu.codec.text import print_graph, print_plan
from tmmu.ir.graph import Graph


def test_graph_prints_a_line_per_buffer_and_op() -> None:
    base = edit(
        edit(edit(graph(), "notes.name", "sample"), "notes.buffers", "weight", 1), "notes.ops.source", "model.py:7", 2
    )
    lines = print_graph(base).splitlines()
    assert lines[0] == f'graph "sample" for cpu, {base.ir_hash.hex()}'
    assert lines[2] == 'b1 parameter 32 "weight"'
    assert lines[15] == (
        "op2 forward cache.update(%3:float32[8]b5, %4:float32[16]b3) -> "
        '%5:float32[8]b3+16, %6:float32[16]b3 @ "model.py:7"'
    )
    assert lines[14] == "op1 forward test.op(%2:float32[8]b4) -> %3:float32[8]b5 over %3=%2 saves %3"
    assert lines[-2:] == ["inputs %0:float32[8]b0", "outputs %11:float32[8]b9, %6:float32[16]b3, %13:float32[8]b11"]
    assert len(lines) == 1 + 12 + 8 + 2


def test_plan_prints_a_line_per_arena_slot_buffer_and_metric() -> None:
    lines = print_plan(plan()).splitlines()
    assert lines[1:3] == ["mode inference preset inference token 0001020304050607", "order 0-5"]
    assert lines[5] == (
        "arena activations stack packed alignment 64 page 0 capacity 0 slots 3 peak 704 bound 704 proven"
    )
    joint = print_plan(plan("backward", "inference", "joint")).splitlines()
    assert joint[6] == "arena gradients stack joint alignment 64 page 0 capacity 0 slots 1 peak 640 bound 64 proven"
    assert "metric peak_bytes.stack 768" in joint
    assert "b5 activations.0 0+64 [1,4) over b4" in lines
    assert len(lines) == 3 + 4 + len(plan().slots) + len(plan().buffers) + len(plan().metrics)


def test_rewritten_graph_prints_a_line_per_op_and_lever() -> None:
    lines = print_plan(fitted()).splitlines()[len(print_plan(plan()).splitlines()) :]
    about = f"fit of {bytes(range(32)).hex()} budget 17179869184 flops 1099511627776 bytes 96 time_ppm 12345"
    assert lines[:4] == [about, "lever order", 'lever "early updates"', "op0 same op0"]
    assert lines[6:] == [
        "op3 rerun op0",
        "op4 same op3",
        "op5 twin op1",
        "op6 sublist op4 [0,2)",
        "op7 sublist op4 [2,5)",
    ]


def test_fused_graph_prints_what_it_was_fused_in() -> None:
    lines = print_plan(fused()).splitlines()
    before = print_plan(fitted()).splitlines()
    assert [line for line in lines if line not in before][1:] == [
        f"fused from {bytes(range(1, 33)).hex()}",
        "apart 0123456789abcdef0123",
        f"apart {'f' * 20}",
    ]


def test_order_prints_as_runs() -> None:
    assert "order 0-2 4 3 5\n" in print_plan(replace(plan(), order=(0, 1, 2, 4, 3, 5)))


@settings(max_examples=20, deadline=None)
@given(graphs())
def test_any_graph_prints_one_line_per_buffer_and_op(base: Graph) -> None:
    assert len(print_graph(base).splitlines()) == 1 + len(base.buffers) + len(base.ops) + 2


def test_hostile_names_stay_on_their_line_and_ascii() -> None:
    nasty = "a\nb\u2028\x1b[31m\ud800"
    base = edit(edit(graph(), "ops.target", nasty, 0), "notes.buffers", nasty, 0)
    base = edit(edit(base, "notes.ops.module", nasty, 0), "notes.ops.source", nasty, 0)
    shown = print_graph(edit(edit(base, "ops.target", "add", 0), "notes.name", nasty))
    assert shown.isascii()
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 23
