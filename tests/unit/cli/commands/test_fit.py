"""``tmmu fit``: limits, files, figures, and every way to ask for what makes no sense."""

import errno
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.graphs import Shell, small
from tests.unit.ir.samples import edit
from tests.unit.judge.rewrite.programs import convolutions, deep_step
from tests.unit.planner.fit.head_models import head_step
from tmmu.cli.output import fit_report
from tmmu.codec import files
from tmmu.codec.load import load_graph, load_plan
from tmmu.ir.call_text import decode_call, encode_call
from tmmu.ir.graph import Graph
from tmmu.ir.plan import segment_bytes
from tmmu.planner.arenas import readable_size

OWN_TRAINING = """
import torch

net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(net.parameters())


def step(x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def inputs():
    return torch.randn(512, 64)
"""
FILES = ("small.fit.ir.cbor", "small.fit.plan.cbor", "small.ir.cbor")


@pytest.fixture
def step(shell: Shell) -> Graph:
    """A training step of five convolutions, as ``small.ir.cbor``."""
    graph = convolutions("adamw:foreach")
    shell.graph(graph)
    return graph


def test_step_that_fits_is_left_as_it_is(shell: Shell, step: Graph) -> None:
    done = shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB", "--json")
    assert done.code == 0, done.err
    assert done.record["stack_bytes"] == done.record["base_stack_bytes"]
    assert done.record["reruns"] == done.record["extra_flops"] == 0
    assert load_plan(Path("small.fit.plan.cbor")).ir_hash == step.ir_hash


