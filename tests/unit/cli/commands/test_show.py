import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell, small
from tmmu.cli.commands import show as command
from tmmu.cli.load import load_plan
from tmmu.planner.trace import trace_records


def test_plan_beside_its_graph_is_shown_as_when_it_was_made(shell: Shell) -> None:
    shell.graph(small(), "given")
    planned = shell.tmmu("plan", "given.ir.cbor", "-o", "small.plan.cbor").out.splitlines()
    assert shell.tmmu("show", "small.plan.cbor").out.splitlines() == planned[:-1]


def test_plan_alone_is_shown_without_names(shell: Shell) -> None:
    plan = shell.plan()
    Path("small.ir.cbor").unlink()
    done = shell.tmmu("show", plan)
    assert done.code == 0
    assert done.out.startswith("plan: inference, preset inference, 5 ops, 7 buffers\n")
    assert "small.py" not in done.out
    assert done.out.splitlines()[-1].endswith("put it beside the plan as small.ir.cbor, or name it with --ir")


def test_peak_lists_every_live_buffer(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LISTED_BUFFERS", 1)
    plan = shell.plan()
    (few,), (every,) = (shell.tmmu("show", plan, *options, "--json").record["peaks"] for options in ((), ("--peak",)))
    assert (len(few["buffers"]), len(every["buffers"]), few["live"]) == (1, 2, 2)
    assert few["buffers"] == every["buffers"][:1]


def test_trace_is_json_lines_of_the_records(shell: Shell) -> None:
    plan = shell.plan()
    records = [json.loads(line) for line in shell.tmmu("show", plan, "--trace").out.splitlines()]
    assert [record["record"] for record in records] == ["allocation_header", *["tensor"] * 7, "summary"]
    loaded = load_plan(plan)
    assert records[0]["ir_hash"] == loaded.ir_hash.hex()
    assert records[-1]["plan_digest"] == loaded.digest.hex()
    addresses = [record["virtual_address"] for record in trace_records(loaded) if record["record"] == "tensor"]
    assert [int(record["virtual_address"], 16) for record in records[1:-1]] == addresses
    assert shell.tmmu("show", plan, "--trace", "--json").record["trace"] == records


def test_ops_counts_the_operators_and_says_which_the_table_lacks(shell: Shell) -> None:
    plan = shell.plan()
    operators = shell.tmmu("show", plan, "--ops", "--json").record["operators"]
    assert [(row["operator"], row["calls"]) for row in operators] == [
        ("aten.mm", 2),
        ("aten.add", 1),
        ("aten.copy_", 1),
        ("aten.relu", 1),
    ]
    assert [row["known"] for row in operators] == [False] * 4, "none of these names has an overload"
    assert shell.tmmu("show", plan, "--ops").out.splitlines()[-5].split() == ["operator", "calls", "flops", "rule"]


def test_ops_needs_the_graph(shell: Shell) -> None:
    plan = shell.plan()
    Path("small.ir.cbor").unlink()
    done = shell.tmmu("show", plan, "--ops")
    assert (done.code, done.out) == (2, "")
    assert "--ops" in done.err


def test_graph_of_another_plan_is_a_mismatch(shell: Shell) -> None:
    plan = shell.plan()
    Path("small.ir.cbor").unlink()
    shell.graph(replace(small(), target="cuda"), "other")
    done = shell.tmmu("show", plan, "--ir", "other.ir.cbor")
    assert done.code == 3
    assert done.err.startswith("tmmu: PLAN_MISMATCH: ")


def test_reserve_changes_only_what_fits(shell: Shell) -> None:
    plan = shell.plan()
    small_reserve, large = (shell.tmmu("show", plan, "--reserve", size, "--json").record for size in ("0", "100GB"))
    assert [fit["gb"] for fit in large.pop("fits") if fit["fits"]] == [141, 192]
    assert all(fit["fits"] for fit in small_reserve.pop("fits"))
    assert (small_reserve.pop("reserve"), large.pop("reserve")) == (0, 100 * 10**9)
    assert small_reserve == large
