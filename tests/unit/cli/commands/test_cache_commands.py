"""``tmmu cache ls``, ``why``, ``verify`` and ``prune``: what is kept, in which parts a key differs, what goes."""

import json
import os
from dataclasses import replace
from importlib.metadata import version

import pytest

from tests.unit.cache.cached import key
from tests.unit.cli.commands.test_cache import CONFIG, NET, origin, plan
from tests.unit.cli.graphs import Shell, small
from tmmu.cache import key_parts as parts
from tmmu.cache import store
from tmmu.cache.entry import encode_entry
from tmmu.cli.app import run
from tmmu.codec.read import read_graph, read_plan
from tmmu.driver import cache_folder


def fill(shell: Shell, *seeds: int) -> None:
    shell.graph(small())
    for seed in seeds:
        assert shell.tmmu("plan", "small.ir.cbor", "-o", "x.plan.cbor", "--seed", seed).code == 0


def test_empty_cache_is_listed_verified_and_pruned(shell: Shell) -> None:
    folder = cache_folder()
    assert shell.tmmu("cache", "ls").out == f"0 entries, 0 B, in {folder}\n"
    assert shell.tmmu("cache", "verify").out == f"sound: 0 entries in {folder}\n"
    assert shell.tmmu("cache", "prune").out == f"removed 0 entries, 0 B; kept 0 entries in {folder}\n"
    assert shell.tmmu("cache", "ls", "--json").record == {"folder": str(folder), "bytes": 0, "entries": []}


def test_ls_lists_the_most_recently_used_first(shell: Shell) -> None:
    fill(shell, 1, 2)
    newest, oldest = reversed(store.entries(cache_folder()))
    os.utime(oldest.path, ns=(1, 1))
    lines = shell.tmmu("cache", "ls").out.splitlines()
    assert lines[0].split() == ["key", "last", "used", "size", "model", "target", "mode", "preset", "inputs"]
    assert [line.split()[0] for line in lines[1:3]] == [newest.key[:12], oldest.key[:12]]
    assert "inference" in lines[1]
    record = shell.tmmu("cache", "ls", "--json").record
    assert [row["key"] for row in record["entries"]] == [newest.key, oldest.key]
    assert record["bytes"] == sum(row["bytes"] for row in record["entries"]) > 0
    assert record["entries"][1]["used_ns"] == 1


def test_ls_shows_what_cannot_be_served(shell: Shell) -> None:
    fill(shell, 1)
    store.entries(cache_folder())[0].path.write_bytes(b"x")
    assert "the file is no entry of a plan cache" in shell.tmmu("cache", "ls").out


def test_why_names_the_parts_that_differ(shell: Shell) -> None:
    fill(shell, 1)
    (stored,) = store.entries(cache_folder())
    assert shell.tmmu("cache", "why", "small.ir.cbor", "--seed", 1).out == f"found: {stored.key[:12]}\n"
    done = shell.tmmu("cache", "why", "small.ir.cbor", "--seed", 2, "--preset", "train_full")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("not found: ")
    assert lines[2:] == [
        f"{stored.key[:12]} differs in 2 parts:",
        "part    asked for          kept",
        "preset  train_full         inference",
        *[line for line in lines if line.startswith("token")],
    ]


def test_why_compares_with_the_nearest_entries(shell: Shell) -> None:
    fill(shell, 1, 2, 3, 4, 5)
    record = shell.tmmu("cache", "why", "small.ir.cbor", "--seed", 9, "--nodes", 3, "--json").record
    assert [set(entry["parts"]) for entry in record["nearest"]] == [{"token", "nodes"}] * 3
    shell.tmmu("plan", "small.ir.cbor", "-o", "x.plan.cbor", "--seed", 9)
    record = shell.tmmu("cache", "why", "small.ir.cbor", "--seed", 9, "--nodes", 3, "--json").record
    assert record["nearest"][0]["parts"] == {"nodes": ["3", "0"]}
    assert (record["kept"], record["miss"]) == (False, "nothing is stored under this key")


def test_why_names_another_torch(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell.folder / "gpt2").mkdir()
    (shell.folder / "gpt2" / "config.json").write_text(json.dumps(CONFIG))
    plan(shell, target="hf:gpt2")
    real = parts.library_part
    monkeypatch.setattr(parts, "library_part", lambda name: replace(real(name), digest=bytes(32), text="9.9"))
    parts_of_nearest = shell.tmmu("cache", "why", "hf:gpt2", "--json").record["nearest"][0]["parts"]
    assert parts_of_nearest["library.torch"] == ["9.9", version("torch")]
    assert set(parts_of_nearest) == {name for name in parts_of_nearest if name.startswith("library.")}
    assert origin(shell, target="hf:gpt2") == "cold"


