"""``tmmu cache`` as text: shortened digests, local times, one-line errors and exit codes."""

import errno
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.commands.test_cache import NET, plan
from tests.unit.cli.commands.test_cache_commands import fill
from tests.unit.cli.graphs import Shell, small
from tests.warm_server import WarmPython
from tmmu.cache import store
from tmmu.cli.commands.cache import _format_time, _shorten_digests
from tmmu.driver import cache_folder


@pytest.fixture
def net(shell: Shell) -> Shell:
    """A folder with a model."""
    (shell.folder / "net.py").write_text(NET)
    return shell


@pytest.fixture
def paris(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone two hours ahead of UTC in summer."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("paris")
def test_ls_shows_the_last_use_in_local_time(shell: Shell) -> None:
    fill(shell, 1)
    (entry_file,) = store.entries(cache_folder())
    os.utime(entry_file.path, (1_750_000_000, 1_750_000_000))
    row = shell.tmmu("cache", "ls").out.splitlines()[1]
    assert row.split()[:3] == [entry_file.key[:12], "2025-06-15", "17:06"]
    assert shell.tmmu("plan", "small.ir.cbor", "-o", "x.plan.cbor", "--seed", 1).code == 0
    assert "2025-06-15" not in shell.tmmu("cache", "ls").out, "it was served"
    assert shell.tmmu("cache", "ls", "--json").record["entries"][0]["used_ns"] > entry_file.used_ns


def test_time_outside_the_calendar_is_left_out() -> None:
    assert _format_time(10**30) == ""


COMPILED = """
import torch
from torch import nn
torch.compile(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), backend="tmmu")(torch.zeros(2, 4))
"""


def test_ls_names_traced_programs(net: Shell, warm_python: WarmPython) -> None:
    """JSON has the whole hash; the table has its first digits."""
    assert net.tmmu("run", "net.py").code == 0
    subprocess.run([warm_python.python(), "-c", COMPILED], check=True)  # Dynamo remembers what ran in this process
    lines = net.tmmu("cache", "ls").out.splitlines()[1:3]
    models = [row["parts"]["model"] for row in net.tmmu("cache", "ls", "--json").record["entries"]]
    for line, model, name in zip(lines, models, ("torch.compile", "net"), strict=True):
        assert re.fullmatch(rf"{name}, \d+ ops, [0-9a-f]{{64}}", model)
        assert f"  {model[:-52]}…  " in line
        assert not re.search("[0-9a-f]{13}", line)
    assert lines[1].endswith("x float32[2,8]")


def test_why_shortens_digests_outside_json(net: Shell) -> None:
    assert net.tmmu("run", "net.py").code == 0
    (model,) = [row["parts"]["model"] for row in net.tmmu("cache", "ls", "--json").record["entries"]]
    net.graph(small())
    shown = net.tmmu("cache", "why", "small.ir.cbor", "--json").record["nearest"][0]["parts"]
    assert shown["model.inputs"] == ["", "x float32[2,8]"]
    assert _shorten_digests(f"graph {model}") == f"graph {model[:-52]}…"


def test_why_exits_with_0_on_hit_and_miss(net: Shell) -> None:
    """A miss is no error; a script reads ``kept``."""
    assert net.tmmu("cache", "why", "net.py").code == 0
    plan(net)
    hit = net.tmmu("cache", "why", "net.py", "--json")
    assert (hit.code, hit.record["kept"]) == (0, True)
    store.entries(cache_folder())[0].path.write_bytes(b"x")
    miss = net.tmmu("cache", "why", "net.py", "--json")
    assert (miss.code, miss.record["kept"]) == (0, False)


def test_why_exits_as_plan_does_for_a_broken_target(net: Shell) -> None:
    (net.folder / "net.py").write_text("model = 1 +\n")
    (net.folder / "cut.ir.cbor").write_bytes(b"\xa1")
    for target, code, error_code in (("net.py", 2, "CAPTURE_FAILED"), ("cut.ir.cbor", 3, "PLAN_CORRUPT")):
        for command in (("plan",), ("cache", "why")):
            done = net.tmmu(*command, target)
            assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
            assert error_code in done.err


def test_entry_removed_meanwhile_is_no_fault(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a ``prune`` in another process."""
    fill(shell, 1, 2)
    removed, remaining = store.entries(cache_folder())
    monkeypatch.setattr(store, "entries", lambda folder: (removed, remaining))
    removed.path.unlink()
    done = shell.tmmu("cache", "verify")
    assert (done.code, done.out) == (0, f"sound: 1 entry in {cache_folder()}\n")
    assert [row["key"] for row in shell.tmmu("cache", "ls", "--json").record["entries"]] == [remaining.key]


def test_prune_says_what_it_cannot_remove(shell: Shell) -> None:
    fill(shell, 1, 2)
    entry_file, _ = store.entries(cache_folder())
    entry_file.path.unlink()
    entry_file.path.mkdir()
    for arguments in (("prune",), ("prune", "--all")):
        done = shell.tmmu("cache", *arguments)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert done.err.startswith(f"tmmu: INVALID_CONFIG: {entry_file.path} should go and cannot be removed: ")
    assert shell.tmmu("cache", "prune", "--json").record["stuck"] == {entry_file.path.name: "Is a directory"}
    assert [stored.path for stored in store.entries(cache_folder())] == [entry_file.path]


@pytest.mark.parametrize("option", ["--all", "--limit=0"])
def test_prune_says_that_the_folder_is_read_only(shell: Shell, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    fill(shell, 1, 2)

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    done = shell.tmmu("cache", "prune", option)
    assert (done.code, len(store.entries(cache_folder()))) == (2, 2)
    assert "removed 0 entries" in done.out
    assert done.err.endswith("cannot be removed: Permission denied, and 1 more (remove it by hand, or as who may)\n")


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_cache_folder_that_is_a_file_is_one_clear_line(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (shell.folder / "file").write_text("")
    monkeypatch.setenv("TMMU_CACHE_DIR", str(shell.folder / "file"))
    done = shell.tmmu("cache", command)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"tmmu: INVALID_CONFIG: {shell.folder}/file/plans cannot be listed: Not a directory "
        "(name another folder in TMMU_CACHE_DIR)\n"
    )
    monkeypatch.setenv("TMMU_CACHE_DIR", str(shell.folder / "none"))
    assert shell.tmmu("cache", command).code == 0


def test_prune_all_removes_unfinished_files_of_the_future_too(shell: Shell) -> None:
    fill(shell, 1)
    path = cache_folder() / ".tmmu-2-0.tmp"
    path.touch()
    os.utime(path, (1 << 32, 1 << 32))
    assert shell.tmmu("cache", "prune", "--json").record["unfinished"] == 0
    assert shell.tmmu("cache", "prune", "--all", "--json").record["unfinished"] == 1
    assert list(cache_folder().iterdir()) == []
