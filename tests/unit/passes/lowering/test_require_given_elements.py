"""An input that is a part of a larger tensor is read where it is, and nowhere else."""

from collections.abc import Callable

import pytest
import torch

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.lowering import require_given_elements as module
from tmmu.passes.pipeline import lower_program

Function = Callable[[torch.Tensor], object]


def lower(run: Function, part: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with fake_environment("cpu"):
        work = Workload(name="m", folder="", run=run, args=(part(torch.zeros(4, 6)),))
        captured = trace(work, CaptureRequest(model="m", device="cpu"), lambda *_: None)
    lower_program(captured)


PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, ::2],
    "one row, many times": lambda x: x[1].expand(3, 6),
    "nothing": lambda x: x[:0],
}
INSIDE: dict[str, Function] = {
    "itself": lambda x: (x, x + 1),
    "a view": lambda x: (x[:1].t(), x[:1].clone()),
    "a change": lambda x: x.mul_(2)[:1],
    "its own strides": lambda x: x.as_strided(x.shape, x.stride(), x.storage_offset()) + 1,
}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("function", INSIDE)
@pytest.mark.parametrize("part", [name for name in PARTS if "many" not in name])
def test_elements_of_an_input_may_be_used(
    part: str, function: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXACT_BYTES", 1 << 22 if exact else 0)
    lower(INSIDE[function], PARTS[part])


def test_row_that_is_repeated_may_be_used() -> None:
    lower(lambda x: x + 1, PARTS["one row, many times"])


OUTSIDE: dict[str, Function] = {
    "an argument": lambda x: x.as_strided((2, 2), (1, 2), 0) + 1,
    "a result": lambda x: (x + 1, x.as_strided((2, 2), (1, 2), 0)),
    "a change": lambda x: x.as_strided((2, 2), (1, 2), 0).mul_(2),
    "a gap": lambda x: x.as_strided((2,), (1,), x.storage_offset()) * 2,
}


@pytest.mark.parametrize("function", OUTSIDE)
def test_elements_beside_an_input_are_refused_by_its_name(function: str) -> None:
    with pytest.raises(UnsupportedOp, match=r"reaches beyond what .* shows of its storage"):
        lower(OUTSIDE[function], lambda x: x[1:3, ::2])
    lower(OUTSIDE[function], PARTS["whole"])


def test_large_storages_are_compared_by_their_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_BYTES", 0)
    with pytest.raises(UnsupportedOp, match="reaches beyond"):
        lower(OUTSIDE["an argument"], PARTS["rows"])
    lower(OUTSIDE["a gap"], PARTS["columns"])
