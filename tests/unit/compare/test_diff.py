"""Why one peak is above another: each reason by hand, and the account adds up for any two programs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import graphs
from tests.unit.ir.programs import planned, program
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


def compared(before: str, after: str, **how: str) -> Difference:
    return difference(planned(before, **how), planned(after, **how))  # type: ignore[arg-type]


def told(changes: tuple[Change, ...]) -> list[tuple[str, int, str]]:
    """Reason, KiB and line of each change."""
    return [(one.why, one.bytes // KIB, one.origin.source.removeprefix("net.py:")) for one in changes]


def demand_account(found: Difference, grown: int) -> None:
    peak = found.peak
    assert peak.bytes == grown
    assert peak.after.bytes - peak.before.bytes == sum(one.bytes for one in peak.changes)
    assert peak.bytes == sum(one.bytes for one in peak.changes) - peak.room + peak.packing
    if grown >= 0 and peak.after.position == peak.fullest_after.position:
        assert peak.room >= 0


@given(graphs(joint=None), graphs(joint=None), st.sampled_from(MODES), st.sampled_from(PRESETS))
def test_the_account_adds_up_for_any_two_programs(one: Graph, other: Graph, mode: str, preset: str) -> None:
    a, b = planned(one, mode=mode, preset=preset), planned(other, mode=mode, preset=preset)
    grown = segment_bytes(b.plan.arenas, "stack") - segment_bytes(a.plan.arenas, "stack")
    found, back = difference(a, b), difference(b, a)
    demand_account(found, grown)
    demand_account(back, -grown)
    assert sum(size for why, (_, size) in found.totals.items() if why in ("came", "went", "grew", "shrank")) == sum(
        b.plan.buffers.bytes
    ) - sum(a.plan.buffers.bytes)


@given(graphs(joint=None), st.sampled_from(MODES))
def test_a_program_does_not_differ_from_itself(graph: Graph, mode: str) -> None:
    one = planned(graph, mode=mode)
    found = difference(one, one)
    assert (found.peak.bytes, found.peak.changes, found.persistent) == (0, (), ())
    assert set(found.totals.values()) == {(0, 0)}


def test_a_buffer_that_came_is_the_reason() -> None:
    after = NET.replace("c 4 =", "e 32 = wide cat b b\nc 4 =").replace("mm b weight", "mm e weight")
    found = compared(NET, after)
    assert told(found.peak.changes) == [("came", 32, "5")]
    assert found.peak.changes[0].origin.until == "net.py:6"
    demand_account(found, (40 - 12) * KIB)
    assert found.peak.room == 4 * KIB, "before, the peak was where c is made"


def test_a_buffer_that_grew() -> None:
    found = compared(NET, NET.replace("a 8", "a 24").replace("b 8", "b 24"))
    assert told(found.peak.changes) == [("grew", 16, "4")]
    demand_account(found, 16 * KIB)


def test_a_buffer_that_lives_longer_and_for_whom() -> None:
    found = compared(NET, NET.replace("d 4 = four add c c over c", "d 4 = four add c c over c\ne 8 = five mix d b"))
    assert told(found.peak.changes) == [("came", 8, "7"), ("lives longer", 8, "4")]
    longer = found.peak.changes[1]
    assert longer.before is not None
    assert longer.after is not None
    assert (longer.before.until, longer.after.until) == ("net.py:5", "net.py:7")
    assert found.totals["lives longer"] == (2, 12 * KIB)
    caller = compared(NET, NET.replace("return d", "return d b")).peak.changes
    assert [one.origin.until for one in caller] == []


def test_an_output_lives_longer_for_the_caller() -> None:
    more = NET.replace("return d", "e 16 = five mm d weight\nf 4 = six mm e weight\nreturn f")
    found = compared(more, more.replace("return f", "return f b"))
    assert told(found.peak.changes) == [("lives longer", 8, "4")]
    assert found.peak.changes[0].origin.until == "the caller"


def test_a_result_that_is_no_longer_in_place() -> None:
    found = compared(NET, NET.replace("relu a over a", "relu a"))
    assert told(found.peak.changes) == [("no longer in place", 8, "3")]
    back = compared(NET.replace("relu a over a", "relu a"), NET)
    assert told(back.peak.changes) == [("now in place", -8, "3")]


def test_a_buffer_that_is_born_earlier() -> None:
    before = (
        "input x 4\na 8 = one mm x\nb 16 = two mm a\nc 4 = three mm b\ne 8 = early mm x\nd 4 = four add c e\nreturn d"
    )
    after = (
        "input x 4\ne 8 = early mm x\na 8 = one mm x\nb 16 = two mm a\nc 4 = three mm b\nd 4 = four add c e\nreturn d"
    )
    found = compared(before, after)
    assert told(found.peak.changes) == [("born earlier", 8, "2")]
    assert told(compared(after, before).peak.changes) == [("born later", -8, "5")]


def test_what_went_is_named_by_the_line_that_it_had() -> None:
    before = NET.replace("c 4 =", "e 32 = wide cat b b\nc 4 =").replace("mm b weight", "mm e weight")
    found = compared(before, NET)
    assert told(found.peak.changes) == [("went", -32, "5")]
    assert found.peak.changes[0].after is None
    demand_account(found, (12 - 40) * KIB)


def test_a_peak_that_moves_says_what_moved_into_it() -> None:
    """The old peak is at line 3; the new one is at a new op at the end, where a buffer is held that always was."""
    before = "input x 4\na 8 = one mm x\nb 8 = two mm a\nc 4 = three mm b\nreturn c"
    after = before.replace("return c", "e 64 = huge mm c\nf 4 = last mm e\nreturn f")
    found = compared(before, after)
    assert told(found.peak.changes)[0] == ("came", 64, "5")
    assert (found.peak.moved, found.peak.moved_bytes) == (1, 4 * KIB)
    assert found.peak.fullest_after.op == "mm"
    assert found.peak.fullest_after.source == "net.py:5"
    demand_account(found, (68 - 16) * KIB)


def test_weights_and_state_are_told_by_name() -> None:
    found = compared(NET, NET.replace("weight 16", "weight 48").replace("input x 4", "input x 4\nstate cache 8"))
    assert [(one.why, one.bytes // KIB, one.origin.name, one.origin.role) for one in found.persistent] == [
        ("grew", 32, "weight", "parameter"),
        ("came", 8, "cache", "state"),
    ]
    gone = compared(NET.replace("input x 4", "input x 4\nstate cache 8"), NET)
    assert [(one.why, one.bytes // KIB, one.origin.name) for one in gone.persistent] == [("went", -8, "cache")]


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_what_is_saved_is_needed_until_its_gradient(mode: str) -> None:
    graph = program(NET)
    saving = planned(replace(graph, ops=replace(graph.ops, saves=((), (3,), (), ()))), mode=mode)
    found = difference(planned(graph, mode=mode), saving)
    assert found.totals["lives longer"][0] == 1
    assert DiffSide(saving).origin(3).until == "its gradient"
    assert DiffSide(saving).origin(4).until == "net.py:6"


def test_of_the_ops_around_a_new_one_the_moment_that_differs_least_is_compared() -> None:
    before = "input x 4\nbig 32 = one mm x\na 4 = two mm big\nb 4 = three mm a\nreturn b"
    after = before.replace("b 4 = three mm a", "e 64 = new cat a\nb 4 = three mm e")
    found = compared(before, after)
    assert (found.peak.before.source, found.peak.after.source) == ("net.py:4", "net.py:4")
    assert told(found.peak.changes) == [("came", 64, "4"), ("born later", -4, "5")]
    assert found.peak.room == 28 * KIB
    assert (found.peak.moved, found.peak.moved_bytes) == (0, 0), "a was held where it was fullest before, too"


def test_what_is_lost_between_buffers_is_told_apart() -> None:
    text = "input x 4\na 16 = one mm x\nb 4 = two mm a\nc 4 = three mm b\nd 16 = four mm c\nreturn d"
    one, other = planned(text), planned(text, arenas=("activations=layout:slots",))
    found = difference(one, other)
    assert not found.peak.changes
    assert found.peak.packing == found.peak.bytes > 0
    demand_account(found, segment_bytes(other.plan.arenas, "stack") - segment_bytes(one.plan.arenas, "stack"))
    demand_account(difference(other, one), -found.peak.bytes)


def test_programs_of_nothing_compare() -> None:
    nothing = "input x 4\nreturn x"
    demand_account(compared(nothing, nothing), 0)
    demand_account(compared(nothing, NET), 12 * KIB)
    demand_account(compared(NET, nothing), -12 * KIB)
