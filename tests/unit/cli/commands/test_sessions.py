"""``tmmu sessions simulate``: table, JSON, trace and refusals."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell
from tests.unit.export.trace_database import trace_database
from tmmu.engine.policies.table import POLICIES

EXAMPLE = Path(__file__).parents[4] / "examples" / "workloads" / "fifty-agents.toml"
NAMES = [policy.name for policy in POLICIES]


@pytest.fixture
def small(shell: Shell, tmp_path: Path) -> str:
    """Five agents on room for three, two rounds."""
    text = EXAMPLE.read_text("utf-8")
    for old, new in (("count = 50", "count = 5"), ('"60GB"', '"6GB"'), ("rounds = 10", "rounds = 3")):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "five.toml").write_text(text.replace('arrivals = "60s"', 'arrivals = "5s"'))
    return "five.toml"


def test_table_has_every_policy_and_both_bounds(shell: Shell, small: str) -> None:
    done = shell.tmmu("sessions", "simulate", small)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == ("five: 5 agents, 10.0 GB in all, on 6.0 GB; link 24.0 GB/s, host tier without a budget")
    assert [line[:9].strip() for line in lines[3:-2]] == [*NAMES, "perfect", "all fit"]
    assert all("100.0 %" in line for line in lines[3:-2] if not line.startswith("hold"))
    assert done.out == shell.tmmu("sessions", "simulate", small).out


def test_policies_are_chosen_and_agents_are_counted(shell: Shell, small: str) -> None:
    command = ("sessions", "simulate", small, "--policy", "hint", "--policy", "lru", "--agents", "4", "--json")
    record = shell.tmmu(*command).record
    assert (list(record["policies"]), record["agents"], record["bytes"]) == (["hint", "lru"], 4, 8 * 10**9)
    hint = record["policies"]["hint"]
    assert (hint["resumes"], hint["tokens"], hint["success_ppm"], hint["timeouts"]) == (8, 600, 1_000_000, 0)
    assert hint["resume_ns"]["p99"] <= record["policies"]["lru"]["resume_ns"]["p99"]
    assert record["host_budget"] is record["trace"] is None


def test_trace_has_the_busy_time_of_the_link(shell: Shell, small: str, tmp_path: Path) -> None:
    record = shell.tmmu("sessions", "simulate", small, "--policy", "lru", "--trace", "t.perfetto", "--json").record
    database = trace_database((tmp_path / "t.perfetto").read_bytes())
    busy = "select sum(end - begin) from slice join track on track.id = slice.track where track.name = 'link'"
    assert database.execute(busy).fetchone()[0] == record["policies"]["lru"]["link_ns"]
    assert record["trace"] == "t.perfetto"
    done = shell.tmmu("sessions", "simulate", small, "--policy", "lru", "--trace", "t.perfetto")
    assert done.out.splitlines()[-1] == "wrote t.perfetto"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "fifo"), "--policy: no policy 'fifo' (choose one of lru, idle, hint, predicted, hold, static)"),
        (("--trace", "t"), "--trace: a trace is of one policy (name it with --policy)"),
        (("--policy", "lru", "--trace", "five.toml"), "--trace: five.toml is the input itself (name another file)"),
        (("--policy", "lru", "--trace", "no/t"), "--trace: no folder no (make it first, or name another)"),
        (("--agents", "0"), "--agents: 0 is not 1 or more (give a count)"),
        (("--agents", "99999"), "--agents: 99999 agents with "),
    ],
)
def test_options_that_make_no_sense_are_refused(
    shell: Shell, small: str, arguments: tuple[str, ...], message: str
) -> None:
    done = shell.tmmu("sessions", "simulate", small, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"tmmu: INVALID_CONFIG: {message}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"a = [", b"seed = 1\n[device]\nbudget = '\\u001b'", b"\x00"])
def test_hostile_file_is_one_line_with_its_name(shell: Shell, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    done = shell.tmmu("sessions", "simulate", "bad.toml", "--json")
    assert done.code == 2
    assert done.err.startswith("tmmu: INVALID_CONFIG: bad.toml: ")
    assert done.err.count("\n") == 1
    assert json.loads(done.out)["code"] == "INVALID_CONFIG"


def test_missing_file_is_refused(shell: Shell) -> None:
    done = shell.tmmu("sessions", "simulate", "none.toml")
    assert done.code == 2
    assert done.err.startswith("tmmu: INVALID_CONFIG: cannot read none.toml: there is no such file or folder (")
