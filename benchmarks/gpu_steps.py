"""Training loops as users write them, inside their plan on a GPU: two steps of each with eager's bits.

    python -m benchmarks.gpu_steps [--device cuda|cpu] [--json]

The loops are those of ``tests/eager/loops.py``. Needs what ``benchmarks.gpu_check`` needs. Exits 1 if a row fails.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu_table import parse_options, print_rows
from tests.eager.loops import LOOPS, loop_text
from tmmu.driver import PlanRequest
from tmmu.errors import TmmuError
from tmmu.model_run import RunRequest, run_model
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.planner.arenas import default_arenas
from tmmu.planner.token import token_from_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One loop; ``fault`` is empty where all that persists has eager's bits.

    ``checked`` tensors after two steps, ``same`` of them with the bits of the step itself, the others ``near``. The
    names of the fields are keys of ``--json``.
    """

    name: str
    fault: str = ""
    checked: int = 0
    same: int = 0
    near: int = 0
    numbers: int = 0
    pieces: int = 0


def row_of(name: str, device: str) -> StepRow:
    """The row of a loop, its fault included."""
    try:
        return _row(name, device)
    except (TmmuError, RuntimeError) as error:
        return StepRow(name=name, fault=" ".join(str(error).split())[:200])


def _row(name: str, device: str) -> StepRow:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "train.py"
        file.write_text(loop_text(name).replace('"cpu"', f'"{device}"'))
        request = CaptureRequest(model=f"{file}:step", mode="step", device=device)
        plan = PlanRequest(mode="backward", preset="train_full", token=token_from_seed(0), arenas=default_arenas())
        ran = run_model(request, plan, RunRequest(seed=0, weights=None, check=True), no_progress)[1]
    return StepRow(
        name=name,
        fault="not all of eager's bits" if ran.near else "",
        checked=ran.checked,
        same=ran.same,
        near=ran.near,
        numbers=ran.numbers,
        pieces=ran.pieces,
    )


def table(rows: Sequence[StepRow]) -> list[str]:
    """A line per loop, faults behind the figures."""
    lines = [f"{'loop':36} {'checked':>7} {'same':>5} {'near':>5} {'numbers':>7} {'pieces':>6}"]
    for row in rows:
        figures = f"{row.checked:7} {row.same:5} {row.near:5} {row.numbers:7} {row.pieces:6}"
        lines.append(f"{row.name:36} {figures}" + (f"  FAULT {row.fault}" if row.fault else ""))
    return lines


def main() -> int:
    """Prints the table; 1 if a row has a fault, 2 where there is no GPU."""
    options = parse_options(__doc__, has_sizes=False)
    if options is None:
        return 2
    rows = [row_of(name, options.device) for name in LOOPS]
    return print_rows(options, rows, table(rows))


if __name__ == "__main__":
    sys.exit(main())
