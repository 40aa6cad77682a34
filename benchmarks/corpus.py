"""Plan every architecture of the corpus, for inference and for a training step, and print what came of it.

    python -m benchmarks.corpus [--only TEXT] [--mode inference|backward] [--device cuda|cpu]

One line each: ops, seconds by stage, peak / bound, slots / most live, proven, and how many in a hundred ops have a
modality and a phase that is known; or the exact reason of a failure. Every plan is judged. Exits 1 unless at least 95 %
were captured, every plan is sound, peak / bound is at most 1.01 everywhere and 1 for four in five, and at least 95 % of
all ops are labelled.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import transformers

from benchmarks.architectures import ARCHITECTURES, Architecture
from tmmu.driver import Compiled, PlanRequest, compile_model
from tmmu.errors import TmmuError
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.planner.arenas import default_arenas
from tmmu.planner.token import token_from_seed


@dataclass(frozen=True)
class Row:
    name: str
    mode: str
    result: Compiled | None
    reason: str


def config_of(architecture: Architecture) -> Any:
    config = getattr(transformers, architecture.config)(**architecture.sizes)
    config.architectures = [architecture.model]
    return config


def plan(architecture: Architecture, mode: str, device: str) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        try:
            config_of(architecture).save_pretrained(folder)
            capture = CaptureRequest(
                model=f"hf:{folder}", device=device, mode=mode, seq=architecture.seq, dtype=architecture.dtype
            )
            request = PlanRequest(
                mode=mode,
                preset="inference" if mode == "inference" else "train_full",
                token=token_from_seed(0),
                arenas=default_arenas(alignment=256),
            )
            return Row(architecture.name, mode, compile_model(capture, request, no_progress), "")
        except TmmuError as error:
            return Row(architecture.name, mode, None, str(error))


def ratio(result: Compiled) -> float:
    """Of the stack, peak / bound. Text and data are one buffer after another: always 1."""
    peak, bound = (result.plan.metrics[f"{figure}_bytes.stack"] for figure in ("peak", "bound"))
    return peak / bound if bound else 1.0


def labelled(result: Compiled) -> int:
    """How many ops have a modality and a phase that is not ``unknown``."""
    notes = result.graph.notes.ops
    return sum("unknown" not in labels for labels in zip(notes.phase, notes.modality, strict=True))


def line(row: Row) -> str:
    if row.result is None:
        return f"{row.name:20} {row.mode:9} {row.reason[:160]}"
    arenas, metrics, seconds = row.result.plan.arenas, row.result.plan.metrics, row.result.seconds
    stack = metrics["peak_bytes.stack"]
    stages = " ".join(f"{seconds[stage]:6.2f}" for stage in ("capture", "lower", "plan", "judge"))
    return (
        f"{row.name:20} {row.mode:9} {len(row.result.graph.ops):6} {stages} {stack / 2**30:9.3f} "
        f"{ratio(row.result):8.5f} {metrics['peak_logical_slots']:6}/{metrics['max_live']:<6} {all(arenas.proven)!s:6} "
        f"{100 * labelled(row.result) / max(len(row.result.graph.ops), 1):6.2f}"
    )


def summary(rows: list[Row]) -> bool:
    planned = [row.result for row in rows if row.result is not None]
    tight = sum(ratio(result) == 1 for result in planned)
    worst = max((ratio(result) for result in planned), default=1.0)
    print(f"captured {len(planned)}/{len(rows)}; peak/bound exactly 1: {tight}/{len(planned)}; worst {worst:.5f}")
    ops, known = sum(len(result.graph.ops) for result in planned), sum(map(labelled, planned))
    print(f"labelled {known} of {ops} ops, {100 * known / max(ops, 1):.2f} %")
    if known < 0.95 * ops:
        return False
    return len(planned) >= 0.95 * len(rows) and worst <= 1.01 and tight >= 0.8 * len(planned)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--mode", choices=("inference", "backward"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    modes = (options.mode,) if options.mode else ("inference", "backward")
    stages = "capture  lower   plan  judge"
    print(f"{'model':20} {'mode':9} {'ops':>6} {stages} stack GiB peak/bnd slots/live    proven labelled")
    rows = []
    for architecture in ARCHITECTURES:
        for mode in modes:
            if options.only.lower() in architecture.name.lower():
                rows.append(plan(architecture, mode, options.device))
                print(line(rows[-1]), flush=True)
    return 0 if summary(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
