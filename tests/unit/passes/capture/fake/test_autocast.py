"""Mixed precision on the cuda target: what runs in half precision, what in single, on a machine without a GPU."""

import pytest
import torch

from tmmu.ir.graph import Graph
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.pipeline import lower_program


def graph_of(device: str, region: str, dtype: torch.dtype | None = torch.bfloat16) -> Graph:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(region, dtype=dtype):
            return torch.nn.functional.layer_norm(x @ w, (8,)).exp()

    with fake_environment(device):
        inputs = (torch.empty(4, 8), torch.empty(8, 8))
        work = Workload(name="cast", folder="", run=run, args=inputs)
        return lower_program(trace(work, CaptureRequest(model="cast", device=device), no_progress)).graph


def result_types(graph: Graph) -> dict[str, str]:
    return {t: graph.values.dtype[w[0]] for t, w in zip(graph.ops.target, graph.ops.writes, strict=True)}


@pytest.mark.parametrize("region", ["cuda", "cpu"])
def test_products_on_cuda_are_half_and_norms_and_exponentials_single(region: str) -> None:
    types = result_types(graph_of("cuda", region))
    assert types["aten.mm.default"] == "bfloat16"
    assert types["aten.native_layer_norm.default"] == "float32"
    assert types["aten.exp.default"] == "float32"


def test_default_dtype_on_cuda_is_the_gpus() -> None:
    assert result_types(graph_of("cuda", "cuda", None))["aten.mm.default"] == "float16"


def test_exponentials_on_the_cpu_stay_half() -> None:
    types = result_types(graph_of("cpu", "cpu"))
    assert types["aten.mm.default"] == "bfloat16"
    assert types["aten.exp.default"] == "bfloat16"


def test_autocast_is_torchs_own_again_afterwards() -> None:
    before = torch.amp.autocast_mode.autocast.__init__
    with fake_environment("cuda"):
        assert torch.amp.autocast_mode.autocast.__init__ is not before
    assert torch.amp.autocast_mode.autocast.__init__ is before
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).exp().dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("device", "region", "dtype", "ops"),
    [
        ("cuda", False, torch.float32, ["aten._softmax.default"]),
        ("cuda", True, None, ["aten._softmax.default"]),
        ("cuda", False, None, ["aten._softmax.default"]),
        ("cpu", False, torch.float32, ["aten._to_copy.default", "aten._softmax.default"]),
    ],
)
def test_softmax_to_single_precision_is_one_operator_on_cuda(
    device: str, region: bool, dtype: torch.dtype | None, ops: list[str]
) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", enabled=region):
            return torch.softmax(x, -1, dtype=dtype)

    with fake_environment(device):
        work = Workload(name="soft", folder="", run=run, args=(torch.empty(4, 8, dtype=torch.bfloat16),))
        graph = lower_program(trace(work, CaptureRequest(model="soft", device=device), no_progress)).graph
    assert list(graph.ops.target) == ops
    assert graph.values.dtype[graph.outputs[0]] == ("float32" if region or dtype else "bfloat16")


@pytest.mark.parametrize(("device", "statistics"), [("cuda", "float32"), ("cpu", "bfloat16")])
def test_layer_norm_in_half_precision_keeps_its_statistics_as_the_kernel_does(device: str, statistics: str) -> None:
    with fake_environment(device):
        x, w = torch.empty(4, 8, dtype=torch.bfloat16), torch.empty(8, dtype=torch.bfloat16)
        run = lambda x, w: torch.native_layer_norm(x, (8,), w, w, 1e-5)  # noqa: E731
        work = Workload(name="norm", folder="", run=run, args=(x, w))
        graph = lower_program(trace(work, CaptureRequest(model="norm", device=device), no_progress)).graph
    assert [graph.values.dtype[v] for v in graph.outputs] == ["bfloat16", statistics, statistics]
