"""What a rank sends to others in a step, by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tmmu.passes.capture.program import Traffic
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture_live

distributed = pytest.importorskip("torch.distributed")
functional = pytest.importorskip("torch.distributed._functional_collectives")
WORLD, COUNT = 8, 64
BYTES = 4 * COUNT


def gathered_in_lists(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(WORLD)]
    distributed.all_gather(parts, x)
    return torch.cat(parts)


def reduced_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    distributed.all_reduce(y)
    return y


def among_two(x: torch.Tensor) -> torch.Tensor:
    return functional.all_gather_tensor(x, 0, distributed.new_group([0, 1])) + 0


def passed_on(x: torch.Tensor) -> torch.Tensor:
    return functional.permute_tensor(x, [*range(1, WORLD), 0], distributed.group.WORLD) + 0


def exchanged_evenly(x: torch.Tensor) -> torch.Tensor:
    return functional.all_to_all_single(x, None, None, distributed.group.WORLD) + 0


ALL = "all of the group"
CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "none": (lambda x: x + 1, 0),
    "all_reduce": (lambda x: functional.all_reduce(x, "sum", distributed.group.WORLD) + 0, 2 * BYTES * 7 // 8),
    "all_gather": (lambda x: functional.all_gather_tensor(x, 0, distributed.group.WORLD) + 0, 7 * BYTES),
    "reduce_scatter": (
        lambda x: functional.reduce_scatter_tensor(x, "sum", 0, distributed.group.WORLD) + 0,
        BYTES * 7 // 8,
    ),
    "all_gather of c10d": (gathered_in_lists, 7 * BYTES),
    "all_reduce of c10d": (reduced_in_place, 2 * BYTES * 7 // 8),
    "all_gather of two": (among_two, BYTES),
    "all_to_all": (exchanged_evenly, BYTES * 7 // 8),
    "all_to_all that passes all to one rank": (passed_on, BYTES),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rank_sends_what_a_ring_of_ranks_does(name: str) -> None:
    step, sent = CASES[name]

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return step(x)

    request = CaptureRequest(model="", device="cpu", world=WORLD, rank=0)
    traffic = capture_live(Net, (torch.zeros(COUNT),), request).traffic
    assert traffic == Traffic(calls=int(sent > 0), bytes=sent)
