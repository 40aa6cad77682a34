"""``tmmu plan`` of a graph file, without torch."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

import tmmu
from tests.unit.cli.graphs import Shell, small
from tests.unit.ir.samples import described_graph
from tmmu import driver as pipeline
from tmmu.cli import planning
from tmmu.codec.load import load_graph, load_plan
from tmmu.driver import Compiled, compile_graph
from tmmu.ir.graph import encode_graph
from tmmu.judge.check import judge
from tmmu.planner.token import token_from_seed


def test_both_files_are_written_and_hold_the_graph_and_a_sound_plan(shell: Shell) -> None:
    done = shell.tmmu("plan", shell.graph(small(), "given"), "-o", "out.plan.cbor")
    assert (done.code, done.err) == (0, "")
    assert shell.files() == ("given.ir.cbor", "out.ir.cbor", "out.plan.cbor")
    graph = load_graph(Path("out.ir.cbor"))
    assert graph == small()
    judge(graph, load_plan(Path("out.plan.cbor")), token=token_from_seed(0))


def test_outputs_are_named_after_the_target_and_lie_here(shell: Shell) -> None:
    Path("models").mkdir()
    shell.graph(small(), "models/net")
    assert shell.tmmu("plan", "models/net.ir.cbor").code == 0
    assert shell.files() == ("models", "net.ir.cbor", "net.plan.cbor")


def test_graph_can_be_planned_again_in_its_place(shell: Shell) -> None:
    graph = shell.graph(small(), "net")
    before = graph.read_bytes(), graph.stat().st_mtime_ns
    assert shell.tmmu("plan", graph).out.endswith("\nwrote net.plan.cbor\n")
    assert (graph.read_bytes(), graph.stat().st_mtime_ns) == before
    assert shell.tmmu("plan", graph, "--json").record["files"] == {"plan": "net.plan.cbor", "ir": "net.ir.cbor"}


def test_output_folder_and_a_name_for_the_graph(shell: Shell) -> None:
    Path("out").mkdir()
    done = shell.tmmu("plan", shell.graph(small(), "net"), "-o", "out", "--ir", "graph")
    assert done.code == 0, done.err
    assert Path("out/net.plan.cbor").is_file()
    assert Path("graph").is_file()


def test_summary_says_what_the_model_needs(shell: Shell) -> None:
    lines = shell.tmmu("plan", shell.graph(small(), "given"), "-o", "small.plan.cbor").out.splitlines()
    assert lines[0] == "small: inference on cpu, preset inference, 5 ops, 7 buffers"
    assert lines[1] == "inputs: x float32[4, 256]"
    assert lines[3].startswith("run as it is: not known")  # a graph of version 1
    assert lines[4] == "inside the plan: 2.0 MiB, of which stack 20.0 KiB"
    assert lines[6].split() == ["arena", "peak", "bound", "proven", "slots", "reuse"]
    assert lines[9].split() == ["activations", "20.0", "KiB", "20.0", "KiB", "yes", "2", "50.0", "%"]
    assert "activations are fullest at position 2 (aten.mm): 20.0 KiB, all 2 buffers:" in lines
    assert "total 2.0 MiB = text 2.0 MiB + data 4.0 KiB + stack 20.0 KiB + inputs 4.0 KiB (the caller's)" in lines
    assert "data 4.0 KiB = buffers that the model updates 4.0 KiB" in lines
    needs = "inference on cpu needs 1.0 GiB of device memory (total + 1.0 GiB in reserve)"
    assert f"{needs}: fits 8 12 16 24 40 48 80 141 192 GB" in lines
    assert lines[-1] == "wrote small.plan.cbor and small.ir.cbor"


def test_json_has_the_same_numbers_the_files_and_the_seconds(shell: Shell) -> None:
    record = shell.tmmu("plan", shell.graph(small(), "given"), "-o", "x.plan.cbor", "--reserve", "7GB", "--json").record
    assert record["inputs"] == [{"name": "x", "dtype": "float32", "shape": [4, 256]}]
    assert record["state"] == [{"kind": "buffers", "bytes": 4096}]
    assert record["memory"] == {
        "text": 2 << 20,
        "data": 4096,
        "stack": 20480,
        "inputs": 4096,
        "total": (2 << 20) + 4096 + 20480 + 4096,
    }
    assert record["stack"] == {"peak": 20480, "bound": 20480, "proven": True}
    assert [arena["layout"] for arena in record["arenas"]] == ["sequential", "sequential", "joint", "joint"]
    assert record["files"] == {"plan": "x.plan.cbor", "ir": "x.ir.cbor"}
    assert list(record["seconds"]) == ["check", "plan", "judge"]
    assert record["reserve"] == 7 * 10**9
    assert [fit["gb"] for fit in record["fits"] if fit["fits"]] == [8, 12, 16, 24, 40, 48, 80, 141, 192]
    assert record["digest"] == load_plan(Path("x.plan.cbor")).digest.hex()


def test_mode_and_preset_reach_the_plan(shell: Shell) -> None:
    for mode, preset in (("inference", "inference"), ("forward", "train_full"), ("backward", "train_full")):
        plan = load_plan(shell.plan("--mode", mode))
        assert (plan.mode, plan.preset) == (mode, preset)
    assert load_plan(shell.plan("--mode", "backward", "--preset", "remat_enabled")).preset == "remat_enabled"


def test_graph_of_a_training_step_is_planned_whole_unless_a_mode_is_named(shell: Shell) -> None:
    ir = shell.graph(described_graph(), "step")
    assert shell.tmmu("plan", ir).code == 0
    plan = load_plan(Path("step.plan.cbor"))
    assert (plan.mode, plan.preset, len(plan.order)) == ("backward", "train_full", 8)
    whole = shell.tmmu("plan", ir, "-o", "x.plan.cbor", "--json").record
    assert (whole["mode"], whole["eager"]["stack_bytes"]) == ("backward", 320)
    assert shell.tmmu("cache", "why", ir, "--json").record["kept"] is True
    chosen = shell.tmmu("plan", ir, "-o", "y.plan.cbor", "--preset", "remat_enabled", "--json").record
    assert (chosen["mode"], chosen["preset"]) == ("backward", "remat_enabled")


def test_figures_of_a_training_step_as_it_is_are_said_of_no_plan_of_its_forward_half(shell: Shell) -> None:
    ir = shell.graph(described_graph(), "step")
    half = shell.tmmu("plan", ir, "-o", "half.plan.cbor", "--mode", "inference", "--json").record
    assert (half["mode"], half["preset"], half["ops"], half["eager"]) == ("inference", "inference", 6, None)
    assert "run as it is: not known" in shell.tmmu("show", "half.plan.cbor").out
    assert shell.tmmu("show", "half.plan.cbor", "--plot", "--json").record["plot"]["eager"] is None
    assert shell.tmmu("export", "half.plan.cbor", "--to", "memory_viz", "--run", "eager").code == 2
    assert tmmu.load("half.plan.cbor").timeline().eager == ()
    assert shell.tmmu("diff", "half.plan.cbor", "half.plan.cbor", "--json").record["eager"]["after"] is None


def test_token_is_seed_0_unless_one_is_named(shell: Shell) -> None:
    token = bytes(range(64))
    Path("token").write_bytes(token)
    plans = {
        options: shell.plan(*options).read_bytes()
        for options in ((), ("--seed", "0"), ("--seed", "1"), ("--token", token.hex()), ("--token-file", "token"))
    }
    default, zero, seed_1, by_hex, by_file = plans.values()
    assert default == zero
    assert by_hex == by_file
    assert len({default, seed_1, by_hex}) == 3


def test_arena_entries_reach_the_plan(shell: Shell) -> None:
    plan = load_plan(
        shell.plan("--arena", "activations=capacity:1MiB,alignment:512,layout:slots", "--arena", "state=page:4096")
    )
    assert (plan.arenas.capacity[2], plan.arenas.alignment[2], plan.arenas.layout[2]) == (1 << 20, 512, "slots")
    assert plan.arenas.page[1] == 4096


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--set", "seq=8"), "--set: only for a model.py"),
        (("--input", "x=float32[1]"), "--input: only for a model.py"),
        (("--batch", "2"), "--batch: only for an hf:"),
        (("--seq", "2"), "--seq: only for an hf:"),
        (("--decode", "--cache-len", "8"), "--decode, --cache-len: only for an hf:"),
        (("--device", "cuda"), "--device: settled when the graph was captured"),
        (("--optimizer", "sgd", "--mode", "backward"), "--optimizer: settled when"),
        (("--batch", "0"), "--batch"),
        (("--batch", "two"), "Invalid value for '--batch'"),
        (("--mode", "training"), "Invalid value for '--mode'"),
        (("--preset", "fast"), "Invalid value for '--preset'"),
        (("--dtype", "int3"), "Invalid value for '--dtype'"),
        (("--seed", "0", "--token", "00" * 64), "--seed and --token all name the replay token"),
        (("--seed", "x"), "Invalid value for '--seed'"),
        (("--arena", "heap=capacity:1"), "--arena"),
        (("--arena", "state=layout:packed"), "--arena"),
        (("--arena", "state=capacity:lots"), "--arena"),
        (("--reserve", "-1"), "--reserve"),
        (("-o", "nowhere/x.plan.cbor"), "--output: no folder nowhere"),
        (("--ir", "nowhere/x.ir.cbor"), "--ir: no folder nowhere"),
        (("-o", "same", "--ir", "same"), "--output and --ir both name same"),
        (("-o", "given.ir.cbor", "--ir", "x"), "is the input itself"),
        (("--ir", "."), "--ir: . is a folder"),
        (("-o", "out/"), "--output: no folder out/"),
        (("--ir", "out/"), "--ir: no folder out/"),
        (("-o", ""), "--output: no file is named"),
        (("--frobnicate",), "--frobnicate"),
        (("more.py",), "more.py"),
    ],
)
def test_option_that_makes_no_sense_is_one_line_and_writes_nothing(
    shell: Shell, options: tuple[str, ...], why: str
) -> None:
    shell.graph(small(), "given")
    done = shell.tmmu("plan", "given.ir.cbor", *options)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(("tmmu: INVALID_CONFIG: ", "tmmu: INVALID_TOKEN: "))
    assert why in done.err
    assert done.err.count("\n") == 1
    assert shell.files() == ("given.ir.cbor",)


@pytest.mark.parametrize("options", [("--optimizer", "sgd"), ("--cache-len", "8")])
def test_option_without_the_one_it_needs_is_refused(shell: Shell, options: tuple[str, ...]) -> None:
    done = shell.tmmu("plan", "hf:config.json", *options)
    assert done.code == 2
    assert f"{options[0]}: only with" in done.err


def test_plan_that_fails_leaves_older_files_as_they_were(shell: Shell) -> None:
    before = shell.plan().read_bytes(), Path("small.ir.cbor").read_bytes()
    done = shell.tmmu("plan", "given.ir.cbor", "-o", "small.plan.cbor", "--arena", "activations=capacity:1KiB")
    assert done.code == 3
    assert (Path("small.plan.cbor").read_bytes(), Path("small.ir.cbor").read_bytes()) == before
    assert shell.files() == ("given.ir.cbor", "small.ir.cbor", "small.plan.cbor")


def test_plan_that_the_judge_refuses_is_not_written(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def misplaced(graph: object, **options: object) -> object:
        plan = prepare(graph, **options)
        return replace(plan, buffers=replace(plan.buffers, offset=(0,) * len(plan.buffers)))

    prepare = pipeline.prepare_memory
    monkeypatch.setattr(pipeline, "prepare_memory", misplaced)
    shell.graph(small(), "given")
    done = shell.tmmu("plan", "given.ir.cbor", "-o", "x.plan.cbor")
    assert done.code == 3
    assert done.err.startswith("tmmu: PLAN_UNSOUND: ")
    assert shell.files() == ("given.ir.cbor",)


def test_model_target_is_captured_with_the_options_given(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def compile_model(request: object, plan_request: object, progress: object, **cache: object) -> Compiled:
        requests.append(request)
        print("a model may print")
        return compile_graph(small(), plan_request)  # type: ignore[arg-type]

    monkeypatch.setattr(planning, "compile_model", compile_model)
    options = (
        "--batch",
        4,
        "--seq",
        16,
        "--dtype",
        "bfloat16",
        "--decode",
        "--cache-len",
        32,
        "--device",
        "cpu",
        "--json",
    )
    done = shell.tmmu("plan", "hf:llama/config.json", *options)
    assert done.record["files"] == {"plan": "llama.plan.cbor", "ir": "llama.ir.cbor"}
    assert done.err == "a model may print\n"
    (request,) = requests
    assert (request.model, request.device, request.batch, request.seq) == ("hf:llama/config.json", "cpu", 4, 16)
    assert (request.dtype, request.decode, request.cache_len, request.mode) == ("bfloat16", True, 32, "inference")
    options = ("--mode", "backward", "--optimizer", "adamw", "--set", "seq=8", "--input", "x=float32[2]")
    assert shell.tmmu("plan", "net.py:Net", *options).code == 0
    request = requests[1]
    assert (request.mode, request.optimizer, request.device) == ("backward", "adamw", "cuda")
    assert (request.settings, request.inputs) == ((("seq", "8"),), ("x=float32[2]",))


def test_same_options_give_the_same_bytes(shell: Shell) -> None:
    assert shell.plan().read_bytes() == shell.plan().read_bytes()
    assert Path("given.ir.cbor").read_bytes() == encode_graph(small())


def test_plan_for_a_device_leaves_no_graph_beside_it(shell: Shell, terminal: str) -> None:
    graph = shell.graph(small(), "given")
    assert shell.tmmu("plan", graph, "-o", terminal).out.endswith(f"\nwrote {terminal}\n")
    assert shell.tmmu("plan", graph, "-o", terminal, "--json").record["files"]["plan"] == terminal
    assert not Path(f"{terminal}.ir.cbor").exists()
    assert shell.files() == ("given.ir.cbor",)


def test_neither_file_changes_if_one_cannot_be_written(shell: Shell) -> None:
    before = shell.plan().read_bytes(), Path("small.ir.cbor").read_bytes()
    changed = replace(small(), target="cuda")
    for options in (("-o", "/dev/full", "--ir", "small.ir.cbor"), ("-o", "small.plan.cbor", "--ir", "/dev/full")):
        done = shell.tmmu("plan", shell.graph(changed, "other"), *options)
        assert done.code == 2
        assert done.err.startswith("tmmu: INVALID_CONFIG: cannot write ")
        assert (Path("small.plan.cbor").read_bytes(), Path("small.ir.cbor").read_bytes()) == before


def test_outputs_lie_where_the_program_was_started(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the model changes the current folder while it is traced."""

    def compile_model(request: object, plan_request: object, progress: object, **cache: object) -> Compiled:
        os.chdir("elsewhere")
        return compile_graph(small(), plan_request)  # type: ignore[arg-type]

    monkeypatch.setattr(planning, "compile_model", compile_model)
    Path("elsewhere").mkdir()
    assert shell.tmmu("plan", "net.py").out.endswith("\nwrote net.plan.cbor and net.ir.cbor\n")
    assert shell.files() == ("elsewhere", "net.ir.cbor", "net.plan.cbor")
    assert not list((shell.folder / "elsewhere").iterdir())


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_graph_captured_for_inference_is_not_planned_for_training(shell: Shell, mode: str) -> None:
    graph = small()
    bare = replace(graph, ops=replace(graph.ops, saves=((),) * 5))
    done = shell.tmmu("plan", shell.graph(bare, "given"), "--mode", mode)
    assert done.code == 2
    assert done.err.startswith(f"tmmu: INVALID_CONFIG: --mode {mode}: the graph was captured for inference")
    assert done.err.endswith("(plan the model again with --mode backward)\n")
    assert shell.tmmu("plan", "given.ir.cbor").code == 0
    whole = replace(bare, ops=replace(bare.ops, stage=("forward",) * 4 + ("backward",)))
    assert shell.tmmu("plan", shell.graph(whole, "whole"), "--mode", mode).code == 0


