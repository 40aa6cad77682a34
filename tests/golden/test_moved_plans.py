"""Plans that moved: only ``update`` records them, and only if planner, simulator and judge agree."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.golden.files import GOLDEN, another_graph, contents
from tests.unit.cli.graphs import Shell
from tmmu.errors import ArenaTooSmall
from tmmu.golden import replay
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

pytestmark = pytest.mark.slow


def test_update_that_moves_nothing_writes_nothing(little: Shell) -> None:
    before = {path: path.stat().st_mtime_ns for path in GOLDEN.rglob("*")}
    done = little.tmmu("golden", "update")
    assert (done.code, done.out) == (0, "golden: 2 cases as recorded, nothing written\n")
    assert {path: path.stat().st_mtime_ns for path in GOLDEN.rglob("*")} == before


def test_update_names_what_moved_and_refuses_to_record_a_disagreement(
    little: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents()
    planned = replay.prepare_memory

    def late(graph: Graph, **request: Any) -> Plan:
        plan = planned(graph, **request)
        return replace(plan, buffers=replace(plan.buffers, death=tuple(death + 1 for death in plan.buffers.death)))

    monkeypatch.setattr(replay, "prepare_memory", late)
    done = little.tmmu("golden", "update", "--jobs", 1)
    assert done.code == 3
    assert (
        "GOLDEN_MISMATCH: diamond, train_full/inference: seed 0: the planner's spans are not the simulator's"
        in done.err
    )
    assert "buffer 1 (top)" in done.err
    assert contents() == before


def replace_plan(monkeypatch: pytest.MonkeyPatch, lie: Callable[[Plan], Plan]) -> None:
    """Replace every plan that the planner makes from now on."""
    planned = replay.prepare_memory
    monkeypatch.setattr(replay, "prepare_memory", lambda graph, **request: lie(planned(graph, **request)))


def test_overlapping_packing_is_found_by_the_judge(little: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_plan(
        monkeypatch, lambda plan: replace(plan, buffers=replace(plan.buffers, offset=(0,) * len(plan.buffers)))
    )
    done = little.tmmu("golden", "check", "diamond", "--jobs", 1)
    assert "diamond: train_full/inference: disagreement: seed 0: the judge refuses the plan: [" in done.out
    assert "simulator" not in done.out


def test_wrong_padded_size_is_found_by_the_simulator(little: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_plan(
        monkeypatch, lambda plan: replace(plan, buffers=replace(plan.buffers, bytes=(256,) * len(plan.buffers)))
    )
    done = little.tmmu("golden", "check", "diamond", "--jobs", 1)
    assert "seed 0: the planner's plan are not the simulator's: buffer 1 (top) has 256 bytes at offset" in done.out


def limit_arena(capacity: str) -> None:
    text = (GOLDEN / "cases.toml").read_text()
    arenas = f'seeds = [0]\narenas = ["activations=layout:slots,capacity:{capacity}"]'
    (GOLDEN / "cases.toml").write_text(text.replace("seeds = [0, 7]", arenas))


def test_refusal_is_recorded_and_compared(little: Shell) -> None:
    limit_arena("8KiB")
    assert "refusal: is now refused with ARENA_TOO_SMALL, was planned" in little.tmmu("golden", "check").out
    done = little.tmmu("golden", "update", "diamond")
    assert "major version" in done.out
    assert "0 train_full inference ARENA_TOO_SMALL\n" in (GOLDEN / "diamond.digests.txt").read_text()
    assert "# no plan in inference/inference: it is refused\n" in (GOLDEN / "diamond.plan.txt").read_text()
    shown = little.tmmu("golden", "show", "diamond", "--mode", "forward")
    assert "no plan of diamond is kept in train_full/forward" in shown.err
    assert little.tmmu("golden", "check").code == 0
    (GOLDEN / "cases.toml").write_text((GOLDEN / "cases.toml").read_text().replace("8KiB", "2MiB"))
    assert "refusal: is now planned, was refused with ARENA_TOO_SMALL" in little.tmmu("golden", "check").out


def test_refusal_of_what_fits_is_found(little: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_arena("2MiB")
    planned = replay.prepare_memory

    def timid(graph: Graph, **request: Any) -> Plan:
        if any(spec.capacity for spec in request["arenas"]):
            raise ArenaTooSmall("arena activations is too small for me")
        return planned(graph, **request)

    monkeypatch.setattr(replay, "prepare_memory", timid)
    done = little.tmmu("golden", "check", "diamond", "--jobs", 1)
    assert "seed 0: the planner refuses what by the simulator's slots fits: arena activations is too small" in done.out


def test_changed_packing_takes_a_minor_version(little: Shell) -> None:
    text = (GOLDEN / "cases.toml").read_text()
    (GOLDEN / "cases.toml").write_text(text.replace("[0, 7]", '[0, 7]\narenas = ["activations=layout:slots"]'))
    done = little.tmmu("golden", "update", "diamond")
    assert done.out.splitlines()[-1].startswith("minor version: only offsets or figures moved")
    assert (
        "diamond: train_full/inference: plan moved: buffer 1 (top) has 4096 bytes at offset 0 of activations, was"
        in done.out
    )
    assert "(seed 0, 7)" in done.out


def test_changed_graph_takes_no_version(little: Shell) -> None:
    another_graph()
    done = little.tmmu("golden", "check")
    assert done.code == 3
    assert "files: damaged: diamond.ir.cbor is not as it was written" in done.out
    assert "diamond: train_full/inference: spans moved: buffer 1" in done.out
    done = little.tmmu("golden", "update", "--json")
    assert (done.code, done.record["version"]) == (0, "")
    assert [(finding["case"], finding["kind"]) for finding in done.record["moved"]] == [("diamond", "graph")]
    written = {"diamond.digests.txt", "diamond.plan.txt", "diamond.plans.cbor"}
    assert set(done.record["written"]) == {"SUMS", *written}
    assert little.tmmu("golden", "check").code == 0


def test_changed_slots_take_a_major_version(little: Shell) -> None:
    text = (GOLDEN / "cases.toml").read_text()
    arenas = 'arenas = ["activations=alignment:8KiB,layout:packed"]'
    (GOLDEN / "cases.toml").write_text(text.replace("[0, 7]", f"[0, 7]\n{arenas}"))
    done = little.tmmu("golden", "update", "diamond", "--json")
    assert (done.code, done.record["version"]) == (0, "major")
    assert {finding["kind"] for finding in done.record["moved"]} == {"slots", "addresses"}
    assert done.record["moved"][0]["what"].startswith("buffer 1 (top) is in slot 0 of activations, of 16384 bytes, was")


def test_cases_that_are_not_chosen_must_be_unchanged(little: Shell) -> None:
    before = contents()
    another_graph()
    done = little.tmmu("golden", "update", "mixed-roles")
    assert done.err == (
        "tmmu: GOLDEN_MISMATCH: golden/diamond.ir.cbor is not as it was written (update its case too)\n"
    )
    assert {name for name, data in contents().items() if before[name] != data} == {"golden/diamond.ir.cbor"}


def test_changed_plan_of_a_kept_case_leaves_old_files_alone(little: Shell) -> None:
    before = {name: data for name, data in contents().items() if "formats" in name}
    shutil.copy(GOLDEN / "diamond.ir.cbor", GOLDEN / "mixed-roles.ir.cbor")
    assert little.tmmu("golden", "update", "mixed-roles").code == 0
    assert {name: data for name, data in contents().items() if "formats" in name} == before
    assert len(before) == 2


def test_case_that_is_gone_takes_its_files_with_it(little: Shell) -> None:
    text = (GOLDEN / "cases.toml").read_text()
    (GOLDEN / "cases.toml").write_text(text[text.index("[mixed") :])
    (GOLDEN / "diamond.ir.cbor").unlink()
    done = little.tmmu("golden", "update")
    assert done.code == 0
    assert [line for line in done.out.splitlines() if line.startswith("removed")] == [
        "removed golden/diamond.digests.txt",
        "removed golden/diamond.plan.txt",
        "removed golden/diamond.plans.cbor",
    ]
    assert little.tmmu("golden", "check").code == 0


def test_new_case_needs_no_version(little: Shell) -> None:
    with (GOLDEN / "cases.toml").open("a") as file:
        file.write('\n[second]\nreason = "the same again"\nseeds = [1]\n')
    shutil.copy(GOLDEN / "diamond.ir.cbor", GOLDEN / "second.ir.cbor")
    done = little.tmmu("golden", "update", "second")
    assert (done.code, done.out.splitlines()[0]) == (0, "second: new")
    assert "version" not in done.out
    assert little.tmmu("golden", "check").out == "golden: 3 cases, 36 plans as recorded\n"
