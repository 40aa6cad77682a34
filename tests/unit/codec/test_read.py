"""Files back into values, and every way in which a file can be no file of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings

from tests.strategies import graphs
from tests.unit.ir.samples import TOKEN, arenas, edit, fitted, fused, graph, plan
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import InvalidConfig, PlanCorrupt, TmmuError
from tmmu.ir.encoding import cbor
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.ids import OpId
from tmmu.ir.plan import encode_plan
from tmmu.ir.rewrite import KINDS, SAME, SUBLIST, Rewrite
from tmmu.planner.prepare import prepare_memory

GRAPH_FILE, PLAN_FILE = encode_graph(graph()), encode_plan(plan())
FITTED_FILE = encode_plan(fitted())
FUSED_FILE = encode_plan(fused())


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


BAD_FITS: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("a newer version", put("fit", "version", value=3), "newer"),
    ("version 0", put("fit", "version", value=0), "version"),
    ("version 2 that does not say what was fused", put("fit", "version", value=2), "lacks"),
    ("version 1 that says it", put("fit", "fused", value={}), "unknown key"),
    ("a list", put("fit", value=[]), "map"),
    ("null", put("fit", value=None), "map"),
    ("an unknown key", put("fit", "colour", value=1), "unknown key"),
    ("a key missing", drop("fit", "levers"), "lacks"),
    ("a hash of 31 bytes", put("fit", "base_hash", value=bytes(31)), "base_hash"),
    ("an unknown kind", put("fit", "kind", 0, value=len(KINDS)), f"names kind {len(KINDS)}"),
    ("a kind of 64 bits", put("fit", "kind", 0, value=2**64 - 1), "kind"),
    ("a kind that is text", put("fit", "kind", 0, value="same"), "kind"),
    ("a kind that is a truth value", put("fit", "kind", 0, value=True), "kind"),
    ("fewer kinds than origins", put("fit", "kind", value=[0]), "part"),
    ("more kinds than origins", put("fit", "kind", value=[0] * 7 + [3, 3]), "9"),
    ("a negative origin", put("fit", "origin", 0, value=-1), "origin"),
    ("a part too few", put("fit", "part", value=[[0, 2]]), "1 rows for 2 ops with a part"),
    ("a part too many", put("fit", "part", value=[[0, 1]] * 3), "3 rows for 2 ops with a part"),
    ("a part of three", put("fit", "part", 0, value=[0, 1, 2]), "no range"),
    ("a part of no entries", put("fit", "part", 0, value=[2, 2]), "no range"),
    ("a part backwards", put("fit", "part", 0, value=[2, 1]), "no range"),
    ("parts that are a number", put("fit", "part", value=3), "part"),
    ("a cost missing", drop("fit", "cost", "bytes"), "lacks"),
    ("a cost more", put("fit", "cost", "luck", value=1), "unknown key"),
    ("a negative cost", put("fit", "cost", "flops", value=-1), "flops"),
    ("a cost of text", put("fit", "cost", "time_ppm", value="3 %"), "time_ppm"),
    ("a negative budget", put("fit", "budget_bytes", value=-1), "budget_bytes"),
    ("a budget of text", put("fit", "budget_bytes", value="16GB"), "budget_bytes"),
    ("a lever that is a number", put("fit", "levers", 0, value=1), "levers"),
    ("a lever twice", put("fit", "levers", value=["order"] * 2), "levers"),
    ("a lever without a name", put("fit", "levers", 0, value=""), "levers"),
)


BAD_FUSED: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("a list", put("fit", "fused", value=[]), "map"),
    ("a hash of 31 bytes", put("fit", "fused", "rewritten_hash", value=bytes(31)), "rewritten_hash"),
    ("a key missing", drop("fit", "fused", "apart"), "lacks"),
    ("an unknown key", put("fit", "fused", "colour", value=1), "unknown key"),
    ("a group that is a number", put("fit", "fused", "apart", 0, value=1), "apart"),
    ("a group twice", put("fit", "fused", "apart", value=["f" * 20] * 2), "each once"),
    ("a group that is no digest", put("fit", "fused", "apart", 0, value="x" * 20), "no digests"),
    ("65 groups", put("fit", "fused", "apart", value=[f"{n:020x}" for n in range(65)]), "64 at most"),
)


@pytest.mark.parametrize(("change", "word"), [row[1:] for row in BAD_FITS], ids=[row[0] for row in BAD_FITS])
def test_bad_rewrites_of_plans_are_refused_by_name(change: Callable[[Any], Any], word: str) -> None:
    with pytest.raises(PlanCorrupt, match=word) as caught:
        read_plan(damage(FITTED_FILE, change))
    assert caught.value.fields["where"].startswith("fit")


@pytest.mark.parametrize(("change", "word"), [row[1:] for row in BAD_FUSED], ids=[row[0] for row in BAD_FUSED])
def test_what_was_fused_is_refused_by_name_where_it_is_no_such_thing(change: Callable[[Any], Any], word: str) -> None:
    assert read_plan(FUSED_FILE) == fused()
    with pytest.raises(PlanCorrupt, match=word) as caught:
        read_plan(damage(FUSED_FILE, change))
    assert caught.value.fields["where"].startswith("fit")


def test_plan_of_a_rewritten_graph_is_read_as_it_was_written() -> None:
    again = read_plan(FITTED_FILE)
    assert again == fitted()
    assert again.digest == fitted().digest != plan().digest
    without_budget = edit(fitted(), "fit.budget_bytes", None)
    assert read_plan(encode_plan(without_budget)) == without_budget
    changed = put("fit", "cost", "flops", value=7)
    with pytest.raises(PlanCorrupt, match="digest"):
        read_plan(damage(FITTED_FILE, changed, seal=False))


def test_row_of_a_rewrite_takes_six_bytes_at_most() -> None:
    """Sixty thousand ops and a fifth of them parts: an op's number, its kind, and what is there for a part."""
    count = 60_000
    kinds = tuple(SUBLIST if op % 5 == 0 else SAME for op in range(count))
    parts = tuple((op % 700, op % 700 + 1) if kind == SUBLIST else () for op, kind in enumerate(kinds))
    rewrite = Rewrite(base_hash=bytes(32), origin=tuple(map(OpId, range(count))), kind=kinds, part=parts)
    long = edit(fitted(), "fit.rewrite", rewrite)
    assert len(encode_plan(long)) - len(PLAN_FILE) < 6 * count
    assert read_plan(encode_plan(long)) == long


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
