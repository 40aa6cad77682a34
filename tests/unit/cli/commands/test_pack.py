"""``tmmu pack``: output, files and refusals."""

import os
import tracemalloc
from pathlib import Path

import pytest

from tests.problems import random_problem
from tests.unit.cli.graphs import Shell
from tmmu.cli.commands import pack
from tmmu.planner.intervals import read_intervals

TINY = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


NO_SEARCH = ("--nodes", "0")


def rows(path: str) -> list[list[str]]:
    return [line.split(",") for line in Path(path).read_text().splitlines()]


def test_pack_prints_and_writes(shell: Shell) -> None:
    Path("tiny.csv").write_text(TINY)
    done = shell.tmmu("pack", "tiny.csv", "-o", "out.csv")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "items  peak  bound     ratio  proven  method    nodes",
        "    5    12     12  1.000000  yes     best_fit      0",
        "wrote out.csv",
    ]
    out = rows("out.csv")
    assert [row[:4] for row in out] == [line.split(",") for line in TINY.splitlines()]
    assert out[0][4] == "offset"
    assert max(int(row[3]) + int(row[4]) for row in out[1:]) == 12
    assert shell.files() == ("out.csv", "tiny.csv")


def test_pack_without_output_writes_nothing(shell: Shell) -> None:
    Path("tiny.csv").write_text(TINY)
    assert shell.tmmu("pack", "tiny.csv").code == 0
    assert shell.files() == ("tiny.csv",)


def test_json_has_every_number(shell: Shell) -> None:
    Path("tiny.csv").write_text(TINY)
    record = shell.tmmu("pack", "tiny.csv", "--json", "--capacity", "1KiB", "-o", "out.csv").record
    numbers = {"items": 5, "peak": 12, "live": 12, "bound": 12, "ratio_ppm": 10**6, "nodes": 0, "capacity": 1024}
    assert record == numbers | {"proven": True, "method": "best_fit", "output": "out.csv"}


def test_columns_in_any_order_and_more_of_them_are_kept(shell: Shell) -> None:
    Path("in.csv").write_text('size,Note,id,upper,offset,lower\n4,"a, b",x,9,,0\n4,,"y\nz",9,0,0\n')
    assert shell.tmmu("pack", "in.csv", "-o", "out.csv").code == 0
    expected = 'size,Note,id,upper,offset,lower\n4,"a, b",x,9,4,0\n4,,"y\nz",9,0,0\n'
    assert Path("out.csv").read_text() == expected


def test_output_can_be_packed_again(shell: Shell) -> None:
    Path("tiny.csv").write_text(TINY)
    shell.tmmu("pack", "tiny.csv", "-o", "out.csv")
    again = shell.tmmu("pack", "out.csv", "-o", "again.csv")
    assert (again.code, Path("again.csv").read_text()) == (0, Path("out.csv").read_text())


def test_order_of_rows_does_not_matter(shell: Shell) -> None:
    lines = [f"i{n},{n % 5},{n % 5 + 1 + n % 2},{1 + n % 5}" for n in range(30)]  # three alike of each
    for name, order in (("a", lines), ("b", lines[::-1]), ("c", lines[13:] + lines[:13])):
        Path(f"{name}.csv").write_text("\n".join(["id,lower,upper,size", *order]) + "\n")
        assert shell.tmmu("pack", f"{name}.csv", "-o", f"{name}.out.csv").code == 0
    assert sorted(rows("a.out.csv")) == sorted(rows("b.out.csv")) == sorted(rows("c.out.csv"))


def test_alignment_is_that_of_rows_that_name_none(shell: Shell) -> None:
    Path("in.csv").write_text("id,lower,upper,size,alignment\na,0,9,3,\nb,0,9,3,1\nc,0,9,3,16\n")
    assert shell.tmmu("pack", "in.csv", "--alignment", "8", "-o", "out.csv").code == 0
    offset = {row[0]: int(row[5]) for row in rows("out.csv")[1:]}
    assert offset["a"] % 8 == offset["c"] % 16 == 0
    assert max(offset.values()) + 3 == 11


def test_capacity_below_the_bound_is_impossible(shell: Shell) -> None:
    Path("tiny.csv").write_text(TINY)
    done = shell.tmmu("pack", "tiny.csv", "--capacity", "11", "-o", "out.csv")
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "tmmu: ARENA_TOO_SMALL: no packing fits in 11 bytes: every one needs at least 12 "
        "(give it 12 bytes, the least found)\n"
    )
    assert shell.files() == ("tiny.csv",)
    record = shell.tmmu("pack", "tiny.csv", "--capacity", "11", "--json").record
    assert record["fields"]["impossible"] is True


