"""What a GPU must show, in one table: planned runs beside eager ones, and the copies that feed a weight ring.

    python -m benchmarks.gpu_check [--device cuda|cpu] [--small] [--json]

Needs torch, numpy, blake3, cbor2 and platformdirs, and no more; `make gpu-wheels` fetches what is missing. Exits 1 if a
row fails.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_table import parse_options, print_rows, rows_in_time
from tmmu.driver import PlanRequest
from tmmu.errors import TmmuError
from tmmu.model_run import RunRequest, run_model
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.planner.arenas import default_arenas
from tmmu.planner.token import token_from_seed
from tmmu.runtime.compare.bench import CALLS, EAGER, PLANNED, Measurement

MODELS = Path(__file__).with_name("gpu_models.py")
SECONDS = 200.0
"""Rows that would begin later are left out, with that as their fault: all must end in four minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model of ``gpu_models``, its input, and how much of a step runs."""

    name: str
    model: str
    input: str
    mode: str = "inference"
    settings: dict[str, str] = field(default_factory=dict)
    small: dict[str, str] = field(default_factory=dict)
    small_input: str = ""


SMALL = {"width": "64", "layers": "2"}
CASES = (
    Case(name="language", model="Language", input="ids=int64[1,512]", small=SMALL, small_input="ids=int64[1,32]"),
    Case(name="gated bf16", model="Gated", input="ids=int64[1,512]", small=SMALL, small_input="ids=int64[1,32]"),
    Case(name="decode", model="Decode", input="ids=int64[1,1]", small=SMALL | {"length": "32"}),
    Case(name="vision", model="Vision", input="image=float32[8,3,224,224]", small={"width": "96", "layers": "2"},
         small_input="image=float32[1,3,64,64]"),
    Case(name="training", model="Language", input="ids=int64[2,256]", mode="backward", small=SMALL,
         small_input="ids=int64[1,32]"),
    Case(name="recomputed", model="Recomputed", input="ids=int64[2,256]", mode="backward", small=SMALL,
         small_input="ids=int64[1,32]"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model on one device; ``fault`` is empty where all holds. The names of the fields are keys of ``--json``."""

    name: str
    fault: str = ""
    same: int = 0
    near: int = 0
    checked: int = 0
    planned_bytes: int = 0
    eager_bytes: int = 0
    planned_allocations: int = 0
    eager_allocations: int = 0
    replay_ms: float = 0.0
    calls_ms: float = 0.0
    eager_ms: float = 0.0
    pieces: int = 0
    segments_grown: int = 0


def row_of(case: Case, device: str, *, small: bool) -> Row:
    """The row of a case, its fault included."""
    try:
        return _measure(case, device, small=small)
    except TmmuError as error:
        return Row(name=case.name, fault=str(error))
    except Exception as error:  # noqa: BLE001 - one row must not cost the others
        return Row(name=case.name, fault=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def requests_of(case: Case, device: str, *, small: bool) -> tuple[CaptureRequest, PlanRequest, RunRequest]:
    """What is captured, planned and run for a case."""
    settings = case.settings | (case.small if small else {})
    input_spec = case.small_input if small and case.small_input else case.input
    request = CaptureRequest(
        model=f"{MODELS}:{case.model}",
        device=device,
        mode=case.mode,
        inputs=(input_spec,),
        settings=tuple(settings.items()),
    )
    preset = "inference" if case.mode == "inference" else "train_full"
    plan = PlanRequest(mode=case.mode, preset=preset, token=token_from_seed(1), arenas=default_arenas())
    return request, plan, RunRequest(seed=1, weights=None, check=True, bench=True, compiled=False)


def _measure(case: Case, device: str, *, small: bool) -> Row:
    _, ran = run_model(*requests_of(case, device, small=small), no_progress)
    rows: dict[str, Measurement] = {measurement.way: measurement for measurement in ran.bench}
    ours, calls, eager = rows[PLANNED], rows[CALLS], rows[EAGER]
    return Row(
        name=case.name,
        same=ran.same,
        near=ran.near,
        checked=ran.checked,
        planned_bytes=ours.peak_bytes,
        eager_bytes=eager.peak_bytes,
        planned_allocations=ours.allocations,
        eager_allocations=eager.allocations,
        replay_ms=ours.milliseconds,
        calls_ms=calls.milliseconds,
        eager_ms=eager.milliseconds,
        pieces=ran.pieces,
        segments_grown=ran.grown,
        fault="the device's allocator grew after binding" if ran.grown else "",
    )


COLUMNS = (
    "model",
    "same",
    "near",
    "planned MiB",
    "eager MiB",
    "allocs",
    "eager",
    "replay ms",
    "calls ms",
    "eager ms",
    "x",
)


def table(rows: list[Row]) -> Iterator[str]:
    """The rows as a table of text."""
    cells = [COLUMNS, *map(_cells, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    for row in cells:
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join((row[0].ljust(widths[0]), *padded[1:]))
    for row in rows:
        if row.fault:
            yield f"FAULT {row.name}: {row.fault}"


def _cells(row: Row) -> tuple[str, ...]:
    if not row.replay_ms:
        return (row.name, *("-" for _ in COLUMNS[1:]))
    return (
        row.name, str(row.same), str(row.near), f"{row.planned_bytes / 2**20:.1f}", f"{row.eager_bytes / 2**20:.1f}",
        str(row.planned_allocations), str(row.eager_allocations), f"{row.replay_ms:.3f}", f"{row.calls_ms:.3f}",
        f"{row.eager_ms:.3f}", f"{row.eager_ms / row.replay_ms:.2f}",
    )  # fmt: skip


def main() -> int:
    """Prints the table; 1 if a row has a fault, 2 where there is no GPU."""
    options = parse_options(__doc__)
    if options is None:
        return 2
    rows = [
        *rows_in_time(
            CASES,
            lambda case: row_of(case, options.device, small=options.small),
            lambda case: Row(name=case.name, fault="left out, no time"),
            SECONDS,
        )
    ]
    return print_rows(options, rows, table(rows))


if __name__ == "__main__":
    sys.exit(main())
