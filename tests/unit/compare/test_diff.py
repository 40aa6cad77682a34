"""Why one peak is above another: each reason by hand, and the account adds up for any two programs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import graphs
from tests.unit.ir.programs import plan_program, program
from tmmu.compare.diff import Change, Difference, difference
from tmmu.compare.diff_side import DiffSide
from tmmu.ir.graph import Graph
from tmmu.ir.plan import MODES, PRESETS, segment_bytes

NET = """
input x 4
parameter weight 16
a 8 = one mm x weight
b 8 = two relu a over a
c 4 = three mm b weight
d 4 = four add c c over c
return d
"""
KIB = 1024


def diff_of(before: str, after: str, **options: str) -> Difference:
    return difference(plan_program(before, **options), plan_program(after, **options))  # type: ignore[arg-type]


def reasons(changes: tuple[Change, ...]) -> list[tuple[str, int, str]]:
    """Reason, KiB and line of each change."""
    return [(change.why, change.bytes // KIB, change.origin.source.removeprefix("net.py:")) for change in changes]


def demand_account(diff: Difference, grown: int) -> None:
    peak = diff.peak
    assert peak.bytes == grown
    assert peak.after.bytes - peak.before.bytes == sum(change.bytes for change in peak.changes)
    assert peak.bytes == sum(change.bytes for change in peak.changes) - peak.room + peak.packing
    if grown >= 0 and peak.after.position == peak.fullest_after.position:
        assert peak.room >= 0


@given(graphs(joint=None), graphs(joint=None), st.sampled_from(MODES), st.sampled_from(PRESETS))
def test_peak_change_adds_up_for_any_two_programs(before: Graph, after: Graph, mode: str, preset: str) -> None:
    a, b = plan_program(before, mode=mode, preset=preset), plan_program(after, mode=mode, preset=preset)
    grown = segment_bytes(b.plan.arenas, "stack") - segment_bytes(a.plan.arenas, "stack")
    diff, back = difference(a, b), difference(b, a)
    demand_account(diff, grown)
    demand_account(back, -grown)
    assert sum(size for why, (_, size) in diff.totals.items() if why in ("came", "went", "grew", "shrank")) == sum(
        b.plan.buffers.bytes
    ) - sum(a.plan.buffers.bytes)


@given(graphs(joint=None), st.sampled_from(MODES))
def test_program_does_not_differ_from_itself(graph: Graph, mode: str) -> None:
    program_plan = plan_program(graph, mode=mode)
    diff = difference(program_plan, program_plan)
    assert (diff.peak.bytes, diff.peak.changes, diff.persistent) == (0, (), ())
    assert set(diff.totals.values()) == {(0, 0)}


def test_new_buffer_is_a_reason() -> None:
    after = NET.replace("c 4 =", "e 32 = wide cat b b\nc 4 =").replace("mm b weight", "mm e weight")
    diff = diff_of(NET, after)
    assert reasons(diff.peak.changes) == [("came", 32, "5")]
    assert diff.peak.changes[0].origin.until == "net.py:6"
    demand_account(diff, (40 - 12) * KIB)
    assert diff.peak.room == 4 * KIB, "before, the peak was where c is made"


def test_grown_buffer_is_a_reason() -> None:
    diff = diff_of(NET, NET.replace("a 8", "a 24").replace("b 8", "b 24"))
    assert reasons(diff.peak.changes) == [("grew", 16, "4")]
    demand_account(diff, 16 * KIB)


def test_longer_life_names_the_last_user() -> None:
    diff = diff_of(NET, NET.replace("d 4 = four add c c over c", "d 4 = four add c c over c\ne 8 = five mix d b"))
    assert reasons(diff.peak.changes) == [("came", 8, "7"), ("lives longer", 8, "4")]
    longer = diff.peak.changes[1]
    assert longer.before is not None
    assert longer.after is not None
    assert (longer.before.until, longer.after.until) == ("net.py:5", "net.py:7")
    assert diff.totals["lives longer"] == (2, 12 * KIB)
    caller = diff_of(NET, NET.replace("return d", "return d b")).peak.changes
    assert [change.origin.until for change in caller] == []


def test_output_lives_longer_for_the_caller() -> None:
    more = NET.replace("return d", "e 16 = five mm d weight\nf 4 = six mm e weight\nreturn f")
    diff = diff_of(more, more.replace("return f", "return f b"))
    assert reasons(diff.peak.changes) == [("lives longer", 8, "4")]
    assert diff.peak.changes[0].origin.until == "the caller"


def test_result_that_is_no_longer_in_place_is_a_reason() -> None:
    diff = diff_of(NET, NET.replace("relu a over a", "relu a"))
    assert reasons(diff.peak.changes) == [("no longer in place", 8, "3")]
    back = diff_of(NET.replace("relu a over a", "relu a"), NET)
    assert reasons(back.peak.changes) == [("now in place", -8, "3")]


def test_earlier_birth_is_a_reason() -> None:
    before = (
        "input x 4\na 8 = one mm x\nb 16 = two mm a\nc 4 = three mm b\ne 8 = early mm x\nd 4 = four add c e\nreturn d"
    )
    after = (
        "input x 4\ne 8 = early mm x\na 8 = one mm x\nb 16 = two mm a\nc 4 = three mm b\nd 4 = four add c e\nreturn d"
    )
    diff = diff_of(before, after)
    assert reasons(diff.peak.changes) == [("born earlier", 8, "2")]
    assert reasons(diff_of(after, before).peak.changes) == [("born later", -8, "5")]


def test_removed_buffer_is_named_by_its_old_line() -> None:
    before = NET.replace("c 4 =", "e 32 = wide cat b b\nc 4 =").replace("mm b weight", "mm e weight")
    diff = diff_of(before, NET)
    assert reasons(diff.peak.changes) == [("went", -32, "5")]
    assert diff.peak.changes[0].after is None
    demand_account(diff, (12 - 40) * KIB)


def test_moved_peak_counts_what_was_held_all_along() -> None:
    """The old peak is at line 3; the new one is at a new op at the end, where a buffer is held that always was."""
    before = "input x 4\na 8 = one mm x\nb 8 = two mm a\nc 4 = three mm b\nreturn c"
    after = before.replace("return c", "e 64 = huge mm c\nf 4 = last mm e\nreturn f")
    diff = diff_of(before, after)
    assert reasons(diff.peak.changes)[0] == ("came", 64, "5")
    assert (diff.peak.moved, diff.peak.moved_bytes) == (1, 4 * KIB)
    assert diff.peak.fullest_after.op == "mm"
    assert diff.peak.fullest_after.source == "net.py:5"
    demand_account(diff, (68 - 16) * KIB)


def test_persistent_changes_have_names() -> None:
    diff = diff_of(NET, NET.replace("weight 16", "weight 48").replace("input x 4", "input x 4\nstate cache 8"))
    assert [
        (change.why, change.bytes // KIB, change.origin.name, change.origin.role) for change in diff.persistent
    ] == [
        ("grew", 32, "weight", "parameter"),
        ("came", 8, "cache", "state"),
    ]
    gone = diff_of(NET.replace("input x 4", "input x 4\nstate cache 8"), NET)
    assert [(change.why, change.bytes // KIB, change.origin.name) for change in gone.persistent] == [
        ("went", -8, "cache")
    ]


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_saved_value_lives_until_its_gradient(mode: str) -> None:
    graph = program(NET)
    saving = plan_program(replace(graph, ops=replace(graph.ops, saves=((), (3,), (), ()))), mode=mode)
    diff = difference(plan_program(graph, mode=mode), saving)
    assert diff.totals["lives longer"][0] == 1
    assert DiffSide(saving).origin(3).until == "its gradient"
    assert DiffSide(saving).origin(4).until == "net.py:6"


def test_counterpart_of_a_new_op_differs_least() -> None:
    before = "input x 4\nbig 32 = one mm x\na 4 = two mm big\nb 4 = three mm a\nreturn b"
    after = before.replace("b 4 = three mm a", "e 64 = new cat a\nb 4 = three mm e")
    diff = diff_of(before, after)
    assert (diff.peak.before.source, diff.peak.after.source) == ("net.py:4", "net.py:4")
    assert reasons(diff.peak.changes) == [("came", 64, "4"), ("born later", -4, "5")]
    assert diff.peak.room == 28 * KIB
    assert (diff.peak.moved, diff.peak.moved_bytes) == (0, 0), "a was held where it was fullest before, too"


def test_packing_loss_is_counted_separately() -> None:
    text = "input x 4\na 16 = one mm x\nb 4 = two mm a\nc 4 = three mm b\nd 16 = four mm c\nreturn d"
    before, after = plan_program(text), plan_program(text, arenas=("activations=layout:slots",))
    diff = difference(before, after)
    assert not diff.peak.changes
    assert diff.peak.packing == diff.peak.bytes > 0
    demand_account(diff, segment_bytes(after.plan.arenas, "stack") - segment_bytes(before.plan.arenas, "stack"))
    demand_account(difference(after, before), -diff.peak.bytes)


def test_empty_programs_compare() -> None:
    nothing = "input x 4\nreturn x"
    demand_account(diff_of(nothing, nothing), 0)
    demand_account(diff_of(nothing, NET), 12 * KIB)
    demand_account(diff_of(NET, nothing), -12 * KIB)
