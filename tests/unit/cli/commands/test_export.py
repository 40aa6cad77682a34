"""``tmmu export``: which file it writes, what it refuses, and that equal plans give equal bytes."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.graphs import Shell, small
from tests.unit.ir.samples import described_graph
from tmmu.export.formats import FORMATS

EVERY = (("perfetto", ".pftrace"), ("memory_viz", ".pickle"), ("csv", ".csv"), ("json", ".jsonl"))


def planned(shell: Shell) -> Path:
    """A plan of a graph that says what eager holds, its graph beside it."""
    assert shell.tmmu("plan", shell.graph(described_graph(), "net"), "-o", "net.plan.cbor").code == 0
    return Path("net.plan.cbor")


@pytest.mark.parametrize(("to", "suffix"), EVERY)
def test_file_lies_beside_the_plan(shell: Shell, to: str, suffix: str) -> None:
    planned(shell)
    Path("folder").mkdir()
    for name in ("net.plan.cbor", "net.ir.cbor"):
        Path(name).rename(Path("folder") / name)
    done = shell.tmmu("export", "folder/net.plan.cbor", "--to", to)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"wrote folder/net{suffix}, for ")
    assert shell.files() == ("folder",)
    assert (Path("folder") / f"net{suffix}").stat().st_size > 100


def test_every_format_of_the_table_is_a_choice() -> None:
    assert [to for to, _ in EVERY] == list(FORMATS)


def test_output_names_a_file_or_a_folder(shell: Shell) -> None:
    plan = planned(shell)
    Path("folder").mkdir()
    assert shell.tmmu("export", plan, "--to", "csv", "-o", "table.txt").code == 0
    assert shell.tmmu("export", plan, "--to", "csv", "-o", "folder").code == 0
    assert Path("folder/net.csv").read_bytes() == Path("table.txt").read_bytes()


def test_output_to_a_stream_is_the_file_alone(shell: Shell) -> None:
    plan = planned(shell)
    shell.tmmu("export", plan, "--to", "json")
    program = [Path(sys.executable).parent / "tmmu", "export", plan, "--to", "json", "-o", "/dev/stdout"]
    done = subprocess.run(program, capture_output=True, check=True)
    assert done.stdout == Path("net.jsonl").read_bytes()


def test_eager_run_has_a_name_of_its_own(shell: Shell) -> None:
    plan = planned(shell)
    record = shell.tmmu("export", plan, "--to", "memory_viz", "--run", "eager", "--json").record
    size = Path("net.eager.pickle").stat().st_size
    assert record == {"to": "memory_viz", "run": "eager", "output": "net.eager.pickle", "bytes": size}
    shell.tmmu("export", plan, "--to", "memory_viz", "--run", "planned")
    assert Path("net.pickle").read_bytes() != Path("net.eager.pickle").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "perfetto", "--run", "eager"), "--run eager: perfetto shows both runs"),
        (("--to", "csv", "-o", "net.plan.cbor"), "net.plan.cbor is the input itself"),
        (("--to", "csv", "-o", "net.ir.cbor"), "net.ir.cbor is the input itself"),
        (("--to", "csv", "-o", "alias.cbor"), "alias.cbor is the input itself"),
        (("--to", "csv", "-o", "missing/net.csv"), "no folder missing"),
        (("--to", "csv", "-o", ""), "no file is named"),
        (("--to", "svg"), "'svg' is not one of"),
        ((), "--to"),
        (("--to", "csv", "--ir", "missing.ir.cbor"), "missing.ir.cbor"),
    ],
)
def test_bad_input_is_one_line(shell: Shell, arguments: tuple[str, ...], said: str) -> None:
    plan = planned(shell)
    Path("alias.cbor").symlink_to(plan)
    before = {path: path.read_bytes() for path in map(Path, shell.files())}
    done = shell.tmmu("export", plan, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("tmmu: INVALID_CONFIG: ")
    assert done.err.count("\n") == 1
    assert said in done.err
    assert {path: path.read_bytes() for path in map(Path, shell.files())} == before


def test_eager_run_of_a_graph_without_it_is_refused(shell: Shell) -> None:
    plan = shell.plan()
    for _ in range(2):
        done = shell.tmmu("export", plan, "--to", "memory_viz", "--run", "eager")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "keep the graph beside its plan" in done.err
        Path("small.ir.cbor").unlink(missing_ok=True)


def test_file_that_is_no_plan_is_refused(shell: Shell) -> None:
    Path("bad.plan.cbor").write_bytes(b"\x00" * 99)
    done = shell.tmmu("export", "bad.plan.cbor", "--to", "csv")
    assert (done.code, done.err.split(":")[1], shell.files()) == (3, " PLAN_CORRUPT", ("bad.plan.cbor",))


def test_graph_of_another_plan_is_a_mismatch(shell: Shell) -> None:
    plan = planned(shell)
    done = shell.tmmu("export", plan, "--to", "csv", "--ir", shell.graph(small(), "other"))
    assert (done.code, done.err.split(":")[1]) == (3, " PLAN_MISMATCH")


def test_plan_alone_is_exported_without_names(shell: Shell) -> None:
    plan = planned(shell)
    Path("net.ir.cbor").unlink()
    for to, _ in EVERY:
        assert shell.tmmu("export", plan, "--to", to).code == 0
    with Path("net.csv").open(newline="") as file:
        assert {row["role"] for row in csv.DictReader(file)} == {""}


def test_csv_is_packed_by_tmmu_pack(shell: Shell) -> None:
    plan = planned(shell)
    summary = shell.tmmu("show", plan, "--json").record
    shell.tmmu("export", plan, "--to", "csv")
    packed = shell.tmmu("pack", "net.csv", "--json").record
    assert packed["peak"] == summary["memory"]["text"] + summary["memory"]["data"] + summary["memory"]["stack"]


def test_equal_plans_give_equal_bytes_in_every_process(shell: Shell) -> None:
    plan = planned(shell)
    script = (
        "import sys; from tmmu.cli.app import run\n"
        "for to in ('perfetto', 'memory_viz', 'csv', 'json'):\n"
        "    run(['export', sys.argv[1], '--to', to, '-o', sys.argv[2]])\n"
        "run(['export', sys.argv[1], '--to', 'memory_viz', '--run', 'eager', '-o', sys.argv[2]])\n"
    )
    contents = []
    for seed in ("1", "2"):
        folder = Path(f"seed{seed}")
        folder.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script, plan, folder], env=environment, check=True, capture_output=True)
        contents.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 5


def test_json_lines_are_records(shell: Shell) -> None:
    plan = planned(shell)
    shell.tmmu("export", plan, "--to", "json")
    kinds = [json.loads(line)["record"] for line in Path("net.jsonl").read_text().splitlines()]
    assert kinds[0] == "plan"
    assert set(kinds) == {"plan", "arena", "buffer", "eager", "storage", "host_storage"}


def test_export_needs_no_torch(shell: Shell) -> None:
    script = (
        "import sys; from tmmu.cli.app import run\n"
        "codes = [run(['export', sys.argv[1], '--to', to]) for to in ('perfetto', 'memory_viz', 'csv', 'json')]\n"
        "codes.append(run(['show', sys.argv[1], '--plot']))\n"
        "sys.exit(any(codes) or 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, planned(shell)], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
