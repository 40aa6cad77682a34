"""The models of the GPU check with neighbouring ops as fused kernels: near eager, tried, checked, and timed.

    python -m benchmarks.gpu_fused [--device cuda|cpu] [--small] [--json]

Needs what ``benchmarks.gpu_check`` needs, and Triton on a GPU. Exits 1 if a row fails: where a result is far from
eager's, where an op runs its members for want of a kernel, or where torch asked for memory after the plan was bound.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu_check import CASES, Case, requests_of
from benchmarks.gpu_table import parse_options, print_rows, rows_in_time
from tmmu.errors import TmmuError
from tmmu.model_run import run_model
from tmmu.passes.capture.request import no_progress
from tmmu.runtime.compare.bench import EAGER, PLANNED
from tmmu.runtime.compare.run import RunReport

SECONDS = 150.0
"""Rows that would begin later are left out, with that as their fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedRow:
    """One model; ``fault`` is empty where all holds. The names of the fields are keys of ``--json``.

    ``compiled`` of the ``fused`` ops have a kernel; ``difference`` is of an output from eager's, as a share of the
    largest magnitude in it.
    """

    name: str
    fault: str = ""
    fused: int = 0
    compiled: int = 0
    near: int = 0
    difference: float = 0.0
    pieces: int = 0
    fused_ms: float = 0.0
    plain_ms: float = 0.0
    eager_ms: float = 0.0


def row_of(case: Case, device: str, *, small: bool) -> FusedRow:
    """The row of a case, its fault included."""
    try:
        return _row(case, device, small=small)
    except TmmuError as error:
        return FusedRow(name=case.name, fault=str(error))
    except Exception as error:  # noqa: BLE001 - one row must not cost the others
        return FusedRow(name=case.name, fault=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _row(case: Case, device: str, *, small: bool) -> FusedRow:
    capture, plan, run = requests_of(case, device, small=small)
    _, plain = run_model(capture, plan, replace(run, check=False), no_progress)
    _, ran = run_model(capture, replace(plan, fuse=True), run, no_progress)
    plain_ms = {row.way: row.milliseconds for row in plain.bench}
    fused_ms = {row.way: row.milliseconds for row in ran.bench}
    return FusedRow(
        name=case.name,
        fault=fault_of(ran),
        fused=ran.fused,
        compiled=ran.compiled,
        near=ran.near,
        difference=ran.difference,
        pieces=ran.pieces,
        fused_ms=fused_ms[PLANNED],
        plain_ms=plain_ms[PLANNED],
        eager_ms=fused_ms[EAGER],
    )


def fault_of(ran: RunReport) -> str:
    """What is wrong with a fused run; empty where nothing is."""
    if ran.compiled < ran.fused or not ran.fused:
        return f"{ran.fused - ran.compiled} of {ran.fused} fused ops run their members" + (
            f": {ran.unfused}" if ran.unfused else ""
        )
    return "the device's allocator grew after binding" if ran.grown else ""


def table(rows: Sequence[FusedRow]) -> list[str]:
    """A line per model, faults behind the figures."""
    heads = f"{'fused':>6} {'kernels':>7} {'near':>5} {'differ':>8} {'pieces':>6} {'fused ms':>9} {'plain ms':>9}"
    lines = [f"{'model':14} {heads} {'eager ms':>9}"]
    for row in rows:
        counts = f"{row.fused:6} {row.compiled:7} {row.near:5} {row.difference:8.1e} {row.pieces:6}"
        times = f"{row.fused_ms:9.3f} {row.plain_ms:9.3f} {row.eager_ms:9.3f}"
        lines.append(f"{row.name:14} {counts} {times}" + (f"  FAULT {row.fault}" if row.fault else ""))
    return lines


def main() -> int:
    """Prints the table; 1 if a row has a fault, 2 where there is no GPU."""
    options = parse_options(__doc__)
    if options is None:
        return 2
    rows = [
        *rows_in_time(
            CASES,
            lambda case: row_of(case, options.device, small=options.small),
            lambda case: FusedRow(name=case.name, fault="left out, no time"),
            SECONDS,
        )
    ]
    return print_rows(options, rows, table(rows))


if __name__ == "__main__":
    sys.exit(main())
