import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell, small
from tests.unit.ir.samples import described_graph
from tmmu.cli.commands import show as command
from tmmu.codec.load import load_plan
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


def test_semantics_are_printed_op_by_op_under_sums(shell: Shell) -> None:
    plan = shell.plan()
    lines = shell.tmmu("show", plan, "--semantics").out.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("position "))
    assert [line.split()[:2] for line in lines[start + 1 :]] == [
        [str(position), operator]
        for position, operator in enumerate(["aten.mm", "aten.relu", "aten.mm", "aten.copy_", "aten.add"])
    ]
    (total,) = [line.split() for line in lines if line.startswith("all ")]
    assert total[1] == "5"
    assert "compute-bound from 100 FLOP/byte on: 0 of 5 ops" in lines


def test_semantics_are_exported_as_op_semantics_lifecycle(shell: Shell) -> None:
    plan = shell.plan()
    record = shell.tmmu("show", plan, "--semantics", "--balance", "1.5", "--json").record["semantics"]
    first = record["ops"][0]
    assert list(first) == ["op", "semantics", "lifecycle"]
    assert first["op"] == {
        "id": 0, "position": 0, "target": "aten.mm", "stage": "forward", "module": "first", "source": "small.py:7",
    }  # fmt: skip
    moved = 4096 + (1 << 20) + 16384
    assert (first["semantics"]["flops"], first["semantics"]["bytes"]) == (2097152, moved)
    assert first["semantics"]["flop_per_byte"] == round(2097152 / moved, 3)
    assert (first["semantics"]["bound"], record["balance"]) == ("compute", 1.5)
    assert first["lifecycle"][0] == {
        "buffer": 4, "residency": "ephemeral_activation", "bytes": 16384, "birth": 0, "death": 2,
    }  # fmt: skip
    assert record["critical_path"]["ops"] == [0, 1, 2, 3, 4]
    assert record["flops"] == sum(row["semantics"]["flops"] for row in record["ops"])
    assert {edge["value"]: edge["consumers"] for edge in record["edges"]}[6] == [3, 4]


@pytest.mark.parametrize("balance", ["0", "0.0", "-1", "fast", "1e3", "1234567890"])
def test_balance_is_a_positive_number(shell: Shell, balance: str) -> None:
    done = shell.tmmu("show", shell.plan(), "--semantics", "--balance", balance)
    assert done.code == 2
    assert "INVALID_CONFIG" in done.err


def test_semantics_need_the_graph_and_balance_needs_semantics(shell: Shell) -> None:
    plan = shell.plan()
    refused = shell.tmmu("show", plan, "--balance", "3")
    assert (refused.code, "add --semantics" in refused.err) == (2, True)
    Path("small.ir.cbor").unlink()
    refused = shell.tmmu("show", plan, "--semantics")
    assert (refused.code, "name its graph with --ir" in refused.err) == (2, True)


def test_semantics_import_no_torch(shell: Shell) -> None:
    plan = shell.plan()
    program = "import sys; from tmmu.cli.app import run; run(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, "show", str(plan), "--semantics"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_plot_draws_eager_and_plan_on_one_scale(shell: Shell) -> None:
    shell.tmmu("plan", shell.graph(described_graph(), "net"), "-o", "net.plan.cbor")
    lines = shell.tmmu("show", "net.plan.cbor", "--plot").out.splitlines()
    summary = shell.tmmu("show", "net.plan.cbor", "--json").record
    record = shell.tmmu("show", "net.plan.cbor", "--plot", "--json").record
    assert record.pop("plot") == {
        "planned": {"name": "stack", "end": 8, "steps": record_steps(shell)},
        "eager": {"name": "eager", "end": 6, "steps": [[0, 64], [1, 320], [3, 256], [4, 272], [5, 256]]},
    }
    assert record == summary
    assert "run as it is, stack by eager's calls: at most 320 B of 6 positions" in lines
    planned = summary["planned"]["stack_bytes"]
    assert any(
        line.startswith(f"inside the plan, stack by position: at most {planned / 1024:.1f} KiB") for line in lines
    )


def record_steps(shell: Shell) -> list[list[int]]:
    """Live bytes of the stack, added up from the allocation trace."""
    trace = shell.tmmu("show", "net.plan.cbor", "--trace", "--json").record["trace"]
    stack = [record for record in trace if record.get("arena") in {"activations", "gradients"}]
    chains: dict[int, list[int]] = {}
    plan = load_plan(Path("net.plan.cbor"))
    over = dict(zip(plan.buffers.id, plan.buffers.takes_over, strict=True))
    for record in stack:
        first = record["tensor_id"]
        while over[first] != first:
            first = over[first]
        birth, death = record["live_range"]
        old = chains.setdefault(first, [birth, death, record["size"]])
        chains[first] = [min(old[0], birth), max(old[1], death), record["size"]]
    positions = sorted({end for birth, death, _ in chains.values() for end in (birth, death)})
    return [[p, sum(size for birth, death, size in chains.values() if birth <= p < death)] for p in positions]


def test_plot_of_a_plan_alone_shows_the_plan(shell: Shell) -> None:
    plan = shell.plan()
    Path("small.ir.cbor").unlink()
    out = shell.tmmu("show", plan, "--plot").out
    assert "inside the plan, stack by position" in out
    assert "eager's calls" not in out
    assert shell.tmmu("show", plan, "--plot", "--json").record["plot"]["eager"] is None
