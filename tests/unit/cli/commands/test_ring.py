"""``tmmu ring``: output, files and refusals."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.layered import layered_graph
from tests.unit.cli.graphs import Shell
from tmmu.codec.load import load_plan
from tmmu.planner.ring.profile import Profile

SIZES = [1 << 20] * 8
SLOW = ("--device-link", "1GB/s", "--copy-cost", "0", "--device-memory", "10GB/s")
"""A link on which a layer takes 1.05 ms, and a memory from which it is read in 0.1."""


def ring(shell: Shell, *arguments: object) -> Any:
    ir = shell.graph(layered_graph(SIZES, tied=1 << 18), "net")
    return shell.tmmu("ring", ir, "--no-cache", *arguments)


def test_ring_prints_resident_layers_time_and_limit(shell: Shell) -> None:
    done = ring(shell, "--budget", "5376KiB", *SLOW)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "layered: 9 layers, 8.2 MiB of weights"
    assert lines[1] == (
        "cyclic ring in 5.2 MiB: 5 layers stay (4.2 MiB, 51.5 % of the weights), 4 stream through 1.0 MiB, depth 0"
    )
    assert lines[2].startswith("a pass takes 4.614 ms, the first one")
    assert lines[2].endswith("limited by capacity: copies wait for room")
    assert lines[3].startswith("moves 4.0 MiB per pass in 4.194 ms, computes for ")
    assert lines[4] == "effective bandwidth 1.9 GB/s over a link of 1.0 GB/s"
    assert [line.split()[0] for line in lines[6:11]] == ["policy", "cyclic", "skip_end", "slots", "double"]
    assert [line.split()[-1] for line in lines[12:22]] == ["address", "stays", *lines_of(lines[14:22])]
    assert sum(line.endswith("streams") for line in lines) == 4
    assert lines[-2].startswith("least budget: 1.2 MiB (1310720 bytes); ")
    assert lines[-1] == ("predicted for a link of 1.0 GB/s with 0 ns per copy, 150.0 TFLOP/s and 10.0 GB/s of memory")
    assert shell.files() == ("net.ir.cbor",)


def lines_of(lines: list[str]) -> list[str]:
    return [line.split()[-1] for line in lines]


def test_json_has_every_number_and_the_whole_schedule(shell: Shell) -> None:
    record = ring(shell, "--budget", "4352KiB", *SLOW, "--json", "--depth", "1").record
    assert record["budget"] == 4352 << 10
    assert record["depth"] >= 1
    assert record["limit"] == "link"
    assert record["time_per_pass_ns"] == record["link_ns"]
    assert record["link_utilization_ppm"] == record["overlap_ppm"] == 1_000_000
    assert record["resident_bytes"] + record["bytes_per_pass"] == record["model_bytes"] == (8 << 20) + (1 << 18)
    assert record["bandwidth"] == record["model_bytes"] * 10**9 // record["time_per_pass_ns"]
    assert record["profile"] == {"link": 10**9, "copy_ns": 0, "flops": Profile().flops, "memory": 10**10}
    assert [copy["visit"] for copy in record["copies"]] == [
        index for index, visit in enumerate(record["visits"]) if not record["blocks"][visit["block"]]["resident"]
    ]
    assert all(copy["waits"] and set(copy["start"]) == {"visit", "lag"} for copy in record["copies"])
    assert record["policies"]["cyclic"]["time_per_pass_ns"] <= record["policies"]["skip_end"]["time_per_pass_ns"]
    assert record["least_budget"] <= record["busy_budget"] <= record["budget"]
    assert (record["simulated"], record["files"]) == ([], {"plan": None, "ir": None})


def test_steady_pass_is_shown_copy_by_copy(shell: Shell) -> None:
    done = ring(shell, "--budget", "4352KiB", *SLOW, "--simulate")
    table = done.out.split("steady pass")[1].split("\n\n")[0].splitlines()
    assert table[0].split() == ["copy", "from", "to", "ops", "from", "to"]
    assert table[1].split()[:3] == ["h.0", "0", "ns"]
    record = ring(shell, "--budget", "4352KiB", *SLOW, "--simulate", "--json").record
    turns = record["simulated"]
    assert len(turns) == 3 * len(record["copies"])
    assert all(turn["copy_end"] <= turn["start"] < turn["end"] for turn in turns)
    steps = [turns[-1]["start"] - turns[len(turns) // 3 * 2 - 1]["start"]]
    assert steps == [record["time_per_pass_ns"]]


def test_plan_is_written_with_its_ring_and_verifies(shell: Shell) -> None:
    done = ring(shell, "--budget", "5MiB", "-o", "out.plan.cbor")
    assert done.out.splitlines()[-1] == "wrote out.plan.cbor and out.ir.cbor"
    assert shell.files() == ("net.ir.cbor", "out.ir.cbor", "out.plan.cbor")
    planned_ring = load_plan(Path("out.plan.cbor")).ring
    assert planned_ring
    assert planned_ring.capacity == 5 << 20
    assert shell.tmmu("verify", "out.plan.cbor").out.startswith("sound: out.plan.cbor")


def test_plan_with_a_ring_counts_what_the_device_holds(shell: Shell) -> None:
    ring(shell, "--budget", "5MiB", "-o", "out.plan.cbor")
    planned_ring = load_plan(Path("out.plan.cbor")).ring
    assert planned_ring
    record = shell.tmmu("show", "out.plan.cbor", "--json").record
    assert record["memory"]["text"] == record["ring"]["bytes"] == planned_ring.bytes
    assert (
        record["ring"]["resident"]
        == planned_ring.resident_bytes
        < record["ring"]["weights"]
        == planned_ring.model_bytes
    )
    shown = shell.tmmu("show", "out.plan.cbor").out.splitlines()
    assert "text 4.2 MiB = 3.2 MiB that stays + a cyclic ring for the rest of 8.2 MiB of weights" in shown
    shell.tmmu("plan", "net.ir.cbor", "--no-cache")
    assert shell.tmmu("show", "net.plan.cbor", "--json").record["ring"] is None


@pytest.mark.parametrize("policy", ["cyclic", "skip_end", "slots", "double"])
def test_every_policy_can_be_asked_for(shell: Shell, policy: str) -> None:
    record = ring(shell, "--budget", "5MiB", "--policy", policy, "--json").record
    assert record["policy"] == policy
    assert record["time_per_pass_ns"] == record["policies"][policy]["time_per_pass_ns"]


def test_pass_with_all_layers_resident_is_limited_by_computing(shell: Shell) -> None:
    record = ring(shell, "--budget", "1GiB", "--json").record
    assert (record["limit"], record["copies"], record["bytes_per_pass"]) == ("compute", [], 0)
    assert record["time_per_pass_ns"] == record["compute_ns"] == record["first_pass_ns"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--budget", "0"), "INVALID_CONFIG: --budget: 0 holds nothing"),
        (("--budget", "much"), "INVALID_CONFIG: --budget: 'much' is not a size"),
        (("--budget", "1GiB", "--device-link", "24"), "INVALID_CONFIG: --device-link: '24' is not a rate"),
        (("--budget", "1GiB", "--device-flops", "24GB/s"), "INVALID_CONFIG: --device-flops: '24GB/s' is not a rate"),
        (("--budget", "1GiB", "--device-memory", "0GB/s"), "INVALID_CONFIG: --device-memory: '0GB/s' is no rate"),
        (("--budget", "1GiB", "--policy", "lucky"), "INVALID_CONFIG: "),
        (("--budget", "1GiB", "--depth", "-1"), "INVALID_CONFIG: "),
        (("--budget", "1GiB", "--ir", "x.ir.cbor"), "INVALID_CONFIG: --ir: only with --output"),
        (("--budget", "1GiB", "-o", "net.ir.cbor"), "INVALID_CONFIG: --output: net.ir.cbor is the input itself"),
        ((), "INVALID_CONFIG: "),
    ],
)
def test_ring_options_that_make_no_sense_are_one_line(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    done = ring(shell, *arguments)
    assert done.code == 2
    assert done.err.startswith(f"tmmu: {says}")
    assert len(done.err.splitlines()) == 1
    assert shell.files() == ("net.ir.cbor",)


def test_budget_that_is_too_small_names_the_least(shell: Shell) -> None:
    done = ring(shell, "--budget", "1MiB")
    assert done.code == 3
    assert done.err == (
        "tmmu: ARENA_TOO_SMALL: no cyclic ring fits in 1048576 bytes (1.0 MiB): 262144 bytes (256.0 KiB) are read at "
        "several places and stay, and of the others the largest layer, h.0, has 1048576 bytes (1.0 MiB) "
        "(give it 1310720 bytes)\n"
    )
    assert ring(shell, "--budget", "1310720").code == 0


def test_ring_of_a_graph_imports_no_torch(shell: Shell) -> None:
    shell.graph(layered_graph(SIZES), "net")
    probe = (
        "import sys; from tmmu.cli.app import run;"
        "code = run(['ring', 'net.ir.cbor', '--budget', '4MiB', '--no-cache']);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False, capture_output=True).returncode == 0
