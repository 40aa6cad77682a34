"""A planner of which one line is changed does not pass: the golden files name the case and the buffer."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.golden.graphs import FOLDER

PACKAGE = Path(__file__).parents[2] / "tmmu"
CASES = ("chain", "in-place-chain", "siblings", "residual", "zero-size", "mixed-roles", "gpt2-block")


@dataclass(frozen=True)
class Mutation:
    """``old`` becomes ``new`` in each of ``files``; ``said`` is part of what is then reported of ``cases``.

    With a ``mark``, ``old`` is a regular expression, and only lines that end in ``# mutation: MARK`` change.
    """

    files: tuple[str, ...]
    old: str
    new: str
    said: str
    cases: tuple[str, ...] = CASES
    mark: str = ""

    def apply(self, text: str) -> str:
        """The source ``text`` with the mutation."""
        if not self.mark:
            return text.replace(self.old, self.new)
        lines = text.splitlines(keepends=True)
        end = f"  # mutation: {self.mark}\n"
        return "".join(re.sub(self.old, self.new, line, count=1) if line.endswith(end) else line for line in lines)


def marked(mark: str, file: str, old: str, new: str, said: str) -> Mutation:
    """A mutation of the marked line of one file of the planner."""
    return Mutation((f"planner/{file}.py",), old, new, said, mark=mark)


LIVENESS, REFERENCE = "planner/liveness.py", "planner/reference.py"
MUTATIONS = {
    "smaller first": marked(
        "slot order",
        "slots",
        r"-(\w+\[)",
        r"\1",
        r"siblings: train_full/inference: slots moved: buffer 1 \(part0.0\) is in slot 1 .*, was in slot 4",
    ),
    "higher id first": marked("slot order", "slots", r", (\w+)\)", r", -\1)", r"siblings.*slots moved: buffer 2"),
    "any free slot": marked("slot choice", "slots", r"heapq\.heappop\((\w+)\)", r"\1.pop()", r"slots.*buffer \d+"),
    "freed one step late": marked("slot release", "slots", "<=", "<", r"slots"),
    "another domain": Mutation(
        ("planner/addresses.py", REFERENCE),
        'b"tmmu_va"',
        'b"tmmu_vb"',
        r"chain: train_full/inference: addresses moved: buffer 1 \(weight0\) has address 0x\w+, was address 0x\w+",
    ),
    "big-endian slots": marked("slot bytes", "addresses", "little", "big", r"addresses.*buffer 3 \(weight1\)"),
    "one more bit": marked("address alignment", "addresses", r"~\(", "~(2 * ", r"addresses.*buffer"),
    "dead one step late": marked(
        "death after read",
        "liveness",
        r"\+ 1",
        "+ 2",
        r"chain.*spans.*buffer 2 \(product0\) is live in \[0, 3\), was live in \[0, 2\)",
    ),
    "mirrored one step early": marked("mirrored death", "liveness", " if ", " - 1 if ", r"spans.*buffer"),
    "outputs die": marked("output death", "liveness", r"\w+ if \w+ in \w+ else 0", "0", r"spans|slots"),
    "both forget recomputation": Mutation(
        (LIVENESS, REFERENCE),
        '"remat_enabled"',
        '"remat_disabled"',
        r"residual: remat_enabled/forward: spans moved: buffer 4 \(act0\)",
    ),
    "no bytes at the end": marked("sequential offsets", "layout", r"\[:-1\]", "[1:]", r"plan moved: buffer|the judge"),
    "another figure": Mutation(
        ("planner/metrics.py",), "(padded - exact)", "(padded - exact + 1)", r"plan moved|judge|disagree"
    ),
}


def streamed(file: str, old: str, new: str, said: str) -> Mutation:
    """A mutation of the ring's planner."""
    return Mutation((f"planner/ring/{file}",), old, new, said, cases=("weight-ring",))


