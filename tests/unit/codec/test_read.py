"""Files back into values, and every way in which a file can be no file of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings

from tests.strategies import graphs
from tests.unit.ir.samples import TOKEN, arenas, graph, plan
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import InvalidConfig, PlanCorrupt, TmmuError
from tmmu.ir.encoding import cbor
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.plan import encode_plan
from tmmu.planner.prepare import prepare_memory

GRAPH_FILE, PLAN_FILE = encode_graph(graph()), encode_plan(plan())


@settings(max_examples=40, deadline=None)
@given(graphs(shuffled=None))
def test_written_graphs_and_plans_are_read(written: Graph) -> None:
    assert read_graph(encode_graph(written)) == written
    planned = prepare_memory(written, mode="inference", preset="inference", token=TOKEN, arenas=arenas())
    again = read_plan(encode_plan(planned))
    assert again == planned
    assert again.digest == planned.digest


def test_path_is_read_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.plan.cbor"
    path.write_bytes(PLAN_FILE)
    assert read_plan(path) == plan()
    path.write_bytes(PLAN_FILE[:-1])
    with pytest.raises(PlanCorrupt, match=r"x\.plan\.cbor") as caught:
        read_plan(path)
    assert caught.value.fields["path"] == str(path)
    with pytest.raises(InvalidConfig, match="no such file"):
        read_graph(tmp_path / "absent")


def damage(data: bytes, change: Callable[[Any], Any], *, seal: bool = True) -> bytes:
    """The file with its decoded map changed in place, its digest made to fit again."""
    top = cbor.decode(data)
    assert isinstance(top, dict)
    change(top)
    if seal and "digest" in top:
        top.pop("digest")
        top["digest"] = blake3(cbor.encode(top)).digest()
    return cbor.encode(top)


def put(*path: str | int, value: object) -> Callable[[Any], Any]:
    def change(top: Any) -> None:
        for step in path[:-1]:
            top = top[step]
        top[path[-1]] = value

    return change


def drop(*path: str) -> Callable[[Any], Any]:
    def change(top: Any) -> None:
        for step in path[:-1]:
            top = top[step]
        del top[path[-1]]

    return change


BAD_PLANS: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("another format", put("format", value="tmmu.ir"), "format"),
    ("a newer version", put("version", value=2), "newer"),
    ("version 0", put("version", value=0), "version"),
    ("a truth value as version", put("version", value=True), "version"),
    ("another operator", put("spec", value="Other_v1"), "spec"),
    ("an unknown key", put("colour", value=1), "unknown key"),
    ("an unknown arena column", put("arenas", "colour", value=[]), "unknown key"),
    ("a key missing", drop("metrics"), "lacks"),
    ("a column missing", drop("buffers", "offset"), "lacks"),
    ("a hash of 31 bytes", put("ir_hash", value=bytes(31)), "ir_hash"),
    ("a hash that is text", put("ir_hash", value="0" * 32), "ir_hash"),
    ("a prefix of 9 bytes", put("token_prefix", value=bytes(9)), "token_prefix"),
    ("an unknown mode", put("mode", value="sideways"), "mode"),
    ("a mode that is a number", put("mode", value=3), "mode"),
    ("an order that is a number", put("order", value=3), "order"),
    ("text in the order", put("order", 0, value="0"), "order"),
    ("a negative op", put("order", 0, value=-1), "order"),
    ("a truth value in the order", put("order", 0, value=True), "order"),
    ("a number as proof", put("arenas", "proven", 0, value=1), "proven"),
    ("arenas in another order", put("arenas", "name", 0, value="state"), "arenas"),
    ("a column too short", put("buffers", "offset", value=[0]), "offset"),
    ("an arena that is none", put("buffers", "arena", 0, value=9), "arena 9"),
    ("a slot that is none", put("buffers", "slot", 0, value=9), "slot 9"),
    ("2**64 - 1 slots", put("arenas", "slots", 0, value=2**64 - 1), "slot"),
    ("metrics that are a list", put("metrics", value=[]), "metrics"),
    ("a metric that is text", put("metrics", "max_live", value="many"), "metrics"),
    ("a metric that is negative", put("metrics", "max_live", value=-1), "metrics"),
)


@pytest.mark.parametrize(("change", "word"), [row[1:] for row in BAD_PLANS], ids=[row[0] for row in BAD_PLANS])
def test_bad_plans_are_refused_by_name(change: Callable[[Any], Any], word: str) -> None:
    with pytest.raises(PlanCorrupt, match=word) as caught:
        read_plan(damage(PLAN_FILE, change))
    assert caught.value.fix
    assert caught.value.fields["where"]


BAD_GRAPHS: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("a plan", put("format", value="tmmu.plan"), "format"),
    ("a newer version", put("version", value=99), "newer"),
    ("an unknown key", put("values", "layout", value=[]), "unknown key"),
    ("notes missing", drop("notes"), "lacks"),
    ("a shape that is a number", put("values", "shape", 0, value=3), "shape"),
    ("a shape of text", put("values", "shape", 0, value=["8"]), "shape"),
    ("a negative stride", put("values", "stride", 0, value=[-1]), "stride"),
    ("an overwrite of three", put("ops", "overwrites", 1, value=[[1, 2, 3]]), "pair"),
    ("an overwrite of a number", put("ops", "overwrites", 1, value=[1]), "overwrites"),
    ("a mark that is null", put("ops", "recompute", 0, value=None), "recompute"),
    ("an unknown role", put("buffers", "role", 0, value="spare"), "role"),
    ("a role that is bytes", put("buffers", "role", 0, value=b"input"), "role"),
    ("an unknown dtype", put("values", "dtype", 0, value="float12"), "dtype"),
    ("an id that dangles", put("ops", "reads", 0, value=[99]), "value 99"),
    ("ranks that differ", put("values", "stride", 0, value=[]), "extents"),
    ("a column too short", put("ops", "stage", value=["forward"]), "stage"),
    ("a target that is null", put("target", value=None), "target"),
    ("a name that is a number", put("notes", "name", value=1), "name"),
    ("negative flops", put("notes", "ops", "flops", 0, value=-1), "flops"),
)


@pytest.mark.parametrize(("change", "word"), [row[1:] for row in BAD_GRAPHS], ids=[row[0] for row in BAD_GRAPHS])
def test_bad_graphs_are_refused_by_name(change: Callable[[Any], Any], word: str) -> None:
    with pytest.raises(PlanCorrupt, match=word):
        read_graph(damage(GRAPH_FILE, change))


def test_wrong_digest_is_refused() -> None:
    with pytest.raises(PlanCorrupt, match="digest"):
        read_plan(damage(PLAN_FILE, put("metrics", "max_live", value=7), seal=False))
    with pytest.raises(PlanCorrupt, match="digest"):
        read_plan(damage(PLAN_FILE, put("digest", value=bytes(32)), seal=False))


@pytest.mark.parametrize("value", [0, "text", b"bytes", [], {}, True, None])
@pytest.mark.parametrize("read", [read_graph, read_plan])
def test_values_that_are_no_file_are_refused(read: Callable[[bytes], object], value: object) -> None:
    with pytest.raises(TmmuError) as caught:
        read(cbor.encode(value))
    assert caught.value.code == "PLAN_CORRUPT"


def test_plan_columns_are_checked_for_type() -> None:
    top = cbor.decode(PLAN_FILE)
    assert isinstance(top, dict)
    for table in ("arenas", "slots", "buffers"):
        for column in top[table]:
            for value in (None, 3, "text", {}, [None], [[]], [b""], [-1]):
                with pytest.raises(PlanCorrupt):
                    read_plan(damage(PLAN_FILE, put(table, column, value=value)))


def test_graph_columns_are_checked_for_type() -> None:
    top = cbor.decode(GRAPH_FILE)
    assert isinstance(top, dict)
    for table in ("buffers", "values", "ops"):
        for column in top[table]:
            for value in (None, 3, "text", {}, [None], [{}], [b""], [-1], [[["x"]]]):
                with pytest.raises(PlanCorrupt):
                    read_graph(damage(GRAPH_FILE, put(table, column, value=value)))
