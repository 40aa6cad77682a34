"""``tmmu diff`` of plans and models: limits for CI, output and refusals."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell, leaving_its_buffer, small
from tests.unit.ir.programs import plan_program, program
from tmmu.cli import planning_process as child
from tmmu.cli.output.diff_output import _escape
from tmmu.compare.diff import Change
from tmmu.compare.diff_side import Origin
from tmmu.ir.graph import Graph, encode_graph
from tmmu.summary.diff_report import Limit, PeakCause, _causes, compare, largest_cause, parse_limit
from tmmu.summary.diff_text import signed_text

EXAMPLE = Path(__file__).parents[4] / "examples" / "gpt2.py"
NET = """
input x 4
parameter weight 16
a 8 = one mm x weight
b 8 = two relu a over a
c 4 = three mm b weight
return c
"""
WIDE = NET.replace("c 4 =", "e 32 = wide cat b b\nc 4 =").replace("mm b weight", "mm e weight")

TEXT = """\
old.ir.cbor -> new.ir.cbor: inference on cpu, preset inference: total +28.0 KiB (+87.5 %)

                   before     after     change     share
total            32.0 KiB  60.0 KiB  +28.0 KiB   +87.5 %
  text           16.0 KiB  16.0 KiB          =
  stack          12.0 KiB  40.0 KiB  +28.0 KiB  +233.3 %
    activations  12.0 KiB  40.0 KiB  +28.0 KiB  +233.3 %
  inputs          4.0 KiB   4.0 KiB          =

stack +28.0 KiB, most of it by net.py:5 (cat in wide: came): +32.0 KiB
fullest now at position 2 (cat, wide, net.py:5): 40.0 KiB; before, there, at position 1 (relu, two, net.py:4): 8.0 KiB
fullest before at position 2 (mm, three, net.py:5): 12.0 KiB

   change  buffers  why   made by  module  source    needed until
+32.0 KiB        1  came  cat      wide    net.py:5  net.py:6