def test_name_from_the_graph_reaches_the_terminal_escaped(shell: Shell) -> None:
    graph = small()
    sources = ("\x1b]0;owned\x07.py:1", "a\nb.py:2\0", *graph.notes.ops.source[2:])
    notes = replace(graph.notes, name="\x1b[2J", ops=replace(graph.notes.ops, source=sources))
    done = shell.tmmu("plan", shell.graph(replace(graph, notes=notes), "given"), "-o", "small.plan.cbor")
    assert all(character.isprintable() or character == "\n" for character in done.out)
    assert done.out.startswith("\\x1b[2J: inference on cpu")
    assert "a\\nb.py:2\\x00" in done.out
    shown = shell.tmmu("plan", "given.ir.cbor", "-o", "\x1b[31m.plan.cbor")
    assert shown.out.endswith("\nwrote \\x1b[31m.plan.cbor and \\x1b[31m.ir.cbor\n")
    verified = shell.tmmu("verify", "\x1b[31m.plan.cbor")
    assert verified.out.startswith("sound: \\x1b[31m.plan.cbor, ")


def test_arena_too_small_is_told_in_units_too(shell: Shell) -> None:
    done = shell.tmmu("plan", shell.graph(small(), "given"), "--arena", "parameters=capacity:1.5MiB")
    assert "needs 2097152 bytes (2.0 MiB) and has 1572864 bytes (1.5 MiB): 524288 bytes (512.0 KiB) too few" in done.err


