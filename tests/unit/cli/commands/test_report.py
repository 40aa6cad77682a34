import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell, nothing_to_do, small
from tests.unit.report.pages import Page
from tmmu.codec.load import load_plan


def page(path: str = "small.html") -> Page:
    return Page(Path(path).read_text())


def test_page_lies_beside_the_plan_and_holds_its_buffers(shell: Shell) -> None:
    plan = shell.plan()
    done = shell.tmmu("report", plan)
    assert (done.code, done.err) == (0, "")
    assert done.out == "wrote small.html: 7 buffers\n"
    (shown,) = page().contents["plans"]
    base = load_plan(plan)
    assert shown["buffers"]["id"] == list(base.buffers.id)
    assert shown["figures"]["digest"] == base.digest.hex()
    assert {"small.py:7", "first.weight"} <= set(shown["texts"])


def test_output_is_a_file_or_a_folder(shell: Shell) -> None:
    plan = shell.plan()
    Path("out").mkdir()
    assert shell.tmmu("report", plan, "-o", "out").out.startswith("wrote out/small.html: ")
    assert shell.tmmu("report", plan, "-o", "page.html").out.startswith("wrote page.html: ")
    assert Path("out/small.html").read_bytes() == Path("page.html").read_bytes()


def test_json_says_the_file(shell: Shell) -> None:
    record = shell.tmmu("report", shell.plan(), "--json").record
    assert record == {"page": "small.html", "bytes": Path("small.html").stat().st_size, "buffers": [7]}


def test_plan_alone_has_a_page_without_names(shell: Shell) -> None:
    plan = shell.plan()
    Path("small.ir.cbor").unlink()
    assert shell.tmmu("report", plan).code == 0
    assert "small.py:7" not in page().contents["plans"][0]["texts"]
    assert any("The graph was not there" in text for text in page().texts)


def test_two_plans_are_in_one_page(shell: Shell) -> None:
    plan = shell.plan()
    shell.tmmu("plan", "given.ir.cbor", "-o", "other.plan.cbor", "--preset", "train_full")
    assert shell.tmmu("report", plan, "--against", "other.plan.cbor").out.startswith(
        "wrote small.html: 7 and 7 buffers"
    )
    assert [shown["title"] for shown in page().contents["plans"]] == ["small", "other"]


def test_three_plans_are_in_one_page_without_a_difference(shell: Shell) -> None:
    plan = shell.plan()
    for name in ("second", "third"):
        shell.tmmu("plan", "given.ir.cbor", "-o", f"{name}.plan.cbor", "--ir", f"{name}.graph.cbor")
    others = ("--against", "second.plan.cbor", "--against", "third.plan.cbor")
    graphs = ("--against-ir", "second.graph.cbor", "--against-ir", "third.graph.cbor")
    assert shell.tmmu("report", plan, *others, *graphs).out.startswith("wrote small.html: 7, 7 and 7 buffers")
    assert [shown["title"] for shown in page().contents["plans"]] == ["small", "second", "third"]
    text = Path("small.html").read_text(encoding="utf-8")
    assert 'data-plans="many"' in text
    assert "difference" not in text.partition("<script")[0]
    assert all(shown["positions"]["op"] for shown in page().contents["plans"]), "each has its graph"


def test_plan_writes_the_page_too(shell: Shell) -> None:
    ir = shell.graph(small(), "given")
    done = shell.tmmu("plan", ir, "-o", "small.plan.cbor", "--report", "look.html")
    assert done.out.splitlines()[-1].startswith("wrote small.plan.cbor and small.ir.cbor and look.html")
    shell.tmmu("report", "small.plan.cbor")
    assert Path("look.html").read_bytes() == Path("small.html").read_bytes()
    assert (
        shell.tmmu("plan", ir, "-o", "a.plan.cbor", "--report", "look.html", "--json").record["report"] == "look.html"
    )


def test_model_without_buffers_has_a_page(shell: Shell) -> None:
    ir = shell.graph(nothing_to_do(), "less")
    assert shell.tmmu("plan", ir, "-o", "less.plan.cbor", "--report", "less.html").code == 0
    assert page("less.html").contents["plans"][0]["slabs"] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere.plan.cbor",), "cannot read nowhere.plan.cbor"),
        (("small.plan.cbor", "-o", "small.plan.cbor"), "is the input itself"),
        (("small.plan.cbor", "-o", "small.ir.cbor"), "is the input itself"),
        (("small.plan.cbor", "-o", "none/page.html"), "no folder none"),
        (("small.plan.cbor", "--against-ir", "small.ir.cbor"), "--against-ir"),
        (("small.plan.cbor", *("--against", "small.plan.cbor") * 2, "--against-ir", "small.ir.cbor"), "2 plans"),
        (("small.plan.cbor", "--against", "small.ir.cbor"), "small.ir.cbor"),
        (("small.ir.cbor",), "small.ir.cbor"),
    ],
)
def test_bad_input_is_one_line_and_no_page(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    shell.plan()
    before = shell.files()
    done = shell.tmmu("report", *arguments)
    assert done.code in (2, 3)
    assert done.out == ""
    assert says in done.err
    assert done.err.count("\n") == 1
    assert shell.files() == before


def test_graph_of_another_plan_is_a_mismatch(shell: Shell) -> None:
    plan = shell.plan()
    shell.graph(replace(small(), target="cuda"), "other")
    done = shell.tmmu("report", plan, "--ir", "other.ir.cbor")
    assert (done.code, "PLAN_MISMATCH" in done.err, Path("small.html").exists()) == (3, True, False)


def test_report_of_plan_may_not_be_the_plan(shell: Shell) -> None:
    ir = shell.graph(small(), "given")
    done = shell.tmmu("plan", ir, "-o", "a.plan.cbor", "--report", "a.plan.cbor")
    assert (done.code, "--report" in done.err) == (2, True)


def test_report_imports_no_torch(shell: Shell) -> None:
    program = "import sys; from tmmu.cli.app import run; run(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, "report", str(shell.plan())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
