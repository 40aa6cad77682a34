"""Plans of rewritten graphs and their files: what is written is judged twice, and made of its base again."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.fits import TOKEN, early_updates_and_reruns, find, fit_plan, unchanged, with_reruns, with_row
from tests.unit.ir.samples import edit, plan
from tests.unit.judge.rewrite.programs import step
from tmmu.codec.files import read_file
from tmmu.codec.fitted import base_path, fit_of, fitted_paths, is_rewritten, load_base, rebuild_fitted, write_fitted
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import InternalError, PlanMismatch, PlanUnsound, RewriteUnsound, TmmuError
from tmmu.ir.fit import fit_cost
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.ids import OpId
from tmmu.ir.plan import Plan, encode_plan
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import RERUN, SUBLIST, TWIN
from tmmu.judge.rewrite.check import require_meaning, require_rows


def base() -> Graph:
    return step("adamw:foreach")


@cache
def fitted_step() -> Plan:
    return fit_plan(base(), early_updates_and_reruns(base(), {"gelu.default": "gelu_backward.default"}))


def test_three_files_hold_base_graph_and_plan(tmp_path: Path) -> None:
    paths = write_fitted(tmp_path, "block", base=base(), plan=fitted_step(), token=TOKEN)
    assert [path.name for path in paths] == ["block.ir.cbor", "block.fit.ir.cbor", "block.fit.plan.cbor"]
    assert paths == fitted_paths(tmp_path, "block")
    assert read_graph(paths[0]) == base()
    assert read_plan(paths[2]) == fitted_step()
    assert read_graph(paths[1]) == rebuild_fitted(read_graph(paths[0]), read_plan(paths[2]))
    assert load_base(base_path(paths[2]), fitted_step(), TOKEN, plan_name="x") == base()


def test_graph_that_a_fit_made_is_known_by_the_plan_beside_it_or_by_its_name(tmp_path: Path) -> None:
    of_base, of_fitted, plan_file = write_fitted(tmp_path, "block", base=base(), plan=fitted_step(), token=TOKEN)
    rewritten = read_graph(of_fitted)
    assert is_rewritten(of_fitted, rewritten)
    assert not is_rewritten(of_base, base())
    other = of_base.with_name("other.ir.cbor")
    assert not is_rewritten(other, rewritten), "nothing says so"
    other.with_name("other.plan.cbor").write_bytes(encode_plan(fitted_step()))
    assert is_rewritten(other, rewritten)
    assert not is_rewritten(other, base()), "the plan beside it is of another graph"
    plan_file.unlink()
    assert is_rewritten(of_fitted, rewritten)
    as_it_is = write_fitted(tmp_path, "whole", base=base(), plan=fit_plan(base(), unchanged(base())), token=TOKEN)
    assert not is_rewritten(as_it_is[1], base())


def test_what_one_judge_refuses_is_not_written(tmp_path: Path) -> None:
    draws = step("draws")
    redrawn = with_row(unchanged(draws), 4, OpId(0))
    stale = edit(fitted_step(), "buffers.offset", 256, 0)
    for error, graph, refused in (
        (RewriteUnsound, draws, fit_plan(draws, redrawn, mode="inference")),
        (PlanUnsound, base(), stale),
        (PlanMismatch, draws, fitted_step()),
    ):
        with pytest.raises(error):
            write_fitted(tmp_path, "block", base=graph, plan=refused, token=TOKEN)
    with pytest.raises(InternalError, match="without the key fit"):
        write_fitted(tmp_path, "block", base=base(), plan=plan(), token=TOKEN)
    assert list(tmp_path.iterdir()) == []


def row_of(kind: str) -> int:
    return fit_of(fitted_step()).rewrite.kind.index(kind)


def changed(column: str, cell: object) -> Callable[[], Plan]:
    """Another cell for what runs again, an activation function."""
    return lambda: edit(fitted_step(), f"fit.rewrite.{column}", cell, row_of(RERUN))


def parted(row: int, part: tuple[int, int]) -> Plan:
    return edit(edit(fitted_step(), "fit.rewrite.kind", SUBLIST, row), "fit.rewrite.part", part, row)


REFUSED: tuple[tuple[str, Callable[[], Plan], type[TmmuError], str], ...] = (
    ("another base", lambda: edit(fitted_step(), "fit.rewrite.base_hash", bytes(32)), PlanMismatch, "rewrites graph"),
    ("an op that the base has not", changed("origin", 10_000), RewriteUnsound, "stands for op 10000"),
    ("an op that has no twin", changed("kind", TWIN), RewriteUnsound, "no twin"),
    ("a part of what is no list", lambda: parted(row_of(RERUN), (0, 1)), RewriteUnsound, "entry by entry"),
    ("entries that a list has not", lambda: parted(row_of(SUBLIST), (0, 99)), RewriteUnsound, "none of the"),
    ("another op of the base", changed("origin", find(base(), "mm.default")), PlanUnsound, "makes graph"),
    ("other entries", lambda: parted(row_of(SUBLIST), (1, 2)), PlanUnsound, "makes graph"),
)


@pytest.mark.parametrize(("make", "error", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_plan_that_its_base_does_not_make_is_refused(
    make: Callable[[], Plan], error: type[TmmuError], words: str
) -> None:
    with pytest.raises(error, match=words):
        rebuild_fitted(base(), make())


def test_rewrite_that_grows_without_end_is_refused_before_it_is_made() -> None:
    rows = 1 << 17
    plan_of_many = edit(fitted_step(), "fit.rewrite.origin", (OpId(0),) * rows)
    plan_of_many = edit(plan_of_many, "fit.rewrite.kind", (RERUN,) * rows)
    plan_of_many = edit(plan_of_many, "fit.rewrite.part", ((),) * rows)
    with pytest.raises(RewriteUnsound, match="16 times as large"):
        rebuild_fitted(base(), plan_of_many)
    # Even where each row names a thousand entries of a list that has none of them.
    wide = edit(edit(plan_of_many, "fit.rewrite.kind", (SUBLIST,) * rows), "fit.rewrite.part", ((0, 1000),) * rows)
    with pytest.raises(RewriteUnsound, match="16 times as large"):
        rebuild_fitted(base(), wide)


def test_graph_that_does_not_say_its_calls_is_no_base() -> None:
    bare = edit(base(), "calls", None)
    rewrite = edit(unchanged(base()), "base_hash", bare.ir_hash)
    with pytest.raises(RewriteUnsound, match="version 1"):
        require_rows(bare, rewrite)


def test_files_that_do_not_belong_together_are_named(tmp_path: Path) -> None:
    write_fitted(tmp_path, "block", base=base(), plan=fitted_step(), token=TOKEN)
    other = tmp_path / "other.ir.cbor"
    other.write_bytes(encode_graph(step("draws")))
    with pytest.raises(PlanMismatch, match=r"block\.fit\.plan\.cbor on .*other\.ir\.cbor: the plan rewrites graph"):
        load_base(other, fitted_step(), TOKEN, plan_name="block.fit.plan.cbor")


def test_cost_is_what_runs_again() -> None:
    rewrite = with_reruns(unchanged(base()), base(), {"mm.default": "", "gelu.default": "gelu_backward.default"})
    graph = rebuild_graph(base(), rewrite)
    require_meaning(base(), graph, rewrite)
    product = base().ops.target.index("aten.mm.default")
    written = [base().ops.writes[op][0] for op in (product, base().ops.target.index("aten.gelu.default"))]
    cost = fit_cost(graph, rewrite, time_ppm=7)
    assert cost.flops == base().notes.ops.flops[product] > 0
    assert cost.bytes == sum(base().buffers.bytes[base().values.buffer[value]] for value in written)
    assert cost.time_ppm == 7
    assert fit_cost(rebuild_graph(base(), unchanged(base())), unchanged(base()), time_ppm=0).flops == 0


def test_plan_of_early_updates_says_its_graph_in_little(tmp_path: Path) -> None:
    """What the key adds to the file: some bytes for each op."""
    data = read_file(write_fitted(tmp_path, "block", base=base(), plan=fitted_step(), token=TOKEN)[2])
    bare = edit(fitted_step(), "fit", None)
    assert len(data) - len(encode_plan(bare)) < 200 + 6 * len(fit_of(fitted_step()).rewrite)