def test_plan_stays_below_the_step_s_limit_and_is_what_the_report_says(shell: Shell, step: Graph) -> None:
    base = shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB", "--json").record["base_stack_bytes"]
    done = shell.tmmu("fit", "small.ir.cbor", "--step", base * 6 // 10, "--json")
    assert done.code == 0, done.err
    found, plan = done.record, load_plan(Path("small.fit.plan.cbor"))
    assert found["stack_bytes"] == segment_bytes(plan.arenas, "stack") <= base * 6 // 10
    assert found["floor_bytes"] <= found["stack_bytes"] < found["levers"][0]["stack_bytes"] == base
    assert found["reruns"] > 0 < found["extra_flops"]
    assert plan.fit is not None
    assert plan.fit.budget_bytes == base * 6 // 10
    assert plan.fit.cost.flops == found["extra_flops"]
    assert found["digest"] == plan.digest.hex()
    assert [Path(path).name for path in found["files"]] == ["small.ir.cbor", "small.fit.ir.cbor", "small.fit.plan.cbor"]
    assert shell.tmmu("verify", "small.fit.plan.cbor", "--base", "small.ir.cbor").code == 0
    assert load_graph(Path("small.ir.cbor")).ir_hash == step.ir_hash


def test_budget_is_all_of_the_device(shell: Shell, step: Graph) -> None:
    whole = shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB", "--json").record
    beside = whole["total_bytes"] - whole["stack_bytes"]
    budget = beside + whole["base_stack_bytes"] * 7 // 10 + (1 << 20)
    done = shell.tmmu("fit", "small.ir.cbor", "--budget", budget, "--reserve", "1MiB", "--json")
    assert done.code == 0, done.err
    assert done.record["total_bytes"] + done.record["reserve_bytes"] <= budget
    assert done.record["stack_bytes"] < whole["base_stack_bytes"]
    assert done.record["fits"] == [8, 12, 16, 24, 40, 48, 80, 141, 192]


def test_other_devices_that_have_as_much_are_named(shell: Shell, step: Graph) -> None:
    """With what is kept free beside the step."""
    options = ("fit", "small.ir.cbor", "--step", "1GiB", "--reserve", "15GB")
    short = shell.tmmu(*options, "--json").record["total_bytes"] + 3 * 10**9
    assert (
        f"of other devices it fits 16 24 40 48 80 141 192 GB, not 8 12 GB (12 GB is {readable_size(short)} short)\n"
        in (shell.tmmu(*options).out)
    )


def test_report_says_what_each_lever_gives(shell: Shell, step: Graph) -> None:
    done = shell.tmmu("fit", "small.ir.cbor", "--at-most", "15%", "--curve")
    assert done.code == 0, done.err
    for text in ("as it is", "updates: each weight", "recompute: what", "at most", "least", "judged: ", "goes below "):
        assert text in done.out
    assert shell.files() == FILES
    record = shell.tmmu("fit", "small.ir.cbor", "--at-most", "15%", "--curve", "--json").record
    assert 0 < record["extra_time_ppm"] <= 150_000
    live = [row["live_bytes"] for row in record["curve"]]
    assert live == sorted(live, reverse=True)


def test_curve_says_that_its_bytes_are_live_and_levers_end_with_those_of_the_plan(shell: Shell, step: Graph) -> None:
    """In slots and an arena apart a plan takes more than is live."""
    arenas = ("--arena", "activations=layout:slots", "--arena", "gradients=layout:packed")
    options = ("fit", "small.ir.cbor", "--at-most", "100", "--curve", *arenas)
    record = shell.tmmu(*options, "--json").record
    assert record["levers"][-1]["stack_bytes"] == record["stack_bytes"] > record["curve"][-1]["live_bytes"]
    lines = shell.tmmu(*options).out.splitlines()
    heading = next(line for line in lines if line.startswith("at most"))
    assert heading.split() == ["at", "most", "live", "extra", "time", "extra", "FLOPs"]
    assert any(line.startswith("live: the most bytes of the step at once; its plan takes them, or") for line in lines)


def test_command_that_runs_it_names_the_device_that_is_not_the_default(shell: Shell, step: Graph) -> None:
    run = "tmmu run MODEL{} --plan small.fit.plan.cbor --check"
    assert run.format("") in shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB").out
    shell.graph(replace(step, target="cuda"))
    assert run.format(" --device cuda") in shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB").out


def run_lines(shell: Shell, file: str) -> tuple[list[str], str | None]:
    """What the report says of running the plan, and the reason of the record against it."""
    options = ("fit", file, "--step", "1GiB", "-o", "out")
    done = shell.tmmu(*options)
    assert done.code == 0, done.err
    reason = shell.tmmu(*options, "--json").record["untraced"]
    return [line for line in done.out.splitlines() if "runs it: " in line or "run it" in line], reason


def test_plan_of_a_graph_that_was_fitted_before_is_run_by_no_command(shell: Shell, step: Graph) -> None:
    assert shell.tmmu("fit", "small.ir.cbor", "--at-most", "15%", "--only", "recompute").code == 0
    lines, reason = run_lines(shell, "small.fit.ir.cbor")
    assert lines == [f"nothing runs it: {reason}"]
    assert str(reason).startswith("small.fit.ir.cbor was fitted before, and no model is traced to it: ")


def test_plan_of_a_graph_that_a_fit_left_as_it_is_is_run(shell: Shell, step: Graph) -> None:
    assert shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB").code == 0
    lines, reason = run_lines(shell, "small.fit.ir.cbor")
    assert (len(lines), reason) == (1, None)
    assert lines[0].endswith(" --plan out.fit.plan.cbor --check")


def test_plan_of_fused_ops_is_run_by_no_command(shell: Shell) -> None:
    name, graph = "tmmu_fused.relu_0123456789abcdef0123.default", convolutions("sgd")
    assert graph.calls is not None
    op = graph.ops.target.index("aten.relu_.default")
    call = graph.calls.call[op]
    text = decode_call(graph.calls.texts[call])
    assert text is not None
    graph = edit(graph, "calls.texts", encode_call(replace(text, operator=name)), call)
    for place in (place for place in graph.ops.ids if graph.calls.call[place] == call):
        graph = edit(graph, "ops.target", name, place)
    shell.graph(graph)
    lines, reason = run_lines(shell, "small.ir.cbor")
    assert lines == [f"nothing runs it: {reason}"]
    assert str(reason).startswith("ops of small.ir.cbor are fused, ")


SMALL_MODEL = """
import torch

def model(width=16, bias="yes it has"):
    return torch.nn.Sequential(torch.nn.Linear(width, width, bias=bias == "yes it has"), torch.nn.GELU())

def inputs(batch=4, width=16):
    return (torch.randn(batch, width),)
"""


def test_commands_that_are_printed_run_as_they_are(shell: Shell) -> None:
    """That which runs the plan, and that which plans the largest size, with all options that were written."""
    Path("rows.py").write_text(SMALL_MODEL)
    options = ("--mode", "backward", "--loss", "sum", "--optimizer", "sgd", "--device", "cpu", "--seed", "7")
    options += ("--set", "width=32", "--set", "bias=not here", "--set", "batch=3", "--no-cache")
    done = shell.tmmu("fit", "rows.py", *options, "--at-most", "10", "-o", "a plan")
    assert done.code == 0, done.err
    line = next(line for line in done.out.splitlines() if line.startswith("run it: tmmu run rows.py "))
    ran = shell.tmmu(*shlex.split(line)[3:])
    assert ran.code == 0, ran.err
    assert "have the bits of the model itself" in ran.out
    limits = ("--step", "20kb", "--only", "order,takeover", "--allow", "near")
    done = shell.tmmu("fit", "rows.py", *options, *limits, "--max", "batch")
    assert done.code == 0, done.err
    line = next(line for line in done.out.splitlines() if line.startswith("its plan: tmmu fit rows.py --set batch="))
    assert "--set batch=3" not in line
    assert "--only order,takeover --allow near" in line
    again = shell.tmmu(*shlex.split(line)[3:])
    assert again.code == 0, again.err


def test_time_that_is_allowed_is_said_as_it_was_and_what_is_needed_is_enough(shell: Shell, step: Graph) -> None:
    options = ("fit", "small.ir.cbor", "--step", "300KiB", "--at-most")
    error = shell.tmmu(*options, "0.04", "--json").record
    assert (error["exit"], error["what"]) == (3, "it takes about 5.0 % more time to fit, and 0.04 % is allowed")
    assert error["fix"] == "allow it: --at-most 5.0%, or give more room"
    ppm = error["fields"]["extra_time_ppm"]
    assert 48_000 < ppm < 50_000
    assert [shell.tmmu(*options, f"{some / 10_000:.4f}").code for some in (ppm, ppm - 1)] == [0, 3]


def test_no_more_time_is_what_lists_that_stay_whole_take(shell: Shell, step: Graph) -> None:
    """Lists in groups take a little more: without them the step still takes fewer bytes than it does as it is."""
    record = shell.tmmu("fit", "small.ir.cbor", "--at-most", "0", "--json").record
    assert record["extra_time_ppm"] <= 0
    assert record["stack_bytes"] < record["base_stack_bytes"]
    plan = load_plan(Path("small.fit.plan.cbor"))
    assert plan.fit is not None
    assert set(plan.fit.rewrite.kind) == {"same"}


def test_flops_that_are_few_are_not_said_to_be_none() -> None:
    texts = [fit_report._exact_with_sign(count, ppm) for count, ppm in ((0, 0), (7, 0), (7, 499), (-7, -12), (7, 500))]
    assert texts == ["0", "+0.0001 %", "+0.0499 %", "-0.0012 %", "+0.1 %"]


def test_curve_alone_writes_nothing(shell: Shell, step: Graph) -> None:
    done = shell.tmmu("fit", "small.ir.cbor", "--curve")
    assert done.code == 0, done.err
    assert "wrote" not in done.out
    assert shell.files() == ("small.ir.cbor",)


def test_page_shows_the_curve(shell: Shell, step: Graph) -> None:
    done = shell.tmmu("fit", "small.ir.cbor", "--at-most", "10", "--report", "small.html", "-o", "out")
    assert done.code == 0, done.err
    text = Path("small.html").read_text()
    assert text.count('<svg class="curve"') == text.count('<circle class="taken"') == 1
    assert "extra time" in text
    again = shell.tmmu("fit", "small.ir.cbor", "--at-most", "10", "--report", "small2.html", "-o", "out2", "--json")
    assert Path(again.record["report"]).name == "small2.html"
    assert shell.tmmu("fit", "small.ir.cbor", "--step", "1", "--report", "out.fit.ir.cbor", "-o", "out").code == 2
    assert shell.tmmu("fit", "small.ir.cbor", "--step", "1", "--report", "nowhere/x").code == 2


def test_levers_can_be_named(shell: Shell, step: Graph) -> None:
    record = shell.tmmu("fit", "small.ir.cbor", "--at-most", "100", "--only", "order, updates", "--json").record
    assert record["reruns"] == 0
    assert [row["lever"] for row in record["levers"]][1:3] == ["order", "updates"]


def test_values_go_to_the_host_where_that_is_asked_for(shell: Shell, step: Graph) -> None:
    base = shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB", "--json").record
    assert base["host_bytes"] == 0
    options = ("fit", "small.ir.cbor", "--step", base["base_stack_bytes"] * 6 // 10, "--only", "takeover,offload")
    done, record = shell.tmmu(*options), shell.tmmu(*options, "--json").record
    assert done.code == 0, done.err
    plan, graph = load_plan(Path("small.fit.plan.cbor")), load_graph(Path("small.fit.ir.cbor"))
    assert plan.fit is not None
    values = plan.fit.rewrite.kind.count("to_host")
    assert plan.fit.levers == ("takeover", "offload")
    assert record["host_bytes"] == sum(
        size for size, role in zip(graph.buffers.bytes, graph.buffers.role, strict=True) if role == "host"
    )
    assert f"{values} values, at 24 GB/s each way; a CPU has no other memory" in done.out
    assert record["stack_bytes"] <= base["base_stack_bytes"] * 6 // 10
    assert record["extra_time_ppm"] > 0 == record["extra_flops_ppm"]
    done = shell.tmmu("verify", "small.fit.plan.cbor", "--base", "small.ir.cbor")
    assert f"to the host and back {values}" in done.out
    assert f"to the host and back {values}" in shell.tmmu("show", "small.fit.plan.cbor").out
    assert shell.tmmu("report", "small.fit.plan.cbor", "-o", "p.html").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--step", "1"), 3, "BUDGET_TOO_SMALL: the stack takes "),
        (("--step", "0"), 3, "BUDGET_TOO_SMALL: "),
        (("--budget", "1KiB"), 3, "BUDGET_TOO_SMALL: weights, state and inputs take "),
        (("--at-most", "0", "--only", "recompute"), 0, ""),
        (("--step", "40KiB", "--at-most", "0.1%"), 3, "BUDGET_TOO_SMALL: "),
        (("--step", "1", "--only", "offload"), 3, "BUDGET_TOO_SMALL: the stack takes "),
        (("--at-most", "10", "--only", "offload"), 2, "--only: offload says how much leaves the device by a limit"),
        (("--step", "1KiB", "--only", "offload", "--max", "batch"), 2, "--only: offload says how much"),
        ((), 2, "no limit is named"),
        (("--step", "1KiB", "--budget", "1GiB"), 2, "two limits"),
        (("--budget", "NaN"), 2, "--budget: 'NaN' is not a size"),
        (("--budget", "inf"), 2, "--budget: 'inf' is not a size"),
        (("--budget", "1e26"), 2, "--budget: '1e26' does not fit 64 bits"),
        (("--budget", "16e9"), 0, ""),
        (("--budget", "99999999999999999999GB"), 2, "does not fit 64 bits"),
        (("--budget", "٣MB"), 2, "is not a size"),
        (("--budget", ""), 2, "--budget: '' is not a size"),
        (("--budget", "0"), 3, "BUDGET_TOO_SMALL: "),
        (("--budget", "16 GB ", "--only", "order,order"), 0, ""),
        (("--step", "1KiB", "--only", "order,,parts"), 2, "--only: 'order,,parts' has a comma too many"),
        (("--step", "1KiB", "--only", "order,"), 2, "--only: 'order,' has a comma too many"),
        (("--step", "1KiB", "--only", " , "), 2, "--only: no lever is named"),
        (("--step", "1KiB", "--only", "ORDER"), 2, "--only: no lever 'ORDER'"),
        (("--step", "much"), 2, "--step: 'much' is not a size"),
        (("--step", "-1"), 2, "--step: '-1' is not a size"),
        (("--at-most", "ten"), 2, "--at-most: 'ten'"),
        (("--at-most", "-1%"), 2, "--at-most: '-1%'"),
        (("--at-most", "1e9"), 2, "--at-most: '1e9'"),
        (("--at-most", "1.%"), 2, "--at-most"),
        (("--step", "1KiB", "--only", "magic"), 2, "--only: no lever 'magic'"),
        (("--step", "1KiB", "--only", ""), 2, "--only: no lever is named (use some of takeover, "),
        (("--step", "1GiB", "-o", "nowhere/name"), 2, "--output: no folder nowhere"),
        (("--step", "1GiB", "--mode", "forward"), 2, "--mode forward"),
    ],
)
def test_what_makes_no_sense_is_refused(
    shell: Shell, step: Graph, arguments: tuple[str, ...], code: int, text: str
) -> None:
    done = shell.tmmu("fit", "small.ir.cbor", *arguments)
    assert (done.code, text in done.err) == (code, True), done.err
    assert code == 0 or done.err.count("\n") <= 1
    assert code == 0 or shell.files() == ("small.ir.cbor",)