def test_capacity_that_is_not_reached_is_not_called_impossible(shell: Shell) -> None:
    hard = random_problem(60, 15, seed=2)
    lines = [f"{n},{b},{d},{s}" for n, (b, d, s) in enumerate(zip(hard.birth, hard.death, hard.size, strict=True))]
    Path("hard.csv").write_text("\n".join(["id,lower,upper,size", *lines]) + "\n")
    least = shell.tmmu("pack", "hard.csv", "--nodes", "0", "--json").record
    assert least["peak"] > least["bound"]
    done = shell.tmmu("pack", "hard.csv", "--nodes", "0", "--capacity", least["peak"] - 1)
    assert done.code == 3
    assert "was found with 0 nodes, nor shown to be impossible" in done.err
    assert "or more --nodes" in done.err


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "INVALID_CONFIG", "in.csv: the file is empty"),
        ("\n\n", "INVALID_CONFIG", "in.csv: the file is empty"),
        ("id,lower,upper\n", "INVALID_CONFIG", "in.csv:1: no column size in the header"),
        ("a,0,3,4\n", "INVALID_CONFIG", "in.csv:1: no column id, lower, upper, size in the header"),
        ("id,lower,upper,size,size\n", "INVALID_CONFIG", "in.csv:1: column size is there twice"),
        (TINY + "b6,0,x,4\n", "INVALID_CONFIG", "in.csv:7: upper 'x' is not a number"),
        (TINY + "b6,0,3,-4\n", "INVALID_CONFIG", "in.csv:7: size '-4' is not a number"),
        (TINY + "b6,0,3,4.0\n", "INVALID_CONFIG", "in.csv:7: size '4.0' is not a number"),
        (TINY + "b6,0,3,1_0\n", "INVALID_CONFIG", "in.csv:7: size '1_0' is not a number"),
        (TINY + "b6,0,3,\u0661\n", "INVALID_CONFIG", "in.csv:7: size '\u0661' is not a number"),
        (TINY + "b6,0,3,\n", "INVALID_CONFIG", "in.csv:7: size '' is not a number"),
        (TINY + "b6,4,3,4\n", "INVALID_CONFIG", "in.csv:7: upper 3 is below lower 4"),
        (TINY + "b2,0,3,4\n", "INVALID_CONFIG", "in.csv:7: id 'b2' is on line 3 as well"),
        (TINY + "b6,0,3\n", "INVALID_CONFIG", "in.csv:7: 3 cells under 4 columns"),
        (TINY + "b6,0,3,4,5\n", "INVALID_CONFIG", "in.csv:7: 5 cells under 4 columns"),
        (TINY + 'b6,0,3,"4"5\n', "INVALID_CONFIG", "in.csv:7: not a line of CSV"),
        (TINY + 'b6,0,3,"4\n', "INVALID_CONFIG", "in.csv:7: not a line of CSV"),
        (TINY + "b\0,0,3,4\n", "INVALID_CONFIG", "in.csv:7: a zero byte"),
        (TINY + "b" * 70_000 + "\n", "INVALID_CONFIG", "in.csv:7: more than 65536 characters"),
        (TINY + f"b6,0,3,{2**64}\n", "ALLOCATION_OVERFLOW", "in.csv:7: size does not fit in 64 bits"),
        (TINY + f"b6,0,{'9' * 5000},4\n", "ALLOCATION_OVERFLOW", "in.csv:7: upper does not fit in 64 bits"),
        (f"id,lower,upper,size\na,0,1,{2**63}\nb,0,1,{2**63}\n", "ALLOCATION_OVERFLOW", "the packing found ends at"),
        (
            "id,lower,upper,size,alignment\na,0,1,4,3\n",
            "ALIGNMENT_VIOLATION",
            "in.csv:2: alignment 3 is no power of two",
        ),
        (
            "id,lower,upper,size,alignment\na,0,1,4,0\n",
            "ALIGNMENT_VIOLATION",
            "in.csv:2: alignment 0 is no power of two",
        ),
        (
            "id,lower,upper,size,alignment,offset\na,0,1,4,4,6\n",
            "ALIGNMENT_VIOLATION",
            "in.csv:2: offset 6 is no multiple of 4",
        ),
        (
            f"id,lower,upper,size,offset\na,0,1,4,{2**64 - 1}\n",
            "ALLOCATION_OVERFLOW",
            "in.csv:2: offset and size pass 64 bits",
        ),
        (
            "id,lower,upper,size,offset\nz,0,2,4,0\nfree,0,9,1,\na,1,3,4,3\n",
            "INVALID_CONFIG",
            "in.csv:4: 'a' and 'z' of line 2 are given bytes in common while both live",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(shell: Shell, text: str, code: str, message: str) -> None:
    Path("in.csv").write_text(text)
    done = shell.tmmu("pack", "in.csv", "-o", "out.csv")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"tmmu: {code}: {message}")
    assert done.err.count("\n") == 1
    assert done.err.rstrip().endswith(")")
    assert shell.files() == ("in.csv",)


