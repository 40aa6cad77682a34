"""What one rank needs by its plan, beside figures that others have published.

    python -m benchmarks.published_ranks [--only titan|megatron] [--row 0 1]

- ``titan``: peaks that torchtitan's authors read from torch's allocator (its reserved bytes) when they trained Llama
  3.1 on H100s, December 2024. Ours is a plan of the same step, of `rank_models/llama.py`: what the rank holds as it is,
  what torch's allocator reserves for that by our model of it, and what it needs in the plan.
- ``megatron``: bytes that a transformer layer keeps for its gradient, by the formulas of Korthikanti et al. 2022
  (Reducing Activation Recomputation in Large Transformer Models, equations 2 and 4). Ours is the difference of two
  plans of `rank_models/gpt.py`, of three and of two layers.

No GPU and no weights; each plan is that of a fresh `tmmu plan`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.rank_models import gpt

ROOT: Final = Path(__file__).parent
GIB: Final = 2**30
MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A row of torchtitan's tables; ``gib``: the peak that its allocator reserved. ``also``: what we do without."""

    size: str
    data: int
    columns: int
    sequences: int
    recompute: str
    gib: float
    also: str = ""


TITAN: Final = (
    Published(size="8B", data=8, columns=1, sequences=2, recompute="selective", gib=82.4),
    Published(size="8B", data=128, columns=1, sequences=2, recompute="selective", gib=67.0),
    Published(size="70B", data=32, columns=8, sequences=16, recompute="full", gib=71.9, also="compiled, float8"),
)
STEP: Final = """
from benchmarks.rank_models import llama

net = llama.model(size={size!r}, data={data}, columns={columns}, recompute={recompute!r})
updates = llama.optimizer(net.parameters())
inputs = llama.inputs(sequences={sequences})


def step(tokens):
    llama.train(net, updates, tokens, columns={columns})
"""


def record_of(*options: object) -> dict[str, Any]:
    """What ``tmmu plan --json`` says of the first rank; the program ends where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", "from tmmu.cli.main import main; main()", "plan", *map(str, options)]
        command += ["--rank", "first", "--no-cache", "--json", "-o", str(Path(folder) / "rank.plan.cbor")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT.parent)
    if done.returncode:
        sys.exit(done.stderr)
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def titan_row(row: Published, folder: Path) -> str:
    """One line of the table."""
    file = folder / "train.py"
    file.write_text(STEP.format(**{name: getattr(row, name) for name in Published.__slots__}))
    record = record_of(f"{file}:step", "--mode", "step", "--world", row.data * row.columns)
    eager = record["eager"]
    sizes = [eager["total_bytes"], eager["reserved_bytes"], record["planned"]["total_bytes"]]
    layout = f"{row.data} x {row.columns}"
    cells = [
        row.size,
        layout,
        row.sequences,
        row.recompute,
        row.also,
        *(f"{size / GIB:.1f}" for size in sizes),
        row.gib,
    ]
    return f"| {' | '.join(map(str, [*cells, f'{sizes[1] / GIB / row.gib:.3f}']))} |"


def kept_bytes(sizes: str, *, ranks: int, sequences_cut: bool) -> int:
    """Bytes that one layer keeps for its gradient on a rank, by two plans."""
    model, settings = ROOT / "rank_models" / "gpt.py", {"sizes": sizes, "ranks": ranks, "sequences_cut": sequences_cut}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    two, three = (
        record_of(model, "--mode", "forward", "--world", ranks, *words, "--set", f"layers={layers}")["stack"]["peak"]
        for layers in (2, 3)
    )
    return int(three - two)


def formula_bytes(sizes: str, *, ranks: int, sequences_cut: bool) -> float:
    """The paper's bytes of a layer on a rank."""
    width, heads, batch = gpt.SIZES[sizes]
    tokens, scores = gpt.SEQUENCE * batch * width, 5 * heads * gpt.SEQUENCE / width
    return tokens * (34 + scores) / ranks if sequences_cut else tokens * (10 + 24 / ranks + scores / ranks)


def explained_bytes(sizes: str, *, ranks: int, sequences_cut: bool) -> float:
    """What torch's layer keeps beside that.

    Means and deviations of two norms in float32; with cut sequences the gathered inputs of two linear layers, of which
    Megatron keeps the part of the rank, and gathers it again for the gradient.
    """
    width, _, batch = gpt.SIZES[sizes]
    tokens = gpt.SEQUENCE * batch
    gathered = 4 * tokens * width * (1 - 1 / ranks) if sequences_cut else 0
    return 16 * tokens / (ranks if sequences_cut else 1) + gathered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("titan", "megatron"))
    parser.add_argument("--row", nargs="*", type=int, default=range(len(TITAN)))
    options = parser.parse_args()
    if options.only != "titan":
        print("| model | ranks | sequences cut | kept MiB | formula MiB | rest MiB | explained MiB |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for sizes in ("22B", "175B"):
            for is_cut in (False, True):
                kept = kept_bytes(sizes, ranks=8, sequences_cut=is_cut)
                formula = formula_bytes(sizes, ranks=8, sequences_cut=is_cut)
                figures = [kept, formula, kept - formula, explained_bytes(sizes, ranks=8, sequences_cut=is_cut)]
                cells = [sizes, 8, "yes" if is_cut else "no", *(f"{figure / MIB:.3f}" for figure in figures)]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)
    if options.only != "megatron":
        print("| model | fsdp x tp | sequences | computed again | published also | as it is GiB | reserved GiB "
              "| in the plan GiB | published GiB | reserved / published |")  # fmt: skip
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        with tempfile.TemporaryDirectory() as folder:
            for index in options.row:
                print(titan_row(TITAN[index], Path(folder)), flush=True)


if __name__ == "__main__":
    main()
