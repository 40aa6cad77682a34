"""Mutations of one line of the planner are caught by the golden files, which name the case and the buffer."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.golden.graphs import FOLDER

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[2] / "tmmu"
CASES = ("chain", "in-place-chain", "siblings", "residual", "zero-size", "mixed-roles", "gpt2-block")


@dataclass(frozen=True)
class Mutation:
    """``old``, a regular expression, becomes ``new`` in each of ``files``; ``report`` matches what ``cases`` then say.

    Patterns leave names of variables open. With a ``mark`` only lines that end in ``# mutation: MARK`` change.
    """

    files: tuple[str, ...]
    old: str
    new: str
    report: str
    cases: tuple[str, ...] = CASES
    mark: str = ""

    def apply(self, text: str) -> str:
        """The source ``text`` with the mutation."""
        end = f"  # mutation: {self.mark}\n" if self.mark else "\n"
        lines = text.splitlines(keepends=True)
        return "".join(re.sub(self.old, self.new, line, count=1) if line.endswith(end) else line for line in lines)


def marked_mutation(mark: str, file: str, old: str, new: str, report: str) -> Mutation:
    """A mutation of the marked line of one file of the planner."""
    return Mutation((f"planner/{file}.py",), old, new, report, mark=mark)


LIVENESS, REFERENCE = "planner/liveness.py", "planner/reference.py"
MUTATIONS = {
    "smaller first": marked_mutation(
        "slot order",
        "slots",
        r"-(\w+\[)",
        r"\1",
        r"siblings: train_full/inference: slots moved: buffer 1 \(part0.0\) is in slot 1 .*, was in slot 4",
    ),
    "higher id first": marked_mutation(
        "slot order", "slots", r", (\w+)\)", r", -\1)", r"siblings.*slots moved: buffer 2"
    ),
    "any free slot": marked_mutation(
        "slot choice", "slots", r"heapq\.heappop\((\w+)\)", r"\1.pop()", r"slots.*buffer \d+"
    ),
    "freed one step late": marked_mutation("slot release", "slots", "<=", "<", r"slots"),
    "another domain": Mutation(
        ("planner/addresses.py", REFERENCE),
        'b"tmmu_va"',
        'b"tmmu_vb"',
        r"chain: train_full/inference: addresses moved: buffer 1 \(weight0\) has address 0x\w+, was address 0x\w+",
    ),
    "big-endian slots": marked_mutation("slot bytes", "addresses", "little", "big", r"addresses.*buffer 3 \(weight1\)"),
    "one more bit": marked_mutation("address alignment", "addresses", r"~\(", "~(2 * ", r"addresses.*buffer"),
    "dead one step late": marked_mutation(
        "death after read",
        "liveness",
        r"\+ 1",
        "+ 2",
        r"chain.*spans.*buffer 2 \(product0\) is live in \[0, 3\), was live in \[0, 2\)",
    ),
    "mirrored one step early": marked_mutation("mirrored death", "liveness", " if ", " - 1 if ", r"spans.*buffer"),
    "outputs die": marked_mutation("output death", "liveness", r"\w+ if \w+ in \w+ else 0", "0", r"spans|slots"),
    "both forget recomputation": Mutation(
        (LIVENESS, REFERENCE),
        '"remat_enabled"',
        '"remat_disabled"',
        r"residual: remat_enabled/forward: spans moved: buffer 4 \(act0\)",
    ),
    "no bytes at the end": marked_mutation(
        "sequential offsets", "layout", r"\[:-1\]", "[1:]", r"plan moved: buffer|the judge"
    ),
    "another figure": Mutation(
        ("planner/metrics.py",), r"(fragmentation_ppm\": \(\w+ - \w+)\)", r"\1 + 1)", r"plan moved|judge|disagree"
    ),
}


def ring_mutation(file: str, old: str, new: str, report: str) -> Mutation:
    """A mutation of the ring's planner."""
    return Mutation((f"planner/ring/{file}",), old, new, report, cases=("weight-ring",))