def test_packing_without_numba_says_so_first(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "find_spec", lambda _: None)
    Path("tiny.csv").write_text(TINY)
    for options, line in (
        ((), "numba is not installed: a search takes up to a hundred times as long"),
        (NO_SEARCH, ""),
    ):
        done = shell.tmmu("pack", "tiny.csv", *options)
        assert (done.code, done.err.startswith(line), bool(done.err)) == (0, True, bool(line))


def test_file_above_512_mebibytes_is_refused_unread(shell: Shell) -> None:
    with Path("in.csv").open("wb") as file:
        file.truncate((1 << 29) + 1)
    tracemalloc.start()
    done = shell.tmmu("pack", "in.csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (done.code, done.err.split(":")[1]) == (3, " PLAN_CORRUPT")
    assert peak < 1 << 24


@pytest.mark.slow
@pytest.mark.parametrize("row", ["{0},1,2,3", "{0:x},300,301,300", "{0},{0},{0}9,{0}", "{0},1,2,3,,,,,,,,"])
def test_reading_takes_at_most_16_times_the_bytes_and_64_mebibytes(shell: Shell, row: str) -> None:
    header = "id,lower,upper,size" + "".join(f",c{n}" for n in range(row.count(",") - 3))
    path = shell.folder / "in.csv"
    path.write_text("\n".join((header, *(row.format(number) for number in range(200_000)))))
    tracemalloc.start()
    intervals = read_intervals(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(intervals.row_of) == 200_000
    assert peak <= 16 * path.stat().st_size + (1 << 23)


def test_malformed_files_are_refused(shell: Shell) -> None:
    Path("folder.csv").mkdir()
    Path("binary.csv").write_bytes(bytes(range(128, 256)) * 9)
    Path("in.csv").write_text(TINY)
    for arguments, message in (
        (("missing.csv",), "missing.csv"),
        (("folder.csv",), "it is a folder"),
        (("binary.csv",), "not a text in UTF-8"),
        (("in.csv", "-o", "in.csv"), "is the input itself"),
        (("in.csv", "-o", "folder.csv"), "is a folder"),
        (("in.csv", "-o", "none/out.csv"), "no folder"),
        (("in.csv", "--capacity", "0"), "--capacity: 0 holds nothing"),
        (("in.csv", "--capacity", "much"), "--capacity"),
        (("in.csv", "--nodes", "-1"), "--nodes: -1 is not in"),
    ):
        done = shell.tmmu("pack", *arguments)
        assert done.code == 2, arguments
        assert message in done.err
        assert done.err.count("\n") == 1
    assert shell.tmmu("pack", "in.csv", "--alignment", "12").err.startswith(
        "tmmu: ALIGNMENT_VIOLATION: --alignment: 12"
    )
    assert shell.files() == ("binary.csv", "folder.csv", "in.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser reads everything")
def test_unreadable_file_is_refused(shell: Shell) -> None:
    Path("in.csv").write_text(TINY)
    Path("in.csv").chmod(0)
    assert shell.tmmu("pack", "in.csv").code == 2


@pytest.mark.parametrize(
    "text",
    [
        "id,lower,upper,size\n",
        "id,lower,upper,size\na,0,0,5\nb,3,9,0\n",
        "id,lower,upper,size,offset\na,0,0,5,7\n",
        "\ufeffid,lower,upper,size\r\na,0,0,5\r\n",
        " ID , Lower ,upper,size\na, 0 ,0,5\n",
    ],
)
def test_empty_file_has_peak_0(shell: Shell, text: str) -> None:
    Path("in.csv").write_text(text, newline="")
    done = shell.tmmu("pack", "in.csv", "-o", "out.csv", "--json")
    assert (done.code, done.record["peak"], done.record["proven"], done.record["ratio_ppm"]) == (0, 0, True, 10**6)
    assert len(rows("out.csv")) == len(text.splitlines())


def test_numbers_of_64_bits(shell: Shell) -> None:
    top = 2**64 - 1
    Path("in.csv").write_text(f"id,lower,upper,size\na,{top - 1},{top},{top}\nb,0,1,{top}\n")
    done = shell.tmmu("pack", "in.csv", "--json")
    assert (done.code, done.record["peak"], done.record["proven"]) == (0, top, True)


@pytest.mark.parametrize("words", [("pack",), ("show",), ("verify",), ("plan",)])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_and_not_waited_for(shell: Shell, words: tuple[str, ...], kind: str) -> None:
    name = {"plan": "x.ir.cbor", "pack": "x.csv"}.get(words[0], "x.plan.cbor")
    make = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir}
    make[kind](Path(name))
    done = shell.tmmu(*words, name)
    assert done.code == 2
    assert "folder" in done.err if kind == "folder" else "ordinary file" in done.err
