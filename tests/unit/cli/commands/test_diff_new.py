"""``tmmu diff`` with a commit that lacks the model: the model is reported as new, a misspelt name is refused."""

from pathlib import Path

import pytest

from tests.unit.cli.commands.test_diff import NET, WIDE, record, write
from tests.unit.cli.commands.test_diff_commits import commit, git
from tests.unit.cli.graphs import Shell

TEXT = """\
nets/new.ir.cbor: inference on cpu, preset inference: new, total 32.0 KiB

nothing to compare with: git:HEAD:nets/new.ir.cbor is not there

                    bytes
total            32.0 KiB
  text           16.0 KiB
  stack          12.0 KiB
    activations  12.0 KiB
  inputs          4.0 KiB

activations are fullest at position 2 (mm): 12.0 KiB, all 2 buffers:

   size  buffer  role        made by  module  source
8.0 KiB       3  activation  relu     two     net.py:4
4.0 KiB       4  activation  mm       three   net.py:5
"""
PAGE = [
    "### tmmu: new, total 32.0 KiB",
    "",
    "`nets/new.ir.cbor`: inference on cpu, preset inference",
    "",
    "nothing to compare with: git:HEAD:nets/new.ir.cbor is not there  ",
    "",
    "|  | bytes |",
    "| --- | --: |",
    "| total | 32.0 KiB |",
]


@pytest.fixture
def repository(shell: Shell) -> Shell:
    """A repository with a graph, and beside it in a new folder one that no commit has."""
    git("init", "--quiet", ".")
    write("old", NET)
    commit("a graph")
    Path("nets").mkdir()
    write("nets/new", NET)
    return shell


def test_new_model_is_reported_and_exceeds_no_limit(repository: Shell) -> None:
    pair = ("git:HEAD:nets/new.ir.cbor", "nets/new.ir.cbor")
    done = repository.tmmu("diff", *pair, "--fail-over", "0")
    assert (done.code, done.err) == (0, "")
    assert done.out == TEXT
    assert repository.tmmu("diff", *pair, "--markdown").out.splitlines()[: len(PAGE)] == PAGE


def test_json_has_the_keys_of_a_comparison_and_no_before(repository: Shell) -> None:
    report = repository.tmmu("diff", "git:HEAD:nets/new.ir.cbor", "nets/new.ir.cbor", "--json").record
    both = repository.tmmu("diff", "old.ir.cbor", "nets/new.ir.cbor", "--json").record
    assert set(report) == set(both) | {"fullest"}
    assert (report["before"], report["same"], report["over"], report["error"]) == (None, False, [], None)
    assert report["after"] == both["after"]
    assert [figure["after"] for figure in report["figures"]] == [figure["after"] for figure in both["figures"]]
    assert {(figure["before"], figure["change_ppm"]) for figure in report["figures"]} == {(0, None)}
    assert (report["fullest"]["position"], report["fullest"]["bytes"]) == (2, 12 << 10)


def test_new_model_without_a_stack_has_no_peak(repository: Shell) -> None:
    write("nets/new", "input x 4\nreturn x")
    done = repository.tmmu("diff", "git:HEAD:nets/new.ir.cbor", "nets/new.ir.cbor")
    assert done.out.endswith("\ntotal     4.0 KiB\n  inputs  4.0 KiB\n")


def test_model_is_new_in_the_commit_that_brings_it_and_in_a_new_folder(
    repository: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("nets")
    assert "new, total" in repository.tmmu("diff", "git:HEAD:new.ir.cbor", "new.ir.cbor").out
    commit("a second graph")
    assert "new, total" in repository.tmmu("diff", "git:HEAD~1:new.ir.cbor", "git:HEAD:new.ir.cbor").out
    assert "the same plan" in repository.tmmu("diff", "git:HEAD:new.ir.cbor", "new.ir.cbor").out


def test_recorded_plan_may_be_new_as_well(repository: Shell) -> None:
    record(repository, "made", WIDE, "--preset", "train_full")
    done = repository.tmmu("diff", "git:HEAD:made.plan.cbor", "made.plan.cbor")
    assert done.out.startswith("made.plan.cbor: inference on cpu, preset train_full: new, total ")


def test_options_apply_to_what_is_new(repository: Shell) -> None:
    pair = ("git:HEAD:nets/new.ir.cbor", "nets/new.ir.cbor", "--preset", "train_full")
    assert "preset train_full: new, total 36.0 KiB" in repository.tmmu("diff", *pair).out


def test_name_that_neither_side_knows_is_refused(repository: Shell) -> None:
    for pair, message in (
        (("git:HEAD:nets/new.ir.cbor", "old.ir.cbor"), "git:HEAD:nets/new.ir.cbor: cannot read nets/new.ir.cbor"),
        (("git:HEAD:nwe.ir.cbor", "nets/new.ir.cbor"), "git:HEAD:nwe.ir.cbor: cannot read nwe.ir.cbor"),
        (("git:HEAD:none.ir.cbor", "none.ir.cbor"), "none.ir.cbor: cannot read none.ir.cbor"),
        (("nets/new.ir.cbor", "git:HEAD:nets/new.ir.cbor"), "git:HEAD:nets/new.ir.cbor: cannot read"),
        (("git:nowhere:nets/new.ir.cbor", "nets/new.ir.cbor"), "git: no commit 'nowhere'"),
    ):
        done = repository.tmmu("diff", *pair)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
        assert message in done.err, done.err
