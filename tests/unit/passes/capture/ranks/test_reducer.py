"""The reducer in Python beside torch's own, in a group of one real process: bits, buckets, bytes at the peak."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.collection import collections_of_new_objects
from tmmu.passes.capture.ranks.process_group import process_group
from tmmu.passes.capture.ranks.reducer import PythonReducer, reducers_in_python
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program
from tmmu.runtime.observe.cpu_allocations import CpuAllocationLog

distributed = pytest.importorskip("torch.distributed")
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "static views": {"static_graph": True, "gradient_as_bucket_view": True},
    "one bucket": {"bucket_cap_mb": 25},
}

LOGGED = (4, 8)
"""The first step of which allocs are noted, and the one behind the last."""


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Trained:
    """What some steps have left, and the most bytes that were live in each of the last ones."""

    weights: list[torch.Tensor]
    buckets: list[int]
    peaks: list[int]


def trained(options: dict[str, Any], *, in_python: bool, keeps_gradients: bool = False) -> Trained:
    """Steps of a wrapped model, the second without reduction."""
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU())]
    net = nn.Sequential(*layers).to(memory_format=torch.preserve_format)
    with reducers_in_python() if in_python else nullcontext():
        wrapped = nn.parallel.DistributedDataParallel(net, **({"bucket_cap_mb": 0.02} | options))
    assert isinstance(wrapped.reducer, PythonReducer) == in_python
    update, x, peaks = torch.optim.SGD(net.parameters(), lr=0.1), torch.randn(8, 48), []
    with collections_of_new_objects():
        for step in range(LOGGED[1]):
            log = CpuAllocationLog()
            gc.collect()
            skips = step == 2 and not options.get("static_graph")
            with ExitStack() as blocks:
                if step >= LOGGED[0]:
                    blocks.enter_context(log)
                    blocks.enter_context(log.in_call(0))
                if skips:
                    blocks.enter_context(wrapped.no_sync())
                wrapped(x).sum().backward()
                if step != 2:
                    update.step()
                    update.zero_grad(set_to_none=not keeps_gradients)
            if step >= LOGGED[0]:
                peaks.append(peak_of(log))
    return Trained([p.detach().clone() for p in net.parameters()], bucket_sizes(wrapped), peaks)


def peak_of(log: CpuAllocationLog) -> int:
    live: dict[int, int] = {}
    peak = 0
    for event in log.events:
        if event.bytes > 0:
            live[event.address] = event.bytes
        else:
            live.pop(event.address, None)
        peak = max(peak, sum(live.values()))
    return peak


def bucket_sizes(wrapped: Any) -> list[int]:
    if isinstance(wrapped.reducer, PythonReducer):
        return [bucket.gradients.nbytes for bucket in wrapped.reducer.buckets]
    return [*map(int, wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(","))]


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("keeps_gradients", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_it_does_what_torchs_own_does(form: str, keeps_gradients: bool) -> None:
    own = trained(FORMS[form], in_python=False, keeps_gradients=keeps_gradients)
    python = trained(FORMS[form], in_python=True, keeps_gradients=keeps_gradients)
    assert all(map(torch.equal, python.weights, own.weights))
    assert python.buckets == own.buckets
    assert (len(own.buckets) > 1) == (form != "one bucket")
    assert min(python.peaks) == min(own.peaks), "now and then the profiler has a free behind the alloc after it"


MODEL = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
inputs = torch.zeros(4, 64)
def model():
    wrapped = DistributedDataParallel(net, bucket_cap_mb=0.01, **OPTIONS)
    HOOK
    return wrapped
optimizer = torch.optim.SGD(net.parameters())
wrapped = None
def step(x):
    global wrapped
    wrapped = wrapped or model()
    wrapped(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def graph_of(folder: Path, options: str = "{}", hook: str = "", **request: Any) -> Any:
    path = folder / "replicas.py"
    path.write_text(MODEL.replace("OPTIONS", options).replace("HOOK", hook))
    mode = {"mode": "backward", "loss": "sum"} | request
    target = str(path) + (":step" if mode["mode"] == "step" else "")
    return lower_program(capture(CaptureRequest(model=target, world=4, device="cpu", **mode))).graph


def test_buckets_are_memory_that_lasts_and_each_is_reduced(tmp_path: Path) -> None:
    graph = graph_of(tmp_path)
    sizes = dict(zip(graph.notes.buffers, graph.buffers.bytes, strict=True))
    assert sizes["reducer.buckets.0.gradients"] == 4 * 2 * (64 * 64 + 64)
    assert graph.ops.target.count("c10d.allreduce_.default") == 1, "the first step has one bucket"
    assert graph.ops.target.count("aten.mul.out") == graph.ops.target.count("aten.copy_.default") == 4


def test_a_step_of_the_users_own_has_the_buckets_of_later_steps(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, mode="step", loss=None)
    assert graph.ops.target.count("c10d.allreduce_.default") == 2
    buckets = [n for n in graph.notes.buffers if n.endswith(".gradients")]
    assert buckets == [f"wrapped.reducer.buckets.{number}.gradients" for number in range(2)]


@pytest.mark.parametrize(
    ("options", "hook", "said"),
    [
        ('{"find_unused_parameters": True}', "", "with unused parameters"),
        ("{}", "wrapped.register_comm_hook(None, lambda state, bucket: None)", "with a hook for its communication"),
        (
            "{}",
            "wrapped.reducer._set_optimizer_in_backward()",
            "with what calls _set_optimizer_in_backward of its reducer",
        ),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(tmp_path: Path, options: str, hook: str, said: str) -> None:
    with pytest.raises(UnsupportedOp, match=f"DistributedDataParallel {said}"):
        graph_of(tmp_path, options, hook)


def test_torchs_own_is_there_again_afterwards() -> None:
    own = distributed.Reducer
    with process_group(2, 0), reducers_in_python():
        assert distributed.Reducer is PythonReducer
    assert distributed.Reducer is own


SHARED_OUT = """
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
net = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3))))
optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.AdamW)
x = torch.randn(8, 64)
def step():
    loss = net(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""


def test_ranks_among_which_parameters_are_shared_out_are_kinds(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARED_OUT)
    request = CaptureRequest(model=f"{tmp_path / 'train.py'}:step", mode="step", world=2, rank=0)
    programs = [capture(replace(request, rank=rank)) for rank in range(2)]
    assert [program.rank_kinds.kind_of for program in programs] == [(0, 1)] * 2
    states = [sum(s.bytes for s in program.storages if s.role in {"state", "constant"}) for program in programs]
    assert states[0] - states[1] >= 2 * 64 * 64 * 4
