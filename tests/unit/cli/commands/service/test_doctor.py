"""``tmmu doctor``: a line for each thing, and 3 where it is to be strict."""

import json
from typing import Literal

import pytest

from tests.docs.commands import ROOT
from tests.unit.cli.graphs import Shell
from tmmu.server import doctor
from tmmu.server.doctor import MachineFinding


def test_this_machine_is_looked_at(shell: Shell) -> None:
    done = shell.tmmu("doctor", "--json")
    findings = json.loads(done.out)["findings"]
    names = ["swap", "locked memory", "NUMA", "compiler", "flash attention", "pinned copies"]
    assert (done.code, [finding["name"] for finding in findings]) == (0, names)
    row = next(
        row for row in (ROOT / "docs/cli.md").read_text().splitlines() if row.startswith("| `--json` | `findings`")
    )
    assert all(list(finding) == row.split("`")[5::2] for finding in findings)
    assert all((finding["status"] == "warn") == bool(finding["fix"]) for finding in findings)
    assert len(shell.tmmu("doctor").out.splitlines()) == len(names)


@pytest.mark.parametrize(("status", "code"), [("pass", 0), ("warn", 3)])
def test_strict_ends_with_three_where_there_is_a_warning(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, status: Literal["pass", "warn"], code: int
) -> None:
    fix = "swapoff -a" if status == "warn" else ""
    finding = MachineFinding(name="swap", status=status, state="as it is", fix=fix)
    monkeypatch.setattr(doctor, "examine_machine", lambda device: [finding])
    done = shell.tmmu("doctor", "--strict")
    assert (done.code, done.out.split()[:2]) == (code, [status, "swap"])
    assert done.err.startswith("tmmu: HOST_UNFIT: swap") == (code == 3)
    assert shell.tmmu("doctor").code == 0
