"""A planned step held against the model itself, run as PyTorch runs it: what it returns, and what it keeps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch

from tmmu.errors import CaptureFailed
from tmmu.runtime.compare.bench import Model
from tmmu.runtime.execute.executor import Executor

TOLERANCE: Final = {
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
    torch.complex128: 1e-7,
    torch.complex64: 1e-4,
}
"""How far, of the largest magnitude, sums that are taken in another order may lie apart."""
Row = tuple[str, torch.Tensor, torch.Tensor]


def compare_with_eager(  # noqa: PLR0913 - the two sides, what they are given, and what one of them gave
    model: Model,
    executor: Executor,
    weights: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[torch.Tensor],
    *,
    seed: int,
) -> tuple[int, int]:
    """How many outputs and states of the one step that ran have the bits of the model's own, and how many are close.

    Where a plan is of half a step, the outputs that this half has. ``CAPTURE_FAILED`` for one that is neither.
    """
    model.load(weights, dict(zip(model.input_names, inputs.values(), strict=True)))
    torch.manual_seed(seed)
    rows = [*_outputs(executor, outputs, model.run()), *_states(executor, model.states)]
    identical = [_has_same_bits(planned, expected) for _, planned, expected in rows]
    for is_identical, (label, planned, expected) in zip(identical, rows, strict=True):
        if not is_identical and not _is_close(planned, expected):
            raise CaptureFailed(
                f"{label} is not what the model itself gives",
                fix="a model that depends on time, on a file or on earlier runs has no one graph; else report it",
            )
    return sum(identical), len(identical) - sum(identical)


def _outputs(executor: Executor, outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Iterator[Row]:
    values = executor.bound.graph.outputs
    if len(expected) != len(values):
        raise CaptureFailed(
            f"the model itself gives {len(expected)} tensors, and its graph {len(values)}",
            fix="report it, with the model",
        )
    own: dict[int, torch.Tensor] = dict(zip(values, expected, strict=True))
    for position, (value, planned) in enumerate(zip(executor.outputs, outputs, strict=True)):
        yield f"output {position}", planned, own[value]


def _states(executor: Executor, own: Mapping[str, torch.Tensor]) -> Iterator[Row]:
    """Each as all numbers of its storage, once a whole step has run."""
    for name in executor.states if len(executor.order) == len(executor.bound.graph.ops) else ():
        planned = executor.state(name)
        storage = own[name].untyped_storage() if name in own else None
        if storage is not None and storage.nbytes() == planned.nbytes:
            numbers = (storage.nbytes() // own[name].itemsize,)
            yield f"state {name}", planned.view(own[name].dtype), own[name].detach().as_strided(numbers, (1,), 0)


def _has_same_bits(planned: torch.Tensor, expected: torch.Tensor) -> bool:
    """Shape, dtype and every bit."""
    return format_type(planned) == format_type(expected) and _bits(planned).equal(_bits(expected))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _is_close(planned: torch.Tensor, expected: torch.Tensor) -> bool:
    if format_type(planned) != format_type(expected) or planned.dtype not in TOLERANCE:
        return False
    largest = float(expected.abs().nan_to_num().max())
    return torch.allclose(planned, expected, rtol=0, atol=TOLERANCE[planned.dtype] * largest, equal_nan=True)


def format_type(tensor: torch.Tensor) -> str:
    """Its dtype and shape, as people write them."""
    return f"{str(tensor.dtype)[6:]}[{','.join(map(str, tensor.shape))}]"
