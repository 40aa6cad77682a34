"""``tmmu golden update``: concurrent, killed, and beside files that it did not write."""

import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.golden.files import contents
from tests.unit.cli.graphs import Done, Shell
from tests.warm_server import WarmPython
from tmmu.codec import lock
from tmmu.errors import InvalidConfig
from tmmu.golden import check, store, update
from tmmu.golden.cases import CONFIGS, GoldenCase, read_cases
from tmmu.golden.journal import JOURNAL
from tmmu.golden.replay import replay

GOLDEN = Path("golden")
KILLED = """
import os, pathlib, sys
left = int(sys.argv.pop(1))
def counted(act):
    def step(self, *arguments, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return act(self, *arguments, **more)
    return step
pathlib.Path.replace, pathlib.Path.unlink = counted(pathlib.Path.replace), counted(pathlib.Path.unlink)
from tmmu.cli.main import main
main()
"""


def edit(old: str, new: str) -> None:
    text = (GOLDEN / "cases.toml").read_text()
    assert old in text
    (GOLDEN / "cases.toml").write_text(text.replace(old, new))


@pytest.mark.parametrize("name", ["my.plan.txt", "my.digests.txt", "docs/how.plans.cbor", "docs/diamond.plan.txt"])
def test_file_that_no_update_made_is_never_removed(little: Shell, name: str) -> None:
    (GOLDEN / "docs").mkdir()
    (GOLDEN / name).write_text("mine")
    edit("two takers", "two who take")
    done = little.tmmu("golden", "update")
    assert done.err.startswith(f"tmmu: GOLDEN_MISMATCH: golden/{name} belongs to no case"), done
    assert (done.code, (GOLDEN / name).read_text()) == (3, "mine")


