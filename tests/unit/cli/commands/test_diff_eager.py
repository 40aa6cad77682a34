"""``tmmu diff`` of models run as they are: eager's figures of both sides, and the versions of Python they hold for."""

from dataclasses import replace
from pathlib import Path

from tests.unit.cli.commands.test_diff import NET, write
from tests.unit.cli.graphs import Shell
from tests.unit.ir.samples import described_graph, edit
from tmmu.ir.ids import Bytes
from tmmu.ir.lifetimes import EagerRun, Lifetimes


def lived(name: str, storages: tuple[int, ...], *, python: str = "3.12", target: str = "cpu") -> Path:
    """A graph of version 2, whose storages eager holds to the end."""
    count = len(storages)
    table = Lifetimes(
        bytes=tuple(map(Bytes, storages)),
        birth=tuple(range(count)),
        death=(count,) * count,
        last_use=tuple(range(count)),
        **dict.fromkeys(("maker", "module", "source", "holder"), ("",) * count),
    )
    run = EagerRun(python=python, calls=count, persistent_bytes=Bytes(1 << 10), storages=table)
    return write(name, edit(replace(described_graph(), target=target), "notes.eager", run))


def test_runs_as_they_are_are_compared_and_limited(shell: Shell) -> None:
    """The plans are one plan: what changed is how long Python holds what."""
    pair = lived("old", (1 << 20, 1 << 20)), lived("new", (1 << 20, 2 << 20))
    done = shell.tmmu("diff", *pair, "--fail-over", "40%")
    assert done.code == 3
    assert done.out.startswith("old.ir.cbor -> new.ir.cbor: backward on cpu, preset train_full: the same plan; run as ")
    assert "run as it is 2.0 MiB 3.0 MiB +1.0 MiB +50.0 % its stack 2.0 MiB 3.0 MiB" in " ".join(done.out.split())
    assert "eager total by 1048576 bytes (1.0 MiB) and eager stack by 1048576 bytes (1.0 MiB), limit 40%" in done.err
    found = shell.tmmu("diff", *pair, "--fail-over", "40%", "--json").record
    assert found["over"] == ["eager total", "eager stack"]
    assert [found["eager"][side]["total_bytes"] for side in ("before", "after")] == [2098176, 3146752]
    assert shell.tmmu("diff", *pair, "--fail-over", "50%").code == 0


def test_no_limit_holds_for_runs_of_two_pythons(shell: Shell) -> None:
    pair = lived("old", (1 << 20,), python="3.11"), lived("new", (4 << 20,))
    done = shell.tmmu("diff", *pair, "--fail-over", "1%")
    assert done.code == 0
    assert "frames of CPython 3.11 before and 3.12 now" in done.out
    assert "CPython" not in shell.tmmu("diff", pair[0], pair[0]).out


def test_graph_without_lifetimes_has_no_run_as_it_is(shell: Shell) -> None:
    done = shell.tmmu("diff", write("old", NET), lived("new", (4 << 20,)))
    assert done.code == 0
    assert "run as it is: 4.0 MiB now; the other graph does not say" in done.out
    found = shell.tmmu("diff", "old.ir.cbor", "new.ir.cbor", "--json").record["eager"]
    assert found["before"] is None
    assert found["after"]["reserved_bytes"] is None
    fields = shell.tmmu("diff", *[lived(name, (4 << 20,), target="cuda") for name in ("a", "b")], "--json").record
    assert fields["eager"]["after"]["reserved_bytes"] == 22 << 20  # and a segment for weights
