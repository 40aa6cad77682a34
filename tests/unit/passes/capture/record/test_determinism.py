"""Operators under ``use_deterministic_algorithms``: what raises on the target is refused, what goes another way too."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from tmmu.errors import CaptureFailed
from tmmu.ir.graph import Graph
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.pipeline import lower_program

F = nn.functional
X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
VOLUME = torch.randn(1, 2, 4, 4, 4, generator=torch.Generator().manual_seed(0))
Model = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Scaled(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.weight = model, nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x * self.weight)


def trained(model: Model, x: torch.Tensor, device: str) -> Graph:
    with fake_environment(device):
        module = Scaled(model)
        work = Workload(
            name="m", folder="", run=module, module=module, args=(torch.empty(x.shape),), loss=lambda m, x: m(x).sum()
        )
        request = CaptureRequest(model="m", device=device, mode="backward")
        return lower_program(trace(work, request, no_progress)).graph


GRID = torch.zeros(1, 4, 4, 2)
REFUSED_ON_CUDA: dict[str, tuple[Model, torch.Tensor]] = {
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, 3), X),
    "adaptive maximum": (lambda x: F.adaptive_max_pool2d(x, 3), X),
    "average in 3d": (lambda x: F.avg_pool3d(x, 2), VOLUME),
    "linear": (lambda x: F.interpolate(x[0], scale_factor=2, mode="linear"), X),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), X),
    "reflection": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), X),
    "grid": (lambda x: F.grid_sample(x, torch.zeros(1, 4, 4, 2), align_corners=False), X),
    "nll2d": (lambda x: F.cross_entropy(x, torch.zeros(1, 8, 8, dtype=torch.long)), X),
    "cumsum": (lambda x: x.cumsum(0), X),
    "median": (lambda x: x.median(0)[0], X),
    "kthvalue": (lambda x: x.kthvalue(1, 0)[0], X),
    "histc": (lambda x: x * x.detach().histc(4).sum(), X),
    "scatter_reduce": (lambda x: x.scatter_reduce(0, torch.zeros(1, 3, 8, 8, dtype=torch.long), x, "prod"), X),
}


@pytest.mark.parametrize("name", REFUSED_ON_CUDA)
def test_what_raises_on_a_gpu_alone_is_refused_for_cuda_alone(name: str) -> None:
    model, x = REFUSED_ON_CUDA[name]
    with pytest.raises(CaptureFailed, match="no deterministic kernel on cuda"):
        trained(model, x, "cuda")
    trained(model, x, "cpu")
    Scaled(model)(x).sum().backward()  # eager on a cpu takes it
    torch.use_deterministic_algorithms(True, warn_only=True)
    trained(model, x, "cuda")


@pytest.mark.parametrize(
    "model",
    [
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        lambda x: x.clone().put_(torch.tensor([0]), torch.ones(1)),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_raises_in_eager_on_a_cpu_is_refused_everywhere(model: Model, device: str) -> None:
    with pytest.raises(RuntimeError, match="deterministic"):
        model(X)
    with pytest.raises(CaptureFailed, match=f"no deterministic kernel on {device}"):
        trained(model, X, device)


ANOTHER_WAY: dict[str, tuple[Model, torch.Tensor, str, str]] = {
    "bilinear": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), X, "upsample_bilinear2d", "_unsafe_index",
    ),
    "trilinear": (
        lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), VOLUME, "upsample_trilinear3d", "_unsafe_index",
    ),
    "replication": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), X, "replication_pad2d", "_unsafe_index"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANOTHER_WAY)
def test_what_takes_another_way_on_a_gpu_is_planned_so(name: str) -> None:
    model, x, kernel, other = ANOTHER_WAY[name]

    def calls(device: str, part: str) -> bool:
        return any(part in target for target in trained(model, x, device).ops.target)

    assert (calls("cuda", kernel), calls("cuda", other)) == (False, True)
    assert (calls("cpu", kernel), calls("cpu", other)) == (True, False)
    torch.use_deterministic_algorithms(False)
    assert (calls("cuda", kernel), calls("cuda", other)) == (True, False)


def test_a_refused_gradient_names_the_line_of_its_forward_call() -> None:
    with pytest.raises(CaptureFailed, match=r"the gradient of .*test_determinism.py:\d+"):
        trained(lambda x: F.adaptive_avg_pool2d(x, 3), X, "cuda")