STEPS = """
import torch
from torch import nn

layer = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
for parameter in layer.parameters():
    parameter.grad = torch.ones_like(parameter)
optimizer = torch.optim.AdamW(layer.parameters(), foreach=True)


def batch():
    return torch.randn(64, 16)


def update(x):
    optimizer.step()


def evaluate(x):
    with torch.no_grad():
        first = layer(x)
        rows = torch.cat([layer(first) for _ in range(4)])
        return first.sum() + rows.sum() * first.mean()
"""


@pytest.mark.parametrize("step", ["update", "evaluate"])
def test_own_step_without_a_backward_pass_is_fitted(shell: Shell, step: str) -> None:
    Path("steps.py").write_text(STEPS)
    options = (f"steps.py:{step}", "--mode", "step", "--device", "cpu")
    done = shell.tmmu("fit", *options, "--at-most", "100", "--json")
    assert done.code == 0, done.err
    assert done.record["stack_bytes"] <= done.record["base_stack_bytes"]
    plan = load_plan(Path(f"steps.{step}.fit.plan.cbor"))
    assert plan.mode == done.record["mode"] == "backward"
    assert shell.tmmu("verify", f"steps.{step}.fit.plan.cbor", "--base", f"steps.{step}.ir.cbor").code == 0
    if step == "evaluate":
        assert done.record["reruns"] > 0
        ran = shell.tmmu("run", *options, "--plan", f"steps.{step}.fit.plan.cbor", "--check")
        assert ran.code == 0, ran.err


