"""Compares a planned run with the model itself, run eagerly by PyTorch: outputs, and state afterwards."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tmmu.errors import CaptureFailed
from tmmu.runtime.compare.bench import ComparisonModel
from tmmu.runtime.execute.executor import Executor
from tmmu.runtime.memory.slab import has_same_bits
from tmmu.runtime.steps.fused_trial import differs_by
from tmmu.runtime.weights.load import LazyTensors, Weight

TOLERANCE: Final = {
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
    torch.complex128: 1e-7,
    torch.complex64: 1e-4,
}
"""By dtype, how far sums in another order may differ, as a fraction of the largest magnitude."""
Row = tuple[str, torch.Tensor, torch.Tensor]
"""A label, the planned tensor, the eager one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of an executor: the weights it was bound with, its inputs by name, its outputs, the random seed."""

    executor: Executor
    weights: Mapping[str, Weight]
    inputs: Mapping[str, torch.Tensor]
    outputs: Sequence[torch.Tensor]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerBits:
    """How many outputs and states have the bits of the eager ones, are close to them, or are not close.

    ``difference``: by which share of its largest magnitude one that is close differs, at most.
    """

    same: int = 0
    near: int = 0
    far: int = 0
    difference: float = 0.0


def compare_with_eager(model: ComparisonModel, run: PlannedRun, *, near: bool = False) -> EagerBits:
    """``CAPTURE_FAILED`` for an output or state that is not close, unless the run is only ``near``, of fused ops.

    A plan of half a step is compared by the outputs that it has.
    """
    model.load(LazyTensors(run.weights), dict(zip(model.input_names, run.inputs.values(), strict=True)))
    torch.manual_seed(run.seed)
    rows = [*_outputs(run, model.run()), *_states(run.executor, model.states)]
    far = [row for row in rows if near and not has_same_bits(row[1], row[2]) and not _is_close(row[1], row[2])]
    labels = {row[0] for row in far}
    others = [row for row in rows if row[0] not in labels]
    same, close = count_same(others, "the model itself gives")
    difference = max((differs_by(planned, expected) for _, planned, expected in others), default=0.0) if close else 0.0
    return EagerBits(same=same, near=close, far=len(far), difference=difference)


def count_same(rows: Sequence[Row], origin: str) -> tuple[int, int]:
    """(rows with the same bits, others that are close); ``CAPTURE_FAILED`` for the first of any other."""
    differing = [row for row in rows if not has_same_bits(row[1], row[2])]
    for label, planned, expected in differing:
        if not _is_close(planned, expected):
            raise CaptureFailed(
                f"{label} is not what {origin}",
                fix="a model that depends on time, on a file or on earlier runs has no one graph; else report it",
            )
    return len(rows) - len(differing), len(differing)


def _outputs(run: PlannedRun, expected: Sequence[torch.Tensor]) -> Iterator[Row]:
    values = run.executor.bound.graph.outputs
    if len(expected) != len(values):
        raise CaptureFailed(
            f"the model itself gives {len(expected)} tensors, and its graph {len(values)}",
            fix="report it, with the model",
        )
    eager: dict[int, torch.Tensor] = dict(zip(values, expected, strict=True))
    for position, (value, planned) in enumerate(zip(run.executor.outputs, run.outputs, strict=True)):
        yield f"output {position}", planned, eager[value]


def _states(executor: Executor, eager: Mapping[str, torch.Tensor]) -> Iterator[Row]:
    """Each state as all elements of its storage, flat; none where the plan is of half a step."""
    for name in executor.states if len(executor.order) == len(executor.bound.graph.ops) else ():
        planned = executor.state(name)
        storage = eager[name].untyped_storage() if name in eager else None
        if storage is not None and storage.nbytes() == planned.nbytes:
            flat = (storage.nbytes() // eager[name].itemsize,)
            yield f"state {name}", planned.view(eager[name].dtype), eager[name].detach().as_strided(flat, (1,), 0)


def _is_close(planned: torch.Tensor, expected: torch.Tensor) -> bool:
    if format_type(planned) != format_type(expected) or planned.dtype not in TOLERANCE:
        return False
    largest = float(expected.abs().nan_to_num().max())
    return torch.allclose(planned, expected, rtol=0, atol=TOLERANCE[planned.dtype] * largest, equal_nan=True)


def format_type(tensor: torch.Tensor) -> str:
    """``dtype[shape]``."""
    return f"{str(tensor.dtype)[6:]}[{','.join(map(str, tensor.shape))}]"