MUTATIONS |= {
    "overlapping fit": ring_mutation(
        "arcs.py",
        r"(\w+) = max\(\1, (\w+)\)",
        r"\1 = \2",
        r"forward: plan moved: the ring's block 12 \"head\" .* was block 12",
    ),
    "no order by time": ring_mutation(
        "arcs.py", r"yield tuple\((\w+) for _, \1 in \w+\)", "yield from ()", r"plan moved: the ring's block 1 "
    ),
    "fit from above": ring_mutation("arcs.py", r"sorted\(\((\w+)\[", r"sorted((-\1[", r"plan moved: the ring's"),
    "gaps must be wider": ring_mutation(
        "arcs.py", r"(- \w+) >= (\w+\[\w+\]:)", r"\1 > \2", r"backward: plan moved: the ring's block 2 \"h.0\""
    ),
    "a ring one step up": ring_mutation(
        "assemble.py",
        r"(resident_bytes \+ \w+\[\w+\])",
        r"\1 + 256",
        r"the ring's block 1 \"h.0\" 45568",
    ),
    "residents apart": ring_mutation(
        "assemble.py", r"(\+= \w+) if resident else 0", r"\1", r"the judge refuses the plan: \[ring-blocks\]"
    ),
    "members last first": ring_mutation(
        "layers.py", r"(for \w+ in sorted\(\w+\)):", r"\1[::-1]:", r"b4\+0 b3\+256, was .* b3\+0 b4\+20480"
    ),
    "what a gradient reads streams": ring_mutation(
        "layers.py",
        r"any\((\w+) in \w+ for \1 in \w+\)",
        "False",
        r"the judge .*\[ring-resident\] block 3",
    ),
    "waits oldest first": ring_mutation(
        "copies.py", r"-(\w+\[\w+\[0\]\]\.last), -", r"\1, ", r"the judge .*\[ring-starts\]"
    ),
    "issued one visit late": ring_mutation(
        "copies.py", r"(lag \* len\(\w+\.visits\))", r"\1 + 1", r"the ring's copy 1 start 13-1 .* start 12-1"
    ),
    "fewest bytes before least time": ring_mutation(
        "cyclic.py",
        r"(self\.\w+\.ns), (self\.\w+\.bytes_per_pass)",
        r"\2, \1",
        r"block 1 .* resident .*, was block 1 .* streamed",
    ),
    "copies cost bytes alone": ring_mutation("profile.py", r"(copy_ns: int) = \w+", r"\1 = 0", r"the ring's"),
}


def mutate_package(folder: Path, mutation: Mutation) -> Path:
    """A folder that holds a copy of the package in which the mutation is made."""
    shutil.copytree(PACKAGE, folder / "tmmu")
    for name in mutation.files:
        path = folder / "tmmu" / name
        path.write_text(mutation.apply(path.read_text()))
    unchanged = [(PACKAGE / name).read_text() == (folder / "tmmu" / name).read_text() for name in mutation.files]
    assert mutation.old == mutation.new or not any(unchanged)
    return folder


def check(path: Path, folder: Path, cases: tuple[str, ...] = CASES) -> subprocess.CompletedProcess[str]:
    """``tmmu golden check`` of these cases by the package that lies in ``path``."""
    program = f"import tmmu; assert tmmu.__file__.startswith({str(path)!r}); from tmmu.cli.main import main; main()"
    command = [sys.executable, "-c", program, "golden", "check", *cases, "--jobs", "1", "--dir", str(folder)]
    return subprocess.run(
        command, cwd=path, env=os.environ | {"PYTHONPATH": str(path)}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_caught_and_the_buffer_named(name: str, tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    done = check(mutate_package(tmp_path, mutation), FOLDER, mutation.cases)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr.startswith("tmmu: GOLDEN_MISMATCH: ")
    assert re.search(mutation.report, done.stdout), done.stdout[:2000]


def test_unchanged_copy_passes(tmp_path: Path) -> None:
    done = check(mutate_package(tmp_path, Mutation((LIVENESS,), "", "", "")), FOLDER, (*CASES, "weight-ring"))
    assert (done.returncode, done.stderr) == (0, "")
