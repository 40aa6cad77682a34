"""``tmmu plan --sweep``: a judged plan for each layout over a cluster, and what is refused is a row."""

import json
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.unit.cli.commands.test_plan_sharded import llama  # noqa: F401 - a fixture
from tests.unit.cli.graphs import Shell, small
from tests.unit.passes.capture.targets.test_sharded import LLAMA
from tmmu.cli.worker_processes import worker_processes
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.passes.operators.collectives import NAMESPACES
from tmmu.planner.fit.fit_graph import FitRequest, Fitting, fit_graph

pytest.importorskip("torch.distributed")
OPTIONS = ("--device", "cpu", "--seq", 16, "--mode", "backward", "--no-cache")
HEADS = LLAMA["num_key_value_heads"]


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most layouts here take less than a process's start."""
    monkeypatch.setenv("TMMU_JOBS", "1")


def test_each_layout_has_the_figures_of_its_plan(shell: Shell, llama: Path) -> None:  # noqa: F811 - the fixture
    world = 2 * HEADS
    axes = ("--sweep", f"tp={HEADS},{world}", "--sweep", "checkpoint=yes")
    ran = shell.tmmu("plan", f"hf:{llama}", *OPTIONS, "--world", world, *axes, "--json")
    assert ran.code == 0, ran.err
    row, refused = ran.record["layouts"]
    assert (row["tp"], row["fsdp"], row["batch"], row["checkpoint"], row["refused"]) == (HEADS, 2, 1, True, None)
    assert (refused["tp"], refused["fsdp"], refused["refused"]["code"]) == (world, 1, "INVALID_CONFIG")
    assert not list(Path().glob("*.cbor")), "a sweep writes no plan"
    layout = ("--tp", HEADS, "--fsdp", 2, "--checkpoint")
    plan = shell.tmmu("plan", f"hf:{llama}", *OPTIONS, *layout, "--json").record
    assert row["planned"] == plan["planned"]["total_bytes"]
    assert row["eager"] == plan["eager"]["total_bytes"]
    assert row["sent"] > 0 < row["flops"]
    assert row["fits"] == "8 GB"
    assert row["follows_from"] == []


@pytest.mark.slow
def test_a_batch_between_traced_ones_has_the_figures_of_its_plan(shell: Shell, llama: Path) -> None:  # noqa: F811
    (llama / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": 104}))  # else ranks are of two kinds
    axes = ("--sweep", f"tp={HEADS}", "--sweep", "batch=2,3,4,5")
    ran = shell.tmmu("plan", f"hf:{llama}", *OPTIONS, "--world", 2 * HEADS, *axes, "--json")
    assert ran.code == 0, ran.err
    rows = ran.record["layouts"]
    assert [(row["batch"], row["follows_from"]) for row in rows] == [(2, []), (3, []), (4, [2, 3, 5]), (5, [])]
    plan = shell.tmmu("plan", f"hf:{llama}", *OPTIONS, "--tp", HEADS, "--fsdp", 2, "--batch", 4, "--json").record
    assert rows[2]["planned"] == plan["planned"]["total_bytes"]
    assert rows[2]["eager"] == plan["eager"]["total_bytes"]
    assert rows[2]["sent"] == 2 * rows[1]["sent"] - rows[0]["sent"]


@pytest.mark.slow
def test_layouts_of_stages_have_the_figures_of_their_plans(shell: Shell, llama: Path) -> None:  # noqa: F811
    options = (*OPTIONS[:4], "--no-cache")
    axes = ("--sweep", "pp=1,2", "--sweep", "microbatches=2,3", "--schedule", "gpipe")
    ran = shell.tmmu("plan", f"hf:{llama}", *options, "--world", 2, *axes, "--json", "--jobs", 2)
    assert ran.code == 0, ran.err
    rows = ran.record["layouts"]
    sizes = [(row["tp"], row["fsdp"], row["pp"], row["microbatches"], row["refused"]) for row in rows]
    assert sizes == [(1, 2, 1, None, None), (1, 1, 2, 2, None), (1, 1, 2, 3, None)]
    layout = ("--pp", 2, "--microbatches", 3, "--schedule", "gpipe")
    plan = shell.tmmu("plan", f"hf:{llama}", *options, *layout, "--json").record
    assert rows[2]["planned"] == plan["planned"]["total_bytes"]
    assert rows[2]["rank"] == plan["ranks"]["rank"]
    table = shell.tmmu("plan", f"hf:{llama}", *options, "--world", 2, *axes).out.splitlines()
    assert table[2].split()[:5] == ["tp", "fsdp", "pp", "batch", "micro-batches"]
    assert [line.split()[:5] for line in table[3:6]] == [
        ["1", "2", "1", "1", "-"], ["1", "1", "2", "1", "2"], ["1", "1", "2", "1", "3"]
    ]  # fmt: skip


def test_layouts_that_fit_are_told_and_one_reason_is_said_once(shell: Shell, llama: Path) -> None:  # noqa: F811
    axes = ("--sweep", f"tp=1,{2 * HEADS}", "--sweep", "batch=1,2", "--budget", "1GiB", "--reserve", 0)
    ran = shell.tmmu("plan", f"hf:{llama}", *OPTIONS[:4], "--world", 2 * HEADS, *axes)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"llama: inference on {2 * HEADS} cpu ranks of 1.0 GiB")
    assert [line.split()[:3] for line in lines if line.endswith("as it is")] == [
        ["1", str(2 * HEADS), batch] for batch in "12"
    ]
    assert sum("INVALID_CONFIG" in line for line in lines) == 1
    assert not list(Path().glob("*.cbor"))
    none = shell.tmmu("plan", f"hf:{llama}", *OPTIONS[:4], "--world", 2 * HEADS, "--sweep", f"tp={2 * HEADS}")
    assert none.code == 2
    assert none.err.startswith(f"tmmu: INVALID_CONFIG: --tp {2 * HEADS}: the model has")


