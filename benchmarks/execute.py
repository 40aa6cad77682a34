"""Runs every architecture of the corpus, small, in its plan on the CPU, and compares every bit with two other runs.

    python -m benchmarks.execute [--only TEXT] [--train | --inference]

Each line: ops, results, how many of them differ from the captured program run call by call in plain memory, how many
from the module itself, and by how much. Exits 1 unless 95 % of the runs equal the captured program bit for bit.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.small import BATCH, SEQUENCE, small_config
from benchmarks.subject import Subject, Tensors, Workload
from tests.kernels import plain_kernels
from tmmu.errors import TmmuError
from tmmu.runtime.compare.reference import ReferenceExecutor
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.slab import has_same_bits

REASONS = {
    ("DETR ResNet-50", True): "no training step: a solver on the host matches predictions to targets",
}
"""Why an architecture does not run in a mode, or its module gives other bits."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One architecture in one mode: results compared, and how many differ; or why there are none."""

    name: str
    training: bool
    ops: int = 0
    results: int = 0
    plain: int = 0
    module: int = 0
    distance: float = 0.0
    reason: str = ""


def workload(architecture: Architecture, *, training: bool) -> Workload:
    """The architecture small, with a sequence where it takes tokens, and image tokens besides where it takes both."""
    config = small_config(architecture)
    tokens = not any(kind in architecture.config for kind in PIXELS)
    images = getattr(config, "image_token_id", None) is not None
    return Workload(
        model=architecture.model,
        config=config,
        dtype=architecture.dtype,
        batch=BATCH,
        sequence=(2 * SEQUENCE if images else SEQUENCE) if tokens else None,
        training=training,
    )


PIXELS = (
    "ViT", "DeiT", "Beit", "Dino", "Swin", "ConvNext", "ResNet", "MobileNet", "Segformer", "Detr", "Wav2Vec2", "Hubert",
)  # fmt: skip
"""Configurations of models that take no tokens."""


def row_of(architecture: Architecture, *, training: bool) -> Row:
    """Two runs, on two batches, so that what the first leaves behind would show in the second."""
    subject = Subject(workload(architecture, training=training))
    try:
        executor = subject.executor()
    except TmmuError as error:
        return Row(name=architecture.name, training=training, reason=str(error))
    reference = ReferenceExecutor(subject.program, subject.weights)
    rows = [count_differences(subject, executor, reference, subject.inputs(seed)) for seed in (0, 1)]
    from_program, from_module, distance = (max(column) for column in zip(*rows, strict=True))
    return Row(
        name=architecture.name,
        training=training,
        ops=len(executor.order),
        results=len(executor.outputs),
        plain=int(from_program),
        module=int(from_module),
        distance=distance,
        reason=REASONS.get((architecture.name, training), ""),
    )


def count_differences(
    subject: Subject, executor: Executor, reference: ReferenceExecutor, inputs: Tensors
) -> tuple[int, int, float]:
    """(results unlike the program's, results unlike the module's, the largest distance of the latter)."""
    torch.manual_seed(5)
    planned = executor.run(inputs)
    torch.manual_seed(5)
    reference.run(executor.order, inputs)
    torch.manual_seed(5)
    eager = subject.call(inputs)
    if len(eager) != len(planned) or not all(t.isfinite().all() for t in eager if t.is_floating_point()):
        raise RuntimeError(f"{subject.work.model}: {len(planned)} results, {len(eager)} wanted, or not finite")
    expected = map(reference.value, executor.outputs)
    from_program = sum(not has_same_bits(a, b) for a, b in zip(planned, expected, strict=True))
    differing = [(a, b) for a, b in zip(planned, eager, strict=True) if not has_same_bits(a, b)]
    return from_program, len(differing), max((distance(a, b) for a, b in differing), default=0.0)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference as a fraction of the largest magnitude; infinite for tensors of other shapes."""
    if a.shape != b.shape:
        return float("inf")
    return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-300))


def line(row: Row) -> str:
    mode = "training" if row.training else "inference"
    if not row.ops:
        return f"{row.name:20} {mode:9} {row.reason[:90]}"
    distance = f"{row.distance:9.1e}" if row.module else f"{'':9}"
    columns = f"{row.ops:6} {row.results:7} {row.plain:7} {row.module:7} {distance}"
    return f"{row.name:20} {mode:9} {columns} {row.reason}".rstrip()


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """The totals, a line for each of the two comparisons."""
    ran = [row for row in rows if row.ops]
    for reference, equal in (
        ("the captured program", [row for row in ran if not row.plain]),
        ("the module", [row for row in ran if not row.module]),
    ):
        yield f"{len(equal)} of {len(ran)} runs have every bit of {reference}"


def has_succeeded(rows: Sequence[Row]) -> bool:
    return sum(bool(row.ops) and not row.plain for row in rows) >= 0.95 * len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    modes_group = parser.add_mutually_exclusive_group()
    modes_group.add_argument("--train", action="store_true")
    modes_group.add_argument("--inference", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # small kernels only wait for a second one
    modes = (False,) if options.inference else (True,) if options.train else (False, True)
    rows = []
    print(f"{'model':20} {'mode':9} {'ops':>6} results program  module  distance")
    with plain_kernels():
        for architecture in ARCHITECTURES:
            for training in modes:
                if options.only.lower() in architecture.name.lower():
                    rows.append(row_of(architecture, training=training))
                    print(line(rows[-1]), flush=True)
    print("\n".join(summary(rows)))
    return 0 if has_succeeded(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