def test_log_records_of_a_model_are_not_shown(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_model(request: object, plan_request: object, progress: object, **cache: object) -> Compiled:
        for level in (logging.WARNING, logging.ERROR, logging.CRITICAL):
            logging.getLogger("library").log(level, "while it is traced")
        return compile_graph(small(), plan_request)  # type: ignore[arg-type]

    monkeypatch.setattr(planning, "compile_model", compile_model)
    assert shell.tmmu("plan", "net.py").err == ""
    assert not caplog.records
    logging.getLogger("library").error("afterwards")
    assert len(caplog.records) == 1


def test_allocation_time_is_reported_and_in_no_plan(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = shell.graph(small(), "given")
    record = shell.tmmu("plan", graph, "-o", "a.plan.cbor", "--no-cache", "--json").record
    assert record["allocation_time_ns"] == round(record["seconds"]["plan"] * 10**9) > 0
    ticks = iter(range(0, 10**6, 7))
    monkeypatch.setattr("tmmu.driver.perf_counter", lambda: float(next(ticks)))
    slow = shell.tmmu("plan", graph, "-o", "b.plan.cbor", "--no-cache", "--json").record
    assert slow["allocation_time_ns"] == 7 * 10**9
    assert Path("a.plan.cbor").read_bytes() == Path("b.plan.cbor").read_bytes()


def test_plan_of_a_cache_took_no_allocation_time(shell: Shell) -> None:
    graph = shell.graph(small(), "given")
    shell.tmmu("plan", graph, "-o", "a.plan.cbor")
    again = shell.tmmu("plan", graph, "-o", "a.plan.cbor", "--json").record
    assert again["cache"]["origin"] != "new"
    assert again["allocation_time_ns"] is None


def test_arenas_say_how_much_they_reuse(shell: Shell) -> None:
    record = shell.tmmu("plan", shell.graph(small(), "given"), "-o", "a.plan.cbor", "--json").record
    rows = {arena["name"]: (arena["slots"], arena["buffers"], arena["reuse_ppm"]) for arena in record["arenas"]}
    assert rows == {"parameters": (2, 2, 0), "state": (1, 1, 0), "activations": (2, 4, 500_000), "gradients": (0, 0, 0)}
