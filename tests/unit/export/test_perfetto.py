"""Perfetto traces: parsed by the package's classes and queried in SQLite, they say what the plan says."""

import json
import sqlite3

import pytest

from tests.strategies import Builder
from tests.unit.export.samples import HOSTILE, hostile_graph, huge_graph, mirrored_sample, plan_of, random_sample
from tests.unit.export.trace_database import trace_database
from tests.unit.ir.samples import described_graph
from tmmu.eager.peak import eager_figures
from tmmu.export.buffer_rows import buffer_rows
from tmmu.export.perfetto import encode_perfetto
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

PEAK = """
select counter.value from counter join track on track.id = counter.track
where track.name = ? order by length(counter.value) desc, counter.value desc limit 1
"""
FULLEST = """
select max(total) from (
    select sum(json_extract(live.arguments, '$.padded_bytes')) as total
    from slice as starts join slice as live on live.begin <= starts.begin and starts.begin < live.end
    where json_extract(live.arguments, '$.arena') in ('activations', 'gradients')
      and json_extract(starts.arguments, '$.arena') in ('activations', 'gradients')
    group by starts.rowid)
"""


def database_of(graph: Graph, plan: Plan) -> sqlite3.Connection:
    return trace_database(encode_perfetto(plan, graph, "planned"))


def peak(database: sqlite3.Connection, name: str) -> int:
    return int(database.execute(PEAK, (f"live bytes: {name}",)).fetchone()[0])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("layout", ["joint", "packed"])
def test_peaks_in_the_database_are_those_of_the_plan(seed: int, layout: str) -> None:
    graph = random_sample(seed)
    plan = plan_of(graph, layout=layout)
    database = database_of(graph, plan)
    for arena, name in enumerate(plan.arenas.name):
        if arena in plan.buffers.arena:
            assert peak(database, name) == plan.arenas.bound[arena]
    stack = database.execute(FULLEST).fetchone()[0]
    assert stack == peak(database, "stack")
    if layout == "joint":
        assert stack == plan.metrics["bound_bytes.stack"]


def test_eager_has_a_counter_of_its_own() -> None:
    graph = described_graph()
    figures = eager_figures(graph)
    assert figures is not None
    database = database_of(graph, plan_of(graph))
    assert peak(database, "eager") == figures.stack_bytes
    (unit,) = database.execute("select unit from track where name = 'live bytes: eager'").fetchone()
    assert unit == 3, "bytes"


def test_every_buffer_is_one_slice_on_the_track_of_its_slot() -> None:
    graph = described_graph()
    plan = plan_of(graph)
    database = database_of(graph, plan)
    slices = database.execute(
        "select track.name, slice.begin, slice.arguments from slice join track on track.id = slice.track "
        "where track.name != 'ops'"
    ).fetchall()
    by_id = {json.loads(arguments)["id"]: (track, begin) for track, begin, arguments in slices}
    assert len(slices) == len(by_id) == len(plan.buffers)
    for row in buffer_rows(plan, graph):
        assert by_id[row.id] == (f"{row.arena} slot {row.slot}", row.birth * 1000)


def test_arguments_say_all_of_a_buffer() -> None:
    graph = described_graph()
    plan = plan_of(graph)
    database = database_of(graph, plan)
    for row in buffer_rows(plan, graph):
        query = "select arguments from slice where json_extract(arguments, '$.id') = ?"
        arguments = json.loads(database.execute(query, (row.id,)).fetchone()[0])
        expected = {name: getattr(row, name) for name in type(row).__slots__} | {"dtypes": " ".join(row.dtypes)}
        assert arguments == {name: content for name, content in expected.items() if content is not None}


def test_ops_are_slices_of_a_microsecond() -> None:
    graph = described_graph()
    plan = plan_of(graph)
    rows = database_of(graph, plan).execute(
        "select slice.name, begin, end from slice join track on track.id = slice.track where track.name = 'ops'"
    )
    expected = [(graph.ops.target[op], t * 1000, t * 1000 + 1000) for t, op in enumerate(plan.order)]
    assert rows.fetchall() == expected


def test_plan_without_its_graph_is_a_trace_too() -> None:
    plan = plan_of(described_graph())
    database = trace_database(encode_perfetto(plan, None, "planned"))
    assert peak(database, "stack") == plan.metrics["bound_bytes.stack"]
    assert not database.execute("select 1 from track where name = 'ops'").fetchall()


def test_sizes_of_2_to_the_63_stay_whole() -> None:
    graph = huge_graph()
    plan = plan_of(graph, "inference")
    database = database_of(graph, plan)
    assert plan.metrics["bound_bytes.stack"] > 1 << 63
    assert peak(database, "stack") == 1 << 63, "a double, rounded"
    texts = [json.loads(row[0]) for row in database.execute("select arguments from slice")]
    assert max(arguments.get("bytes", 0) for arguments in texts) == 1 << 63


def test_hostile_texts_stay_whole() -> None:
    graph = hostile_graph()
    database = database_of(graph, plan_of(graph))
    names = {json.loads(row[0]).get("name") for row in database.execute("select arguments from slice")}
    modules = {json.loads(row[0]).get("module") for row in database.execute("select arguments from slice")}
    assert set(graph.notes.buffers[1:]) <= names
    assert set(graph.notes.ops.module) <= modules
    assert database.execute("select name from track where id = 1").fetchone()[0].startswith(HOSTILE[0])


def test_slices_end_where_the_buffer_is_taken_over() -> None:
    graph = described_graph()
    plan = plan_of(graph)
    placed = plan.buffers
    spans = dict(zip(placed.id, zip(placed.birth, placed.death, strict=True), strict=True))
    chains = [(old, new) for new, old in zip(placed.id, placed.takes_over, strict=True) if new != old]
    assert chains
    rows = database_of(graph, plan).execute("select json_extract(arguments, '$.id'), begin, end from slice").fetchall()
    slices = {buffer: (begin // 1000, end // 1000) for buffer, begin, end in rows if buffer is not None}
    for old, new in chains:
        assert slices[old] == (spans[old][0], spans[new][0])
    last = set(placed.id) - {old for old, _ in chains}
    assert {buffer: slices[buffer] for buffer in last} == {buffer: spans[buffer] for buffer in last}


@pytest.mark.parametrize("seed", range(4))
def test_timeline_ends_with_the_gradients_that_mirror_the_order(seed: int) -> None:
    graph = mirrored_sample(seed)
    plan = plan_of(graph, preset="train_full")
    assert max(plan.buffers.death) == 2 * len(plan.order)
    database = database_of(graph, plan)
    assert peak(database, "stack") == plan.metrics["bound_bytes.stack"]
    (last,) = database.execute("select max(end) from slice").fetchone()
    assert last == 2 * len(plan.order) * 1000


def test_plan_without_ops_is_a_trace_of_its_weights() -> None:
    b = Builder()
    b.buffer("input")
    b.buffer("parameter")
    graph = b.build([0])
    database = database_of(graph, plan_of(graph, "inference"))
    assert database.execute("select begin, end from slice").fetchall() == [(0, 0)]


def test_counters_end_at_0_where_eager_holds_something_to_the_end() -> None:
    graph = described_graph()
    rows = database_of(graph, plan_of(graph)).execute(
        "select time, value from counter join track on track.id = counter.track where name = 'live bytes: eager'"
    )
    steps = [(0, "64"), (1000, "320"), (3000, "256"), (4000, "272"), (5000, "256"), (6000, "0")]
    assert rows.fetchall() == steps