MUTATIONS |= {
    "overlapping fit": streamed(
        "arcs.py",
        "low = max(low, end)",
        "low = end",
        r"forward: plan moved: the ring's block 12 \"head\" .* was block 12",
    ),
    "no order by time": streamed(
        "arcs.py", "yield tuple(i for _, i in interleaved)", "yield from ()", r"plan moved: the ring's block 1 "
    ),
    "fit from above": streamed(
        "arcs.py", "sorted((address[b], address[b]", "sorted((-address[b], address[b]", r"plan moved: the ring's"
    ),
    "gaps must be wider": streamed(
        "arcs.py", "- low >= size[block]", "- low > size[block]", r"backward: plan moved: the ring's block 2 \"h.0\""
    ),
    "a ring one step up": streamed(
        "assemble.py",
        "resident_bytes + address[block]",
        "resident_bytes + address[block] + 256",
        r"the ring's block 1 \"h.0\" 45568",
    ),
    "residents apart": streamed(
        "assemble.py", "end += size if resident else 0", "end += size", r"the judge refuses the plan: \[ring-blocks\]"
    ),
    "members last first": streamed(
        "layers.py", "in sorted(read_in):", "in sorted(read_in)[::-1]:", r"b4\+0 b3\+256, was .* b3\+0 b4\+20480"
    ),
    "what a gradient reads streams": streamed(
        "layers.py",
        "any(buffer in read_later for buffer in buffers)",
        "False",
        r"the judge .*\[ring-resident\] block 3",
    ),
    "waits oldest first": streamed(
        "copies.py", "-visits[wait[0]].last, -wait[0]", "visits[wait[0]].last, wait[0]", r"the judge .*\[ring-starts\]"
    ),
    "issued one visit late": streamed(
        "copies.py", "problem.visits), own)", "problem.visits) + 1, own)", r"the ring's copy 1 start 13-1 .* start 12-1"
    ),
    "fewest bytes before least time": streamed(
        "cyclic.py",
        "self.pass_time.ns, self.streamed.bytes_per_pass",
        "self.streamed.bytes_per_pass, self.pass_time.ns",
        r"block 1 .* resident .*, was block 1 .* streamed",
    ),
    "copies cost bytes alone": streamed("profile.py", "copy_ns: int = 10_000", "copy_ns: int = 0", r"the ring's"),
}


def mutated(folder: Path, mutation: Mutation) -> Path:
    """A folder that holds a copy of the package in which the mutation is made."""
    shutil.copytree(PACKAGE, folder / "tmmu")
    for name in mutation.files:
        path = folder / "tmmu" / name
        path.write_text(mutation.apply(path.read_text()))
    unchanged = [(PACKAGE / name).read_text() == (folder / "tmmu" / name).read_text() for name in mutation.files]
    assert mutation.old == mutation.new or not all(unchanged)
    return folder


def check(path: Path, folder: Path, cases: tuple[str, ...] = CASES) -> subprocess.CompletedProcess[str]:
    """``tmmu golden check`` of these cases by the package that lies in ``path``."""
    program = f"import tmmu; assert tmmu.__file__.startswith({str(path)!r}); from tmmu.cli.main import main; main()"
    command = [sys.executable, "-c", program, "golden", "check", *cases, "--jobs", "1", "--dir", str(folder)]
    return subprocess.run(
        command, cwd=path, env=os.environ | {"PYTHONPATH": str(path)}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_changed_line_is_caught_and_the_buffer_named(name: str, tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    done = check(mutated(tmp_path, mutation), FOLDER, mutation.cases)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr.startswith("tmmu: GOLDEN_MISMATCH: ")
    assert re.search(mutation.said, done.stdout), done.stdout[:2000]


def test_an_unchanged_copy_passes(tmp_path: Path) -> None:
    done = check(mutated(tmp_path, Mutation((LIVENESS,), "", "", "")), FOLDER, (*CASES, "weight-ring"))
    assert (done.returncode, done.stderr) == (0, "")