def test_rewritten_graph_has_files_of_its_own(shell: Shell, step: Graph) -> None:
    assert shell.tmmu("fit", "small.ir.cbor", "--at-most", "15%").code == 0
    before = {name: Path(name).read_bytes() for name in FILES}
    done = shell.tmmu("fit", "small.fit.ir.cbor", "--at-most", "15%")
    assert done.code == 0, done.err
    assert shell.files() == ("small.fit.fit.ir.cbor", "small.fit.fit.plan.cbor", *FILES)
    assert {name: Path(name).read_bytes() for name in FILES} == before
    named = shell.tmmu("fit", "small.ir.cbor", "--at-most", "15%", "-o", "small.fit.plan.cbor")
    assert named.code == 0, named.err
    assert Path(FILES[1]).read_bytes() == before[FILES[1]]


def test_files_are_named_as_their_folder_was(shell: Shell, step: Graph) -> None:
    Path("out").mkdir()
    done = shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB", "-o", "out/")
    assert "wrote out/small.fit.plan.cbor, out/small.fit.ir.cbor, out/small.ir.cbor\n" in done.out
    assert " --plan out/small.fit.plan.cbor --check\n" in done.out


def test_plan_whose_graph_is_replaced_is_named(shell: Shell, step: Graph) -> None:
    fit, words = ("fit", "small.ir.cbor", "--step", "1GiB", "-o", "other"), "other.plan.cbor was made of another graph"
    Path("other.plan.cbor").write_bytes(b"no plan")
    assert words not in shell.tmmu(*fit).out
    assert shell.tmmu("plan", "small.ir.cbor", "--mode", "backward", "-o", "other.plan.cbor").code == 0
    assert words not in shell.tmmu(*fit).out
    given = shell.graph(small(), "given")
    assert shell.tmmu("plan", given, "-o", "other.plan.cbor").code == 0
    done = shell.tmmu(*fit)
    assert words in done.out
    assert shell.tmmu(*fit, "--json").record["replaced_graph_of"] == "other.plan.cbor"


