"""Commands on golden files as their caller sees them: what they print and refuse, in how many processes."""

import os
from pathlib import Path

import pytest

from tests.golden.files import GOLDEN, another_graph, contents
from tests.unit.cli.graphs import Shell
from tmmu.golden import cases

pytestmark = pytest.mark.slow


def test_checking_and_showing_write_nothing(little: Shell) -> None:
    before = contents()
    for arguments in (("check",), ("check", "diamond"), ("show",), ("show", "diamond", "--mode", "forward")):
        assert little.tmmu("golden", *arguments).code == 0
    (GOLDEN / "diamond.digests.txt").write_text("")
    assert little.tmmu("golden", "check").code == 3
    assert contents() == before | {"golden/diamond.digests.txt": b""}


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
