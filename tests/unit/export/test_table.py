"""CSV and JSON lines: a row for each buffer, whole, and a table that ``tmmu pack`` packs as the plan is packed."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.unit.export.samples import hostile_graph, huge_graph, plan_of, random_sample
from tests.unit.export.test_cells import text_of
from tests.unit.ir.samples import described_graph
from tmmu.export.buffer_rows import buffer_rows
from tmmu.export.table import COLUMNS, encode_csv, encode_json
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan, segment_bytes
from tmmu.planner.intervals import read_intervals
from tmmu.planner.pack.solve import pack


def csv_rows(plan: Plan, graph: Graph | None) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(encode_csv(plan, graph, "planned").decode()), strict=True))


def json_records(plan: Plan, graph: Graph | None) -> list[dict[str, object]]:
    return [json.loads(line) for line in encode_json(plan, graph, "planned").splitlines()]


def test_columns_are_those_of_the_specification() -> None:
    page = (Path(__file__).parents[3] / "docs/spec/export.md").read_text()
    table = page[page.index("## CSV") : page.index("## JSON lines")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert tuple(name.strip(" `") for row in rows for name in row.split(",")) == COLUMNS
    assert encode_csv(plan_of(described_graph()), None, "planned").decode().splitlines()[0] == ",".join(COLUMNS)


@pytest.mark.parametrize("make", [described_graph, hostile_graph, huge_graph])
def test_csv_says_all_of_every_buffer(make: object) -> None:
    graph: Graph = make()  # type: ignore[operator]
    plan = plan_of(graph)
    rows = csv_rows(plan, graph)
    assert len(rows) == len(plan.buffers)
    for cells, row in zip(rows, buffer_rows(plan, graph), strict=True):
        for name in ("id", "role", "bytes", "padded_bytes", "arena", "slot", "birth", "death", "alignment"):
            assert cells[name] == str(getattr(row, name))
        for name in ("name", "maker", "module", "source"):
            assert text_of(cells[name]) == getattr(row, name)
        assert (cells["plan_offset"], int(cells["address"], 16)) == (str(row.offset), row.address)
        assert cells["takes_over"] == ("" if row.takes_over is None else str(row.takes_over))


def test_csv_has_one_line_a_row_and_no_formula() -> None:
    graph = hostile_graph()
    plan = plan_of(graph)
    text = encode_csv(plan, graph, "planned").decode()
    assert len(text.split("\n")) == len(plan.buffers) + 2
    assert all(line.isprintable() for line in text.split("\n"))
    assert not [cell for row in csv_rows(plan, graph) for cell in row.values() if cell[:1] in set("=+-@")]


@pytest.mark.parametrize("seed", range(6))
def test_pack_of_the_csv_finds_what_the_plan_takes(tmp_path: Path, seed: int) -> None:
    graph = random_sample(seed)
    plan = plan_of(graph)
    assert all(plan.arenas.proven)
    path = tmp_path / "plan.csv"
    path.write_bytes(encode_csv(plan, graph, "planned"))
    packed = pack(read_intervals(path).problem)
    assert packed.bound == sum(segment_bytes(plan.arenas, segment) for segment in ("text", "data", "stack"))


@pytest.mark.parametrize("make", [hostile_graph, huge_graph])
def test_pack_reads_hostile_names_and_sizes_of_2_to_the_63(tmp_path: Path, make: object) -> None:
    graph: Graph = make()  # type: ignore[operator]
    plan = plan_of(graph, "inference")
    path = tmp_path / "plan.csv"
    path.write_bytes(encode_csv(plan, graph, "planned"))
    assert pack(read_intervals(path).problem).bound == sum(
        segment_bytes(plan.arenas, segment) for segment in ("text", "data", "stack")
    )


@pytest.mark.parametrize("make", [described_graph, hostile_graph, huge_graph])
def test_json_says_all_of_every_buffer_and_storage(make: object) -> None:
    graph: Graph = make()  # type: ignore[operator]
    plan = plan_of(graph)
    records = json_records(plan, graph)
    assert (records[0]["record"], records[0]["model"]) == ("plan", graph.notes.name)
    assert records[0]["plan_digest"] == plan.digest.hex()
    assert [r["name"] for r in records if r["record"] == "arena"] == list(plan.arenas.name)
    buffers = [record for record in records if record["record"] == "buffer"]
    for record, row in zip(buffers, buffer_rows(plan, graph), strict=True):
        fields = {name: getattr(row, name) for name in type(row).__slots__} | {"dtypes": list(row.dtypes)}
        assert record == fields | {"record": "buffer", "address": f"0x{row.address:016x}"}
    storages = [record for record in records if record["record"] == "storage"]
    table = graph.notes.eager.storages if graph.notes.eager else None
    assert [s["holder"] for s in storages] == (list(table.holder) if table else [])
    assert [s["bytes"] for s in storages] == (list(table.bytes) if table else [])


def test_json_is_ascii_and_a_line_a_record() -> None:
    graph = hostile_graph()
    plan = plan_of(graph)
    text = encode_json(plan, graph, "planned").decode("ascii")
    assert all(line.isprintable() for line in text.splitlines())


def test_plan_without_its_graph_leaves_texts_empty() -> None:
    plan = plan_of(described_graph())
    for cells in csv_rows(plan, None):
        assert not any(cells[name] for name in ("name", "role", "dtypes", "bytes", "maker", "module", "source"))
    assert {record["record"] for record in json_records(plan, None)} == {"plan", "arena", "buffer"}


def test_what_is_there_before_the_step_has_no_maker() -> None:
    graph = described_graph()
    for row in buffer_rows(plan_of(graph), graph):
        assert bool(row.maker) == (row.role not in {"parameter", "constant", "state"})
