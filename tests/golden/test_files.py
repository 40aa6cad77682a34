"""Golden files: any damage is found, only ``update`` writes, and only if planner, simulator and judge agree."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.graphs import Shell, leaving_its_buffer
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import ArenaTooSmall, PlanCorrupt, TmmuError
from tmmu.golden import cases, replay, store
from tmmu.golden.cases import PlanConfig, read_cases
from tmmu.golden.check import check_files
from tmmu.ir.encoding import cbor
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.plan import Plan, encode_plan

pytestmark = pytest.mark.slow

GOLDEN = Path("golden")


def flip_bit(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def is_found() -> bool:
    """Whether the check of files alone finds a fault."""
    try:
        return bool(tuple(check_files(GOLDEN, read_cases(GOLDEN))))
    except TmmuError:
        return True


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(GOLDEN.rglob("*")) if path.is_file()}


def test_every_bit_of_a_file_is_guarded(little: Shell) -> None:
    text = (GOLDEN / "cases.toml").read_text()
    (GOLDEN / "cases.toml").write_text(text[: text.index("[mixed")])
    for path in ("formats", "mixed-roles.ir.cbor", "mixed-roles.digests.txt", "mixed-roles.plans.cbor"):
        shutil.rmtree(GOLDEN / path) if path == "formats" else (GOLDEN / path).unlink()
    (GOLDEN / "mixed-roles.plan.txt").unlink()
    resum()
    assert not is_found()
    path = GOLDEN / "diamond.ir.cbor"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        path.write_bytes(flip_bit(data, bit))
        assert is_found(), f"bit {bit}"


def test_random_bits_of_every_file_are_guarded(shell: Shell) -> None:
    draw = random.Random(5)
    assert not is_found()
    for path in sorted(path for path in GOLDEN.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for _ in range(2):
            path.write_bytes(flip_bit(data, draw.randrange(8 * len(data))))
            assert is_found(), path
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["diamond.digests.txt", "diamond.plans.cbor", "SUMS", "cases.toml"])
def test_file_cut_short_or_emptied_is_found(little: Shell, name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    for short in (data[:-1], data[: len(data) // 2], b""):
        (GOLDEN / name).write_bytes(short)
        assert little.tmmu("golden", "check").code in (2, 3)


def resum() -> None:
    """Write sums of the files as they are, as an update would."""
    sums = {name: store.checksum_of((GOLDEN / name).read_bytes()) for name in store.list_files(GOLDEN)}
    (GOLDEN / store.SUMS).write_text(store.print_sums(sums))


def test_digest_that_is_edited_with_its_sum_is_found_by_planning(little: Shell) -> None:
    path = GOLDEN / "diamond.digests.txt"
    lines = path.read_text().splitlines()
    head, _, last = lines[-1].rpartition(" ")
    lines[-1] = f"{head} {'f' * len(last)}"
    path.write_text("\n".join(lines) + "\n")
    resum()
    done = little.tmmu("golden", "check")
    assert done.code == 3
    assert (
        done.out == "diamond: remat_enabled/backward: plan moved: which buffer is not told by digests alone (seed 7)\n"
    )


@pytest.mark.parametrize("name", ["diamond.plan.txt", "diamond.plans.cbor", "diamond.digests.txt"])
def test_file_that_an_update_would_write_otherwise_is_found(little: Shell, name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    edited = store.encode_plans({}) if name.endswith(".cbor") else data.replace(b"# diamond", b"# Diamond")
    (GOLDEN / name).write_bytes(edited)
    resum()
    done = little.tmmu("golden", "check")
    assert (done.code, done.out) == (3, f"diamond: stale: {name} is not what an update would write\n")
    assert f"wrote golden/{name}" in little.tmmu("golden", "update").out
    assert (GOLDEN / name).read_bytes() == data


def test_row_that_is_gone_or_too_much_is_found(little: Shell) -> None:
    path = GOLDEN / "diamond.digests.txt"
    text = path.read_text()
    last = text.splitlines()[-1]
    path.write_text(text.replace(last + "\n", "9" + last[1:] + "\n"))
    resum()
    done = little.tmmu("golden", "check")
    assert "diamond: remat_enabled/backward: missing: is asked for and not recorded (seed 7)" in done.out
    assert "diamond: remat_enabled/backward: orphan: is recorded and no longer asked for (seed 9)" in done.out


@pytest.mark.parametrize("name", ["diamond.ir.cbor", "diamond.digests.txt", "diamond.plans.cbor", "diamond.plan.txt"])
def test_missing_file_is_named(little: Shell, name: str) -> None:
    (GOLDEN / name).unlink()
    done = little.tmmu("golden", "check")
    assert done.code == 3
    assert f"files: missing: {name} is not there\n" in done.out


def test_orphan_is_named_and_not_removed(little: Shell) -> None:
    (GOLDEN / "forgotten.ir.cbor").write_bytes(b"\x00")
    assert "files: orphan: forgotten.ir.cbor belongs to no case" in little.tmmu("golden", "check").out
    done = little.tmmu("golden", "update")
    assert done.err.startswith("tmmu: GOLDEN_MISMATCH: golden/forgotten.ir.cbor belongs to no case")
    assert (GOLDEN / "forgotten.ir.cbor").exists()


def test_checking_and_showing_write_nothing(little: Shell) -> None:
    before = contents()
    for arguments in (("check",), ("check", "diamond"), ("show",), ("show", "diamond", "--mode", "forward")):
        assert little.tmmu("golden", *arguments).code == 0
    (GOLDEN / "diamond.digests.txt").write_text("")
    assert little.tmmu("golden", "check").code == 3
    assert contents() == before | {"golden/diamond.digests.txt": b""}


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


def another_graph() -> None:
    shutil.copy(GOLDEN / "mixed-roles.ir.cbor", GOLDEN / "diamond.ir.cbor")


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


def test_file_of_an_old_format_is_never_rewritten(little: Shell) -> None:
    path = GOLDEN / "formats" / "plan-v1" / "mixed-roles.plan.cbor"
    data = path.read_bytes()
    path.write_bytes(flip_bit(data, 77))
    out = little.tmmu("golden", "check").out
    assert "files: damaged: formats/plan-v1/mixed-roles.plan.cbor is not as it was written" in out
    assert "files: unreadable: formats/plan-v1/mixed-roles.plan.cbor: " in out
    assert "is not as it was written (restore it from version control)" in little.tmmu("golden", "update").err
    path.unlink()
    assert "is not as it was written (restore it from version control)" in little.tmmu("golden", "update").err
    assert not path.exists()


def test_kept_plan_that_is_no_longer_sound_is_found(little: Shell) -> None:
    graph_file = GOLDEN / "formats" / "ir-v1" / "mixed-roles.ir.cbor"
    shutil.copy(GOLDEN / "diamond.ir.cbor", graph_file)
    assert read_graph(graph_file)
    resum()
    assert "its graph mixed-roles.ir.cbor is not there" in little.tmmu("golden", "check").out


def test_kept_plan_that_the_judge_refuses_is_found(little: Shell) -> None:
    path = GOLDEN / "formats" / "plan-v1" / "mixed-roles.plan.cbor"
    plan = read_plan(path)
    path.write_bytes(encode_plan(replace(plan, buffers=replace(plan.buffers, offset=(0,) * len(plan.buffers)))))
    resum()
    out = little.tmmu("golden", "check").out
    assert out.startswith("files: unreadable: formats/plan-v1/mixed-roles.plan.cbor: [")


def test_changed_plan_of_a_kept_case_leaves_old_files_alone(little: Shell) -> None:
    before = {name: data for name, data in contents().items() if "formats" in name}
    shutil.copy(GOLDEN / "diamond.ir.cbor", GOLDEN / "mixed-roles.ir.cbor")
    assert little.tmmu("golden", "update", "mixed-roles").code == 0
    assert {name: data for name, data in contents().items() if "formats" in name} == before
    assert len(before) == 2


def test_illegal_graph_is_found(little: Shell) -> None:
    (GOLDEN / "diamond.ir.cbor").write_bytes(encode_graph(leaving_its_buffer()))
    done = little.tmmu("golden", "check")
    assert done.code == 3
    assert "diamond: unreadable: [window] " in done.out
    assert little.tmmu("golden", "update").err.startswith("tmmu: INVALID_IR_SHAPES: [window] ")


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"format": "tmmu.golden.plans", "version": 2, "plans": {}},
        {"format": "tmmu.plan", "version": 1, "plans": {}},
        {"format": "tmmu.golden.plans", "version": 1},
        {"format": "tmmu.golden.plans", "version": 1, "plans": []},
        {"format": "tmmu.golden.plans", "version": 1, "plans": {"fast/inference": b""}},
        {"format": "tmmu.golden.plans", "version": 1, "plans": {"inference/inference": b"\xa0"}},
        {"format": "tmmu.golden.plans", "version": 1, "plans": {"inference/inference": 7}},
    ],
)
def test_malformed_file_of_plans_is_refused(content: object) -> None:
    with pytest.raises(PlanCorrupt):
        store.decode_plans(cbor.encode(content))


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


def test_digests_of_any_spelling_are_read_or_left_out() -> None:
    text = "# head\n\n1 a b c\n" + "9" * 5000 + " a b c\n-1 a b c\n1 a b\n\u0662 a b c\n2 x y z w\n"
    assert store.parse_digests(text) == {
        (1, PlanConfig(preset="a", mode="b")): ("c",),
        (2, PlanConfig(preset="x", mode="y")): ("z", "w"),
    }


def test_new_case_needs_no_version(little: Shell) -> None:
    with (GOLDEN / "cases.toml").open("a") as file:
        file.write('\n[second]\nreason = "the same again"\nseeds = [1]\n')
    shutil.copy(GOLDEN / "diamond.ir.cbor", GOLDEN / "second.ir.cbor")
    done = little.tmmu("golden", "update", "second")
    assert (done.code, done.out.splitlines()[0]) == (0, "second: new")
    assert "version" not in done.out
    assert little.tmmu("golden", "check").out == "golden: 3 cases, 36 plans as recorded\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[diamond\n", "is no TOML"),
        ("diamond = 3\n", "'diamond' is no case"),
        ("[Diamond]\nreason = 'x'\n", "'Diamond' is no case"),
        ("['../diamond']\nreason = 'x'\n", "'../diamond' is no case"),
        ("[diamond]\n", "case diamond has no reason"),
        ("[diamond]\nreason = 3\n", "reason is no line of text"),
        ("[diamond]\nreason = 'x'\nseed = [1]\n", "unknown key 'seed'"),
        ("[diamond]\nreason = 'x'\nseeds = [1.5]\n", "seeds is no list of int"),
        ("[diamond]\nreason = 'x'\nseeds = [-1]\n", "seed -1 is not an unsigned"),
        ("[diamond]\nreason = 'x'\nseeds = []\n", "has no seeds"),
        ("[diamond]\nreason = 'x'\nseeds = [1, 1]\n", "seed twice"),
        ("[diamond]\nreason = 'x'\narenas = ['heap=capacity:1']\n", "names no arena"),
        ("[diamond]\nreason = 'x'\nring = 3\n", "ring is no line of text"),
        ("[diamond]\nreason = 'x'\nring = 'much'\n", "case diamond: ring: 'much' is not a size"),
        ("[diamond]\nreason = 'x'\nring = '0'\n", "a ring of 0 holds nothing"),
        ("[diamond]\nreason = 'x'\nrecipe = 'cake'\n", "no recipe 'cake'"),
        ("[diamond]\nreason = 'x'\nreview = 'fast'\n", "review 'fast' is no PRESET/MODE"),
        ("[diamond]\nreason = 'x'\nkeep = 'yes'\n", "keep is neither true nor false"),
        ("", "has no cases"),
    ],
)
def test_bad_list_of_cases_is_one_clear_line(little: Shell, text: str, message: str) -> None:
    (GOLDEN / "cases.toml").write_text(text)
    for command, code in (("update", 2), ("show", 2), ("check", 3)):
        done = little.tmmu("golden", command)
        assert done.code == code, "to check is to find that it is not as it was recorded"
        assert done.err.startswith("tmmu: GOLDEN_MISMATCH: not as it was recorded: " if code == 3 else "tmmu: ")
        assert "golden/cases.toml" in done.err
        assert message in done.err
        assert done.err.count("\n") == 1


def test_missing_folder_or_case_is_one_line(little: Shell) -> None:
    for arguments in (
        ("check", "--dir", "nowhere"),
        ("check", "circle"),
        ("show", "circle"),
        ("show", "--mode", "forward"),
    ):
        done = little.tmmu("golden", *arguments)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert done.err.startswith("tmmu: INVALID_CONFIG: ")


def test_show_prints_reasons_graphs_and_plans(little: Shell) -> None:
    assert little.tmmu("golden", "show").out.splitlines()[1] == "diamond        5        6  two takers"
    (GOLDEN / "cases.toml").write_text((GOLDEN / "cases.toml").read_text().split("[mixed")[0])
    assert len(little.tmmu("golden", "show").out.splitlines()) == 2, "a list of one is a list"
    shown = little.tmmu("golden", "show", "diamond").out
    assert shown == (GOLDEN / "diamond.plan.txt").read_text()
    assert 'b5 activation 4096 "bottom"' in shown
    assert "mode inference preset inference token" in shown
    forward = little.tmmu("golden", "show", "diamond", "--mode", "forward").out
    assert "mode forward preset train_full token" in forward
    assert little.tmmu("golden", "show", "--json").record["cases"][0]["seeds"] == 2
    assert "mode forward" in little.tmmu("golden", "show", "diamond", "--mode", "forward", "--json").record["text"]


def test_recipe_is_shown_without_being_made(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "RECIPES", {"million-buffers": None})
    assert "million-buffers  recipe   recipe  " in shell.tmmu("golden", "show").out
    shown = shell.tmmu("golden", "show", "million-buffers")
    assert "# made by the recipe million-buffers; only digests are kept\n" in shown.out
    done = shell.tmmu("golden", "show", "million-buffers", "--mode", "forward")
    assert (done.code, "no plan of million-buffers is kept" in done.err) == (2, True)


def test_findings_are_one_json_object_with_the_error_in_it(little: Shell) -> None:
    good = little.tmmu("golden", "check", "--json").record
    assert (good["cases"], good["plans"], good["findings"], good["error"]) == (2, 27, [], None)
    (GOLDEN / "diamond.plan.txt").unlink()
    done = little.tmmu("golden", "check", "--json")
    assert done.record["error"]["code"] == "GOLDEN_MISMATCH"
    assert done.record["findings"] == [
        {"case": "files", "kind": "missing", "what": "diamond.plan.txt is not there", "config": "", "seeds": []}
    ]
    assert (done.code, done.err.count("\n")) == (3, 1)


def test_findings_do_not_depend_on_the_number_of_processes(little: Shell) -> None:
    another_graph()
    serial, parallel = little.tmmu("golden", "check", "--jobs", 1), little.tmmu("golden", "check", "--jobs", 3)
    assert (serial.code, serial.out) == (parallel.code, parallel.out)


@pytest.mark.parametrize("before", [None, ""])
def test_files_with_the_names_of_pythons_modules_do_no_harm(
    little: Shell, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    for name in ("pickle", "platform", "socket", "struct", "tempfile", "tmmu"):
        Path(f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    if before is not None:
        monkeypatch.setenv("PYTHONSAFEPATH", before)
    done = little.tmmu("golden", "check", "--jobs", 2)
    assert (done.code, done.err) == (0, "")
    assert os.environ.get("PYTHONSAFEPATH") == before