def test_two_updates_of_different_cases_are_both_recorded(little: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lock each would write sums that lack the other's."""
    edit("two takers", "two who take")
    edit("all roles", "each role")
    cases, meeting, sums = read_cases(GOLDEN), threading.Barrier(2), update._sums

    def late(*arguments: object) -> str:
        text = sums(*arguments)  # type: ignore[arg-type]
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)
        return text

    def record(case: GoldenCase) -> None:
        update.update(GOLDEN, cases, {case.name: {config: replay(GOLDEN, case, config) for config in CONFIGS}})

    monkeypatch.setattr(update, "_sums", late)
    threads = [threading.Thread(target=record, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert little.tmmu("golden", "check").code == 0


def test_update_that_waits_too_long_for_another_is_refused(little: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LOCK_TIMEOUT_S", 0.1)
    before = contents()
    with lock.lock_folder(GOLDEN):
        done = little.tmmu("golden", "update")
    assert (done.code, done.err.count("\n"), contents()) == (2, 1, before)
    assert done.err.startswith("tmmu: INVALID_CONFIG: golden: another process has been writing there for ")
    assert little.tmmu("golden", "update").code == 0


@pytest.mark.slow
def test_update_finishes_a_killed_one_and_reports_what_moved(little: Shell) -> None:
    """Killed between any two renames or removals, while one case moved and another was removed."""
    edit("[0, 7]", '[0, 7]\narenas = ["activations=alignment:8KiB,layout:packed"]')
    text = (GOLDEN / "cases.toml").read_text()
    (GOLDEN / "cases.toml").write_text(text[: text.index("[mixed")])
    (GOLDEN / "mixed-roles.ir.cbor").unlink()
    shutil.copytree(GOLDEN, "before")
    expected = little.tmmu("golden", "update", "--json").record
    assert expected["version"] == "major"
    after, steps = contents(), 0
    while True:
        shutil.rmtree(GOLDEN)
        shutil.copytree("before", GOLDEN)
        command = [sys.executable, "-c", KILLED, str(steps), "golden", "update", "--jobs", "1"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            break
        done = little.tmmu("golden", "update", "--json")
        assert (done.code, done.record["version"]) == (0, "major"), steps
        told = [(finding["case"], finding["config"], finding["kind"]) for finding in done.record["moved"]]
        assert told == [(finding["case"], finding["config"], finding["kind"]) for finding in expected["moved"]], steps
        assert contents() == after
        steps += 1
    assert len(expected["removed"]) == 3
    assert steps == len(expected["written"]) + 3 + 2, "one for each file, and two for the note of what moved"


def test_findings_of_a_killed_update_are_dropped_without_its_files(little: Shell) -> None:
    before = contents()
    edit("[0, 7]", '[0, 7]\narenas = ["activations=alignment:8KiB,layout:packed"]')
    command = [sys.executable, "-c", KILLED, "3", "golden", "update", "--jobs", "1"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    assert (GOLDEN / JOURNAL).exists()
    for name, data in before.items():
        Path(name).write_bytes(data)
    assert little.tmmu("golden", "update").out == "golden: 2 cases as recorded, nothing written\n"
    assert contents() == before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"moved": [3], "sums": {}, "removed": []}'])
def test_malformed_journal_is_ignored(little: Shell, text: str) -> None:
    before = contents()
    (GOLDEN / JOURNAL).write_text(text)
    assert little.tmmu("golden", "check").code == 0
    assert little.tmmu("golden", "update").out == "golden: 2 cases as recorded, nothing written\n"
    assert contents() == before


def test_unfinished_files_of_running_processes_stay(little: Shell) -> None:
    running, gone = GOLDEN / f".tmmu-{os.getppid()}-0.tmp", GOLDEN / "formats" / ".tmmu-999999999-0.tmp"
    running.write_bytes(b"half")
    gone.write_bytes(b"half")
    assert little.tmmu("golden", "update").code == 0
    assert (running.exists(), gone.exists()) == (True, False)


def test_file_of_an_old_format_is_not_trusted_without_sums(little: Shell) -> None:
    path = GOLDEN / "formats" / "ir-v1" / "mixed-roles.ir.cbor"
    data = path.read_bytes()
    sums = (GOLDEN / store.SUMS).read_bytes()
    (GOLDEN / store.SUMS).unlink()
    path.write_bytes(data[:-1])
    done = little.tmmu("golden", "update")
    assert done.code == 3
    assert "golden/SUMS is not there, and an earlier update made formats/ir-v1/mixed-roles.ir.cbor" in done.err
    assert not (GOLDEN / store.SUMS).exists()
    path.write_bytes(data)
    assert little.tmmu("golden", "update").code == 0
    assert (GOLDEN / store.SUMS).read_bytes() == sums


NAMES = ("SUMS", "cases.toml", "diamond.ir.cbor", "diamond.digests.txt", "diamond.plans.cbor", "diamond.plan.txt")


@pytest.mark.parametrize("name", [*NAMES, "formats/ir-v1/mixed-roles.ir.cbor", "formats/plan-v1/mixed-roles.plan.cbor"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_special_file_is_found_and_hides_nothing_else(
    little: Shell, name: str, make: object, warm_python: WarmPython
) -> None:
    (GOLDEN / name).unlink()
    assert callable(make)
    make(GOLDEN / name)
    (GOLDEN / "forgotten.ir.cbor").write_bytes(b"")
    if make is os.mkfifo:  # whoever opens it waits for a writer, and a process of its own can be ended
        command = [warm_python.tmmu(), "golden", "check", "--jobs", "1"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        done = Done(ended.returncode, ended.stdout, ended.stderr)
    else:
        done = little.tmmu("golden", "check")
    assert done.code == 3, done.err
    assert done.err.count("\n") == 1
    assert name in done.out + done.err
    assert name == "cases.toml" or "files: orphan: forgotten.ir.cbor belongs to no case" in done.out


def test_file_that_cannot_be_read_hides_nothing_else(little: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    read = check.read_file

    def refuse(path: Path) -> bytes:
        if path.name == "diamond.plan.txt":
            raise InvalidConfig(f"cannot read {path}: permission denied")
        return read(path)

    monkeypatch.setattr(check, "read_file", refuse)
    (GOLDEN / "forgotten.ir.cbor").write_bytes(b"")
    done = little.tmmu("golden", "check")
    assert done.code == 3
    assert "files: unreadable: cannot read golden/diamond.plan.txt: permission denied\n" in done.out
    assert "files: orphan: forgotten.ir.cbor belongs to no case" in done.out


def test_rows_that_are_no_longer_asked_for_are_listed_in_order(little: Shell) -> None:
    edit("seeds = [0, 7]", "seeds = [0, 7, 9, 8, 11, 10]")
    assert little.tmmu("golden", "update").code == 0
    edit("seeds = [0, 7, 9, 8, 11, 10]", "seeds = [7]")
    lines = [line for line in little.tmmu("golden", "check").out.splitlines() if "no longer asked for" in line]
    texts = [f"(seed {seed})" for seed in (0, 8, 9, 10, 11)]
    assert [line.partition("asked for ")[2] for line in lines] == texts * len(CONFIGS)
    assert lines == sorted(lines, key=lambda line: line.split(": ")[1])


def test_show_names_a_damaged_file_of_plans(little: Shell) -> None:
    path = GOLDEN / "diamond.plans.cbor"
    path.write_bytes(path.read_bytes()[:-3])
    done = little.tmmu("golden", "show", "diamond", "--mode", "forward")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("tmmu: PLAN_CORRUPT: golden/diamond.plans.cbor: ")