of all buffers: came 1 (+32.0 KiB), dies earlier 1 (-8.0 KiB)
"""


def write(name: str, graph: Graph | str) -> Path:
    path = Path(f"{name}.ir.cbor")
    path.write_bytes(encode_graph(program(graph) if isinstance(graph, str) else graph))
    return path


def record(shell: Shell, name: str, graph: Graph | str, *arguments: object) -> Path:
    """A plan of the graph, recorded beside it: what is compared as it lies needs no process to plan a side."""
    assert shell.tmmu("plan", write(name, graph), "-o", f"{name}.plan.cbor", *arguments).code == 0
    return Path(f"{name}.plan.cbor")


def test_two_graphs_are_planned_and_compared(shell: Shell) -> None:
    done = shell.tmmu("diff", write("old", NET), write("new", WIDE))
    assert (done.code, done.err) == (0, "")
    assert done.out == TEXT


def test_plans_are_compared_as_they_lie(shell: Shell) -> None:
    old, new = record(shell, "old", NET, "--seed", 3), record(shell, "new", WIDE, "--preset", "train_full")
    before = shell.files()
    done = shell.tmmu("diff", old, new, "--json")
    assert (done.code, shell.files()) == (0, before)
    assert [done.record[side]["preset"] for side in ("before", "after")] == ["inference", "train_full"]
    assert "preset inference -> inference on cpu, preset train_full" in shell.tmmu("diff", old, new).out


def test_plan_under_another_token_needs_the_same(shell: Shell) -> None:
    before, after = record(shell, "one", NET, "--seed", 3), record(shell, "other", NET, "--seed", 4)
    assert "needs what it needed" in shell.tmmu("diff", before, after).out
    assert "the same plan" in shell.tmmu("diff", before, before).out


def test_model_beside_a_plan_is_planned_as_the_plan_was(shell: Shell) -> None:
    arenas = (
        "--arena",
        "activations=alignment:32KiB,layout:slots,page:4096,capacity:1MiB",
        "--arena",
        "gradients=alignment:64",
    )
    saving = replace(small(), target="cpu")
    plan = record(shell, "old", saving, "--mode", "forward", "--preset", "remat_enabled", *arenas)
    same = shell.tmmu("diff", plan, "old.ir.cbor", "--json").record
    assert [same["after"][key] for key in ("mode", "preset")] == ["forward", "remat_enabled"]
    assert not any(figure["change"] for figure in same["figures"])
    changed = shell.tmmu("diff", plan, "old.ir.cbor", "--mode", "inference", "--json").record
    assert [changed["after"][key] for key in ("mode", "preset")] == ["inference", "inference"]
    wider = shell.tmmu("diff", plan, "old.ir.cbor", "--arena", "activations=alignment:64KiB", "--json").record
    assert wider["figures"][3]["change"] > 0


@pytest.mark.parametrize(
    ("limit", "code"), [("87.6%", 3), ("233.3%", 3), ("233.4%", 0), ("27KiB", 3), ("28KiB", 0), ("1GiB", 0), ("0", 3)]
)
def test_growth_over_a_limit_exits_with_3(shell: Shell, limit: str, code: int) -> None:
    old, new = record(shell, "old", NET), record(shell, "new", WIDE)
    done = shell.tmmu("diff", old, new, "--fail-over", limit)
    assert done.code == code
    assert "net.py:5" in done.out
    assert done.err.startswith("tmmu: PEAK_OVER_LIMIT: new.plan.cbor needs more than old.plan.cbor: ") == bool(code)
    assert (", most of it by net.py:5 (" in done.err) == bool(code)
    back = shell.tmmu("diff", new, old, "--fail-over", "0%")
    assert (back.code, back.err) == (0, ""), "less is never too much"


def test_refusal_names_which_of_total_and_stack_grew(shell: Shell) -> None:
    old, new = record(shell, "old", NET), record(shell, "new", WIDE)
    both, single = (shell.tmmu("diff", old, new, "--fail-over", limit, "--json") for limit in ("10%", "100%"))
    assert (both.record["over"], single.record["over"]) == (["total", "stack"], ["stack"])
    assert single.record["error"]["code"] == "PEAK_OVER_LIMIT"
    assert single.record["error"]["fields"] == {"limit": "100%", "over": {"stack": 28672}}
    assert single.err.count("\n") == 1
    assert shell.tmmu("diff", old, new, "--json").record["error"] is None


def test_growth_from_0_exceeds_any_share(shell: Shell) -> None:
    nothing = "input x 4\nreturn x"
    done = shell.tmmu("diff", record(shell, "old", nothing), record(shell, "new", NET), "--fail-over", "999999%")
    assert done.code == 3
    assert done.record["over"] == ["stack"] if done.out.startswith("{") else "stack by 12288 bytes" in done.err


def test_growth_to_the_limit_is_allowed(shell: Shell) -> None:
    old = record(shell, "old", "input x 4\na 8 = one mm x\nreturn a")
    new = record(shell, "new", "input x 4\na 16 = one mm x\nreturn a")
    assert "total 12.0 KiB 20.0 KiB +8.0 KiB +66.7 %" in " ".join(shell.tmmu("diff", old, new).out.split())
    assert shell.tmmu("diff", old, new, "--fail-over", "100%").code == 0
    assert shell.tmmu("diff", old, new, "--fail-over", "99.9999%").code == 3


def test_line_of_the_old_model_is_marked(shell: Shell) -> None:
    done = shell.tmmu("diff", record(shell, "new", WIDE), record(shell, "old", NET))
    assert "stack -28.0 KiB, most of it by net.py:5 (as it was) (cat in wide: went): -32.0 KiB\n" in done.out
    assert "net.py:5 (as it was)  net.py:6\n" in done.out


def line(source: str, size: int) -> PeakCause:
    return PeakCause(source=source, gone=False, op="mm", why="came", bytes=size, buffers=1, modules=(), until="")


def test_largest_cause_is_of_the_line_with_most_net_bytes() -> None:
    """One line makes a buffer and drops a like one; the other makes a smaller one and drops none."""
    before = "input x 4\nw 16 = one mm x\na 8 = two mm w x\nb 4 = three mm a w\nreturn b"
    after = "input x 4\nw 16 = one mm x\na 8 = two mm w x\nextra 12 = two cat x\nb 4 = three mm a w extra\nreturn b"
    report = compare(plan_program(before), plan_program(after), names=("a", "b"))
    cause = largest_cause(report)
    assert cause is not None
    assert (cause[0].source, cause[1]) == ("net.py:4", 12 << 10)
    swapped = replace(report, lines=(line("y", 5), line("x", 9), line("x", -8)), peak=replace(report.peak, bytes=6))
    assert largest_cause(swapped) == (swapped.lines[0], 5)
    assert largest_cause(replace(swapped, peak=replace(report.peak, bytes=-6))) is None
    assert largest_cause(replace(swapped, lines=())) is None


def test_causes_are_grouped_by_line_largest_first() -> None:
    changes = [change("x", 9, "came"), change("x", -8, "dies earlier"), change("y", 5, "came"), change("y", 1, "grew")]
    report = compare(plan_program(NET), plan_program(WIDE), names=("a", "b"))
    lines = _causes(replace(report.peak, bytes=7, changes=tuple(changes)))
    assert [(cause.source, cause.bytes) for cause in lines] == [("y", 5), ("y", 1), ("x", 9), ("x", -8)]


def change(source: str, size: int, why: str) -> Change:
    origin = Origin(
        id=1, bytes=1, arena="activations", role="activation", name="", op="mm", module="", source=source, until=""
    )
    return Change(why=why, bytes=size, before=None, after=origin)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1%", Limit(text="1%", bytes=None, ppm=10_000)),
        ("0.25 %", Limit(text="0.25 %", bytes=None, ppm=2_500)),
        ("12.3456%", Limit(text="12.3456%", bytes=None, ppm=123_456)),
        ("64MiB", Limit(text="64MiB", bytes=64 << 20, ppm=0)),
        ("0", Limit(text="0", bytes=0, ppm=0)),
    ],
)
def test_limit_is_a_share_or_a_size(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit


def test_json_adds_up(shell: Shell) -> None:
    report = shell.tmmu("diff", record(shell, "old", NET), record(shell, "new", WIDE), "--json").record
    assert list(report) == [
        "before",
        "after",
        "same",
        "figures",
        "peak",
        "lines",
        "kept",
        "fared",
        "over",
        "error",
        "eager",
    ]
    peak = report["peak"]
    assert peak["bytes"] == 28672 == sum(change["bytes"] for change in peak["changes"]) - peak["room"] + peak["packing"]
    assert report["lines"] == [
        {
            "source": "net.py:5",
            "gone": False,
            "op": "cat",
            "why": "came",
            "bytes": 32768,
            "buffers": 1,
            "modules": ["wide"],
            "until": "net.py:6",
        }
    ]
    assert peak["changes"][0]["before"] is None
    assert peak["changes"][0]["after"]["arena"] == "activations"


def test_markdown_has_tables_and_nothing_that_a_name_could_open(shell: Shell) -> None:
    graph = program(WIDE)
    evil = ("a", "b|c", "<img src=x>`@octo_cat`", "d")
    notes = replace(graph.notes, ops=replace(graph.notes.ops, module=evil, source=("x.py:1", "#12", "_y_.py:3", "z")))
    old, new = record(shell, "old", NET), record(shell, "new", replace(graph, notes=notes))
    done = shell.tmmu("diff", old, new, "--markdown")
    lines = done.out.splitlines()
    assert lines[0] == "### tmmu: total +28.0 KiB (+87.5 %)"
    assert "|  | before | after | change | share |" in lines
    assert "| total | 32.0 KiB | 60.0 KiB | +28.0 KiB | +87.5 % |" in lines
    row = next(line for line in lines if line.startswith("| +32.0 KiB"))
    assert row == ("| +32.0 KiB | 1 | came | cat | \\<img `src=x>'@octo_cat'` | \\_y\\_.py:3 | z |")
    assert all(line.count("|") - line.count("\\|") in (0, 6, 8) for line in lines)


def test_markdown_characters_are_escaped() -> None:
    assert _escape("a|b*c_d`e`<f>g") == "a\\|b\\*c\\_d\\`e\\`\\<f\\>g"
    assert _escape("\x1b[0m") == "\\\\x1b\\[0m"
    assert all(_escape(character) == f"\\{character}" for character in "\\`*_{}[]<>()|~!&$")


@pytest.mark.parametrize(
    "name",
    [
        "@octocat",
        "a.b@c.org",
        "#12",
        "o/r#12",
        "GH-12",
        "gh-12",
        "http://a.org",
        "HTTPS://a.org",
        "(www.a.org)",
        "0a1b2c3",
    ],
)
def test_text_that_github_would_link_is_code(name: str) -> None:
    """GitHub links words after Markdown is rendered, where an escape is gone."""
    assert _escape(f"in {name} and_more") == f"in `{name}` and\\_more"
    assert _escape(f"{name}`|`") == f"`{name}'\\|'`"


def test_weights_that_changed_are_listed(shell: Shell) -> None:
    old, new = record(shell, "old", NET), record(shell, "new", NET.replace("weight 16", "weight 48"))
    done = shell.tmmu("diff", old, new)
    assert "kept all the time:\n\n   change  why   role       name\n+32.0 KiB  grew  parameter  weight\n" in done.out


def test_unlisted_causes_are_counted(shell: Shell) -> None:
    """Twelve new weights, and twelve new lines whose buffers are live at the peak."""
    weights = "".join(f"parameter w{n} {n + 1}\n" for n in range(12))
    arms = "".join(f"arm{n} {n + 1} = arm.{n} op{n} x\n" for n in range(12))
    new = f"input x 4\n{weights}{arms}all 1 = . join {' '.join(f'arm{n}' for n in range(12))}\nreturn all"
    old, after = record(shell, "old", "input x 4\nreturn x"), record(shell, "new", new)
    text, page = shell.tmmu("diff", old, after).out, shell.tmmu("diff", old, after, "--markdown").out
    assert "kept all the time, the largest 10 of 12:\n" in text
    assert "\n +4.0 KiB        3  3 more\n" in text
    assert "| +4.0 KiB | 3 | 3 more |  |  |  |  |\n" in page
    assert "| +12.0 KiB | came | parameter | w11 |\n" in page
    assert text.count(" came  parameter ") == page.count("| came | parameter |") == 10


def test_packing_and_buffers_that_moved_into_the_peak_are_reported(shell: Shell) -> None:
    text = "input x 4\na 16 = one mm x\nb 4 = two mm a\nc 4 = three mm b\nd 16 = four mm c\nreturn d"
    plan = record(shell, "old", text)
    assert (
        "\npacking loses +12.0 KiB\n"
        in shell.tmmu("diff", plan, "old.ir.cbor", "--arena", "activations=layout:slots").out
    )
    small = "input x 4\na 8 = one mm x\nb 8 = two mm a\nc 4 = three mm b\nreturn c"
    new = small.replace("return c", "e 64 = huge mm c\nf 4 = last mm e\nreturn f")
    report = shell.tmmu("diff", record(shell, "small", small), record(shell, "more", new)).out
    assert "\n1 buffers of 4.0 KiB moved into the peak as they were\n" in report


def test_signed_bytes_have_a_sign() -> None:
    assert [signed_text(n) for n in (0, 1, -1, 2048, -(3 << 20))] == ["=", "+1 B", "-1 B", "+2.0 KiB", "-3.0 MiB"]


def test_diff_options_that_make_no_sense_are_refused_before_planning(shell: Shell) -> None:
    old = write("old", NET)
    for arguments, message in (
        ((old, "new.txt"), "no such kind of model: 'new.txt'"),
        ((old, old, "--fail-over", "much"), "--fail-over: 'much' is not a size"),
        ((old, old, "--fail-over", "-1%"), "--fail-over"),
        ((old, old, "--set", "a=1"), "--set: means nothing for these two"),
        ((old, old, "--device", "cpu"), "--device: means nothing for these two"),
        (("a.plan.cbor", "b.plan.cbor", "--no-cache", "--mode", "forward"), "--mode: means nothing for these two"),
        ((old, "git:HEAD"), "'git:HEAD' names no commit and model"),
        ((old, "git:HEAD:/etc/model.py"), "names no commit and model"),
        ((old,), "Missing argument 'B'"),
    ):
        done = shell.tmmu("diff", *arguments)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
        assert message in done.err, done.err
    assert shell.tmmu("diff", old, old, "--json", "--markdown").record["what"].startswith("--json and --markdown both")


def test_side_that_cannot_be_planned_is_named_in_one_line(shell: Shell) -> None:
    old = write("old", NET)
    Path("broken.py").write_text("print('hello from the model')\nmodel = 1 +\n")
    plan = record(shell, "alone", NET)
    Path("alone.ir.cbor").unlink()
    Path("cut.plan.cbor").write_bytes(b"\xa0")
    Path("cut.ir.cbor").write_bytes(old.read_bytes())
    record(shell, "swapped", NET)
    write("swapped", WIDE)
    for arguments, code, message in (
        ((old, "missing.ir.cbor"), 2, "missing.ir.cbor: cannot read missing.ir.cbor"),
        ((old, write("bad", leaving_its_buffer())), 2, "INVALID_IR_SHAPES: bad.ir.cbor: "),
        ((old, "missing.plan.cbor"), 2, "missing.plan.cbor: there is no such file"),
        ((old, plan), 2, "alone.plan.cbor: its graph alone.ir.cbor is not beside it"),
        ((old, "cut.plan.cbor"), 3, "PLAN_CORRUPT: cut.plan.cbor: "),
        ((old, "swapped.plan.cbor"), 3, "PLAN_MISMATCH: swapped.plan.cbor on swapped.ir.cbor: "),
        ((old, "broken.py"), 2, "CAPTURE_FAILED: broken.py: "),
        ((old, old, "--arena", "activations=capacity:1KiB"), 3, "ARENA_TOO_SMALL: old.ir.cbor: "),
    ):
        done = shell.tmmu("diff", *arguments)
        assert (done.code, done.out) == (code, ""), done
        assert done.err.count("\n") == 1
        assert message in done.err, done.err


def test_diff_is_the_same_in_every_process_and_needs_no_torch_for_graphs(shell: Shell) -> None:
    old, new = write("old", NET), write("new", WIDE.replace("wide", "broad") + "\n")
    Path("none").mkdir()
    Path("none/torch.py").write_text("raise ImportError('there is none')\n")
    program = "from tmmu.cli.main import main; main()"
    command = [sys.executable, "-c", program, "diff", str(old), str(new), "--json"]
    outputs = [
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": "none"}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "77")
    ]
    assert outputs[0] == outputs[1]


def test_killed_child_is_an_internal_error(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PROGRAM", "import os; os.kill(os.getpid(), 9)")
    done = shell.tmmu("diff", write("old", NET), write("new", WIDE))
    assert (done.code, done.out) == (70, "")
    assert done.err.startswith("tmmu: INTERNAL: old.ir.cbor: planning ended with -9 and said nothing")


@pytest.mark.parametrize("more", [(), ("--no-cache",)])
def test_diff_with_no_cache_neither_looks_nor_stores(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TMMU_CACHE_DIR", str(shell.folder / "kept"))
    assert shell.tmmu("diff", write("old", NET), write("new", WIDE), *more).code == 0
    assert len(list(shell.folder.glob("kept/plans/*.entry"))) == (0 if more else 2)


def test_two_versions_of_one_package_do_not_mix(shell: Shell) -> None:
    """Both models import ``layers`` beside them: in one process the second would get that of the first."""
    for folder, width in (("one", 64), ("two", 96)):
        Path(folder).mkdir()
        Path(folder, "layers.py").write_text(f"WIDTH = {width}\n")
        Path(folder, "net.py").write_text(
            "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport torch\nimport layers\n"
            "model = torch.nn.Linear(layers.WIDTH, layers.WIDTH, bias=False)\n"
            "def inputs():\n    return (torch.zeros(8, layers.WIDTH),)\n"
        )
    done = shell.tmmu("diff", "one/net.py", "two/net.py", "--json")
    assert done.code == 0, done.err
    text = done.record["figures"][1]
    assert (text["before"], text["after"]) == (64 * 64 * 4, 96 * 96 * 4)
    assert json.loads(done.out)["kept"][0]["after"]["name"] == "weight"


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_plan_with_an_optimizer_is_compared_with_one(shell: Shell, optimizer: str) -> None:
    Path("net.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(64, 64)\n"
        "inputs = (torch.zeros(2, 64),)\n"
        "loss = lambda model, x: model(x).sum()\n"
    )
    step = ("--mode", "backward", "--optimizer", optimizer, "--device", "cpu")
    assert shell.tmmu("plan", "net.py", *step, "-o", "train.plan.cbor").code == 0
    for pair in (("train.plan.cbor", "net.py"), ("net.py", "train.plan.cbor")):
        same = shell.tmmu("diff", *pair, "--json")
        assert same.code == 0, same.err
        assert not any(figure["change"] for figure in same.record["figures"])
    less = shell.tmmu("diff", "train.plan.cbor", "net.py", "--mode", "inference", "--json").record
    assert less["figures"][0]["change"] < 0