def test_three_files_are_no_device(shell: Shell, step: Graph, terminal: str) -> None:
    done = shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB", "-o", terminal)
    assert (done.code, shell.files()) == (2, ("small.ir.cbor",))
    assert "is no file, and three are written" in done.err


def test_page_is_written_with_the_plan_or_neither_is(
    shell: Shell, step: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = files._stage

    def fail_to_stage(path: Path, data: bytes, staged: list[Any]) -> None:
        if Path(path).name == "page.html":
            raise OSError(errno.EFBIG, "File too large")
        stage(path, data, staged)

    monkeypatch.setattr(files, "_stage", fail_to_stage)
    done = shell.tmmu("fit", "small.ir.cbor", "--step", "1GiB", "--report", "page.html")
    assert (done.code, shell.files()) == (2, ("small.ir.cbor",))
    assert "page.html" in done.err


def test_first_step_that_does_not_fit_is_said_so(shell: Shell) -> None:
    Path("own.py").write_text(OWN_TRAINING)
    whole = shell.tmmu("fit", "own.py:step", "--step", "1GiB", "--device", "cpu", "--json").record
    budget = whole["total_bytes"] - whole["base_stack_bytes"] * 3 // 10
    assert budget < whole["first_step_bytes"] <= whole["total_bytes"]
    assert "the first step" not in shell.tmmu("fit", "own.py:step", "--step", "1GiB", "--device", "cpu").out
    done = shell.tmmu("fit", "own.py:step", "--budget", budget, "--reserve", "0", "--device", "cpu")
    assert done.code == 0, done.err
    assert "the first step makes the optimizer's state and runs as it is: it takes" in done.out
    assert ", and does not fit\n" in done.out


def test_page_takes_no_file_of_the_plan(shell: Shell, step: Graph) -> None:
    taken = ("--report", "out.fit.plan.cbor", "-o", "out.fit.plan.cbor")
    done = shell.tmmu("fit", "small.ir.cbor", "--at-most", "10", *taken)
    assert done.code == 2
    assert "which the plan or a graph has" in done.err


def test_refusal_names_the_levers_that_are_left_out(shell: Shell, step: Graph) -> None:
    done = shell.tmmu("fit", "small.ir.cbor", "--step", "1KiB", "--only", "order,parts,order")
    assert done.code == 3
    assert "or leave the other levers in: takeover, updates, recompute)" in done.err
    assert "the other levers" not in shell.tmmu("fit", "small.ir.cbor", "--step", "1KiB").err


def test_parts_that_this_machine_does_otherwise_are_in_no_plan(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.graph(head_step("tied"))
    levers = ("--at-most", "100", "--only", "takeover,parts")
    assert shell.tmmu("fit", "small.ir.cbor", *levers, "--json").record["parts_tried"] is True
    plan = load_plan(Path("small.fit.plan.cbor"))
    assert plan.fit is not None
    assert "parts" in plan.fit.levers
    monkeypatch.setattr("tmmu.runtime.steps.part_trial.has_same_bits", lambda *_: False)
    left_out = shell.tmmu("fit", "small.ir.cbor", *levers, "--json").record["parts_left_out"]
    assert left_out[0]["op"] == "aten.mm.default"
    assert set(load_plan(Path("small.fit.plan.cbor")).fit.rewrite.kind) == {"same"}  # type: ignore[union-attr]
    text = shell.tmmu("fit", "small.ir.cbor", *levers).out
    assert f"nothing runs in parts: those of aten.mm.default ({left_out[0]['source']}) have other bits" in text


def test_parts_that_cannot_be_tried_here_are_said_to_be(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.graph(replace(head_step("tied"), target="cuda"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = shell.tmmu("fit", "small.ir.cbor", "--at-most", "100", "--only", "takeover,parts")
    assert "parts are tried on the cuda that runs them" in done.out
    assert "--only takeover,order,updates,recompute\n" in done.out
    json = shell.tmmu("fit", "small.ir.cbor", "--at-most", "100", "--only", "takeover,parts", "--json")
    assert json.record["parts_tried"] is False


def test_terminal_sees_that_the_step_is_being_fitted(
    shell: Shell, step: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    @contextmanager
    def collected() -> Iterator[Callable[[str, int], None]]:
        yield lambda stage, ops: seen.append((stage, ops))

    monkeypatch.setattr("tmmu.cli.commands.fit.progress_bar", collected)
    assert shell.tmmu("fit", "small.ir.cbor", "--curve").code == 0
    assert seen == [("fitting", len(step.ops))]


def test_line_that_forbids_early_updates_is_named(shell: Shell) -> None:
    shell.graph(deep_step("clipped"))
    done = shell.tmmu("fit", "small.ir.cbor", "--at-most", "100", "--json")
    assert done.code == 0, done.err
    (reader,) = done.record["updates_wait_for"]
    assert reader["op"] == "aten._foreach_norm.Scalar"
    assert reader["source"].startswith("programs.py:")
    named = f"{reader['op']} ({reader['source']})"
    text = shell.tmmu("fit", "small.ir.cbor", "--at-most", "100").out
    assert f"updates wait for all gradients: {named} reads them" in text
    refused = shell.tmmu("fit", "small.ir.cbor", "--step", "1KiB")
    assert refused.code == 3
    assert f"updates wait for all gradients, which {named} reads" in refused.err
    without = shell.tmmu("fit", "small.ir.cbor", "--at-most", "100", "--only", "order,recompute", "--json")
    assert without.record["updates_wait_for"] == []


def test_nothing_is_said_of_updates_that_wait_for_nothing(shell: Shell, step: Graph) -> None:
    done = shell.tmmu("fit", "small.ir.cbor", "--at-most", "100", "--json")
    assert done.record["updates_wait_for"] == []
    assert "updates wait" not in shell.tmmu("fit", "small.ir.cbor", "--at-most", "100").out
    assert "updates wait" not in shell.tmmu("fit", "small.ir.cbor", "--step", "1KiB").err


def test_graph_without_calls_is_refused(shell: Shell) -> None:
    shell.graph(small(), "old")
    done = shell.tmmu("fit", "old.ir.cbor", "--step", "1GiB")
    assert done.code == 2
    assert "does not say its calls" in done.err
    assert shell.tmmu("fit", "old.ir.cbor", "--step", "1GiB", "--mode", "backward").code == 2