def is_call_of_ranks(target: str) -> bool:
    return target.partition(".")[0] in NAMESPACES


@pytest.mark.slow
def test_a_step_that_does_not_fit_is_made_to_and_calls_between_ranks_stay_in_order(
    shell: Shell,
    llama: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fittings: list[tuple[Graph, Fitting]] = []

    def fit_and_keep(base: Graph, plan: Plan, request: FitRequest) -> Fitting:
        fittings.append((base, fit_graph(base, plan, request)))
        return fittings[-1][1]

    monkeypatch.setattr("tmmu.cli.sweep.fit_graph", fit_and_keep)
    (llama / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": 104}))
    options = (f"hf:{llama}", "--device", "cpu", "--mode", "backward", "--seq", 128, "--no-cache", "--world", HEADS)
    axes = ("--sweep", "tp=1", "--sweep", "batch=1", "--reserve", 0, "--fit")
    whole = shell.tmmu("plan", *options, *axes, "--budget", "1GiB", "--json").record["layouts"][0]
    assert (whole["fits"], whole["fitted"]) == ("as it is", None)
    assert not fittings
    budget = whole["planned"] * 7 // 10
    row = shell.tmmu("plan", *options, *axes, "--budget", budget, "--json").record["layouts"][0]
    assert row["fits"] == "fitted"
    assert row["fitted"]["planned"] <= budget < row["planned"]
    assert row["fitted"]["reruns"] > 0
    assert 0 <= row["fitted"]["extra_flops"] < row["flops"]
    base, fitting = fittings[0]
    fitted, calls = fitting.fitted, [op for op in base.ops.ids if is_call_of_ranks(base.ops.target[op])]
    order = [op for op in fitted.plan.order if is_call_of_ranks(fitted.graph.ops.target[op])]
    assert [fitted.rewrite.origin[op] for op in order] == calls
    assert len(calls) > 2 * LLAMA["num_hidden_layers"]
    least = shell.tmmu("plan", *options, *axes, "--budget", 1000)
    assert least.out.splitlines()[3].split()[-1] == "no"


@pytest.mark.slow
def test_two_processes_plan_the_rows_of_one(
    shell: Shell,
    llama: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []

    def count_workers(count: int) -> AbstractContextManager[ProcessPoolExecutor]:
        counts.append(count)
        return worker_processes(count)

    monkeypatch.setattr("tmmu.cli.sweep.worker_processes", count_workers)
    axes = ("--world", 2 * HEADS, "--sweep", f"tp=1,{HEADS},{2 * HEADS}", "--sweep", "batch=2,1", "--json")
    alone, together = (shell.tmmu("plan", f"hf:{llama}", *OPTIONS[:4], *axes, "--jobs", jobs) for jobs in (1, 2))
    assert alone.code == together.code == 0, together.err
    assert alone.record == together.record
    assert counts == [2], "one process plans by itself"
    assert together.err == ""
    assert [row["batch"] for row in together.record["layouts"]] == [2, 1] * 3
    assert together.record["layouts"][-1]["refused"]["fix"] == alone.record["layouts"][-1]["refused"]["fix"] != ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sweep", "tp"), "--sweep goes with --world"),
        (("--world", 8, "--sweep", "qp"), "--sweep 'qp' names no axis"),
        (("--world", 8, "--sweep", "pp=3"), "--sweep pp: 3 does not divide 8 ranks"),
        (("--world", 8, "--sweep", "pp=4", "--sweep", "tp=4"), "--sweep: no layout of these axes"),
        (("--world", 8, "--sweep", "ep"), "--sweep ep has no values of its own"),
        (("--world", 8, "--sweep", "microbatches=4"), "--sweep microbatches: only with stages"),
        (("--world", 8, "--sweep", "tp", "--schedule", "gpipe"), "--schedule: only with stages"),
        (("--world", 8, "--sweep", "pp", "--schedule", "2f2b"), "--schedule '2f2b': no such schedule"),
        (("--world", 8, "--sweep", "pp", "--mode", "forward"), "--mode forward: not with --pp"),
        (("--world", 8, "--sweep", "tp=3"), "--sweep tp: 3 does not divide 8 ranks"),
        (("--world", 8, "--sweep", "tp=2", "--sweep", "tp=4"), "--sweep: tp is given twice"),
        (("--world", 8, "--sweep", "batch"), "--sweep batch has no values of its own"),
        (("--world", 8, "--sweep", "batch=0"), "--sweep batch: '0' is no value of it"),
        (("--world", 8, "--sweep", "batch=" + "9" * 5000), "--sweep batch: '9999"),
        (("--world", 8, "--sweep", "checkpoint=maybe"), "--sweep checkpoint: 'maybe' is no value of it"),
        (("--world", 8, "--sweep", "checkpoint"), "--sweep checkpoint: only with --mode forward or backward"),
        (("--world", 8, "--sweep", "tp", "--fsdp", 2), "--fsdp: not with --sweep"),
        (("--world", 8, "--sweep", "tp", "--rank", "last"), "--rank: not with --sweep"),
        (("--world", 8, "--sweep", "tp", "-o", "x.plan.cbor"), "--output: not with --sweep"),
        (("--world", 8, "--sweep", "tp", "--fit"), "--fit goes with --sweep and --budget"),
        (
            ("--world", 8, "--sweep", "tp", "--fit", "--budget", "8GB", "--mode", "forward"),
            "--fit: a half of a step is not fitted",
        ),
        (("--world", 8, "--budget", "80GB"), "--budget goes with --sweep"),
        (("--world", 8, "--jobs", 2), "--jobs goes with --sweep"),
        (("--world", 8, "--sweep", "tp", "--jobs", 0), "--jobs"),
        (("--world", 0, "--sweep", "tp"), "world 0 is not in"),
        (("--world", 2**17, "--sweep", "tp", "--sweep", "batch=" + ",".join(map(str, range(1, 40)))), "702 layouts"),
        (("--checkpoint",), "--checkpoint: only with --mode forward or backward"),
    ],
)
def test_axes_that_are_none_are_refused_before_a_trace(shell: Shell, options: tuple[object, ...], said: str) -> None:
    Path("config.json").write_text(json.dumps(LLAMA))
    ran = shell.tmmu("plan", "hf:.", *options)
    assert ran.code == 2
    assert ran.err.startswith(f"tmmu: INVALID_CONFIG: {said}")


def test_a_model_that_shards_itself_is_not_swept(shell: Shell) -> None:
    ran = shell.tmmu("plan", shell.graph(small()), "--world", 2, "--sweep", "tp")
    assert ran.err.startswith("tmmu: INVALID_CONFIG: --sweep: only for an hf: model")