def test_why_of_a_python_file_names_its_graph(shell: Shell) -> None:
    (shell.folder / "net.py").write_text(NET)
    plan(shell)
    (shell.folder / "net.py").write_text(NET.replace("torch.relu", "torch.sigmoid"))
    (nearest,) = shell.tmmu("cache", "why", "net.py", "--json").record["nearest"]
    assert set(nearest["parts"]) == {"model"}


def test_commands_that_read_do_not_count_as_use(shell: Shell) -> None:
    fill(shell, 1)
    (entry_file,) = store.entries(cache_folder())
    os.utime(entry_file.path, ns=(1, 1))
    shell.tmmu("cache", "why", "small.ir.cbor", "--seed", 1)
    shell.tmmu("cache", "ls")
    shell.tmmu("cache", "verify")
    assert store.entries(cache_folder())[0].used_ns == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument"),
        (("small.ir.cbor", "-o", "x"), "--output"),
        (("small.ir.cbor", "--no-cache"), "--no-cache"),
        (("small.ir.cbor", "--frobnicate"), "No such option"),
        (("small.ir.cbor", "--seed", "x"), "--seed"),
        (("small.ir.cbor", "--batch", "2"), "--batch"),
        (("missing.ir.cbor",), "missing.ir.cbor"),
        (("missing.py",), "missing.py"),
    ],
)
def test_why_refuses_as_plan_does(shell: Shell, arguments: tuple[str, ...], message: str) -> None:
    shell.graph(small())
    done = shell.tmmu("cache", "why", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_verify_judges_every_entry(shell: Shell) -> None:
    fill(shell, 1, 2, 3)
    folder = cache_folder()
    assert shell.tmmu("cache", "verify").out == f"sound: 3 entries in {folder}\n"
    forged_file, renamed_file, _ = store.entries(folder)
    entry = store.read_entry(forged_file.path)
    graph, sound = read_graph(entry.graph), read_plan(entry.plan)
    forged = replace(sound, buffers=replace(sound.buffers, offset=(0,) * len(sound.buffers)))
    forged_file.path.write_bytes(encode_entry(entry.key, graph, forged))
    renamed_file.path.write_bytes(encode_entry(key(), graph, sound))
    done = shell.tmmu("cache", "verify")
    assert done.code == 3
    assert "2 of 3 entries" in done.err
    assert "PLAN_CORRUPT" in done.err
    lines = sorted(done.out.splitlines())
    assert len(lines) == 2
    assert any(forged_file.key[:12] in line and "the judge refused" in line for line in lines)
    assert any(renamed_file.key[:12] in line and "another key's" in line for line in lines)
    done = shell.tmmu("cache", "verify", "--json")
    assert done.code == 3
    assert set(done.record["faults"]) == {forged_file.key, renamed_file.key}


def test_prune_removes_what_cannot_be_served_and_makes_room(shell: Shell) -> None:
    fill(shell, 1, 2, 3)
    folder = cache_folder()
    _, second, third = store.entries(folder)
    second.path.write_bytes(b"x")
    (folder / ".tmmu-1-0.tmp").touch()
    os.utime(folder / ".tmmu-1-0.tmp", ns=(1, 1))
    (folder / ".tmmu-2-0.tmp").touch()
    done = shell.tmmu("cache", "prune", "--json").record
    assert (done["removed"], done["unfinished"], done["kept"]) == (1, 1, 2)
    done = shell.tmmu("cache", "prune", "--limit", str(third.bytes)).out
    assert done.startswith("removed 1 entry, ")
    assert [file.path for file in store.entries(folder)] == [third.path]
    done = shell.tmmu("cache", "prune", "--all", "--json").record
    assert (done["removed"], done["unfinished"], done["kept"]) == (1, 1, 0)
    assert list(folder.iterdir()) == []
    assert shell.tmmu("cache", "prune", "--limit", "some").code == 2


def test_help_names_the_commands(shell: Shell) -> None:
    out = shell.tmmu("cache", "--help").out
    assert all(name in out for name in ("ls", "why", "verify", "prune"))
    assert run(["cache", "why", "--help"]) == 0
