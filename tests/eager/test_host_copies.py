"""Copies to the host and back, as a GPU makes them: their bytes are the host's, and go when the last reference does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.eager.interceptor import Interceptor
from tests.eager.test_lifetimes import loaded
from tmmu.codec.read import read_graph
from tmmu.eager.peak import eager_figures, live_levels
from tmmu.ir.graph import encode_graph
from tmmu.ir.lifetimes import EagerRun
from tmmu.judge.call_rules import lifetimes
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

COUNT = 64 * 64 * 4
BODIES = {
    "kept on the host": "y = self.first(x); kept = y.cpu(); y = self.second(y); return y + kept.cuda()",
    "copied twice": "y = self.first(x); a = y.cpu(); b = y.cpu(); y = self.second(y) * 2; return y + b.cuda()",
    "dropped at once": "y = self.first(x); y.cpu(); return self.second(y)",
    "list of layers": (
        "kept = []\n"
        "        for layer in (self.first, self.second, self.first):\n"
        "            x = layer(x); kept.append(x.detach().cpu())\n"
        "        return x + kept[0].cuda() + kept[1].cuda()"
    ),
    "copy of a copy": "y = self.first(x).cpu(); z = y.cpu(); return self.second(z.cuda()) + y.cuda()",
}


def text_of(body: str, loss: str = "net(x).sum()", header: str = 'DEVICE = "cuda"') -> str:
    return (
        "import torch\n"
        f"{header}\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)\n"
        "    def forward(self, x):\n"
        f"        {body}\n"
        "model = Net()\n"
        "def inputs(): return (torch.zeros(64, 64),)\n"
        f"def loss(net, x): return {loss}\n"
    )


def traced(tmp_path: Path, text: str, mode: str = "inference", device: str = "cuda") -> EagerRun:
    path = tmp_path / "net.py"
    path.write_text(text)
    eager = capture(CaptureRequest(model=str(path), mode=mode, device=device)).eager
    assert eager is not None
    return eager


class _Places(TorchFunctionMode):
    """Real copies where a GPU would make them, of which the interceptor leaves those to the host out."""

    def __init__(self, interceptor: "_OneSided") -> None:
        super().__init__()
        self._interceptor = interceptor
        self._host: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.Tensor.cpu, torch.Tensor.cuda):
            return func(*args, **(kwargs or {}))
        to_host = func is torch.Tensor.cpu
        if to_host == (id(args[0].untyped_storage()) in self._host):
            return args[0]
        with self._interceptor.only(device=not to_host):
            copy = torch.ops.aten._to_copy.default(args[0])
        if to_host:
            self._host.add(id(copy.untyped_storage()))
        return copy


class _OneSided(Interceptor):
    counts = True

    @contextmanager
    def only(self, *, device: bool) -> Iterator[None]:
        self.counts = device
        yield
        self.counts = True

    def _watch(self, storage: Any, size: int) -> None:
        super()._watch(storage, size if self.counts else 0)


@pytest.mark.parametrize("name", list(BODIES))
def test_live_bytes_of_the_device_are_those_of_a_real_run_with_copies(tmp_path: Path, name: str) -> None:
    eager = traced(tmp_path, text_of(BODIES[name]))
    file = loaded(tmp_path / "net.py")
    (x,) = file.inputs()
    interceptor = _OneSided([*file.model.parameters(), x])
    with torch.no_grad(), interceptor, _Places(interceptor):
        file.model(x)
    assert live_levels(eager.storages, eager.calls) == interceptor.live
    assert max(live_levels(eager.host, eager.calls)) >= COUNT


@pytest.mark.parametrize(
    ("expression", "copies"),
    [
        ("y.to('cpu')", 1),
        ("y.to(torch.device('cpu'))", 1),
        ("y.to(device='cpu', dtype=torch.float64)", 1),
        ("y.cpu().cpu()", 1),
        ("y.cpu().to('cpu')", 1),
        ("y.cpu().float()", 1),
        ("y.cpu().double()", 2),
        ("y.cpu().to(y.cpu())", 2),
        ("y.cpu()[1:].T", 1),
        ("y.cpu() * 2", 2),
        ("torch.zeros_like(y.cpu())", 2),
        ("torch.zeros(64, 64, device='cpu')", 1),
        ("y.to(y.device)", 0),
        ("y.to(DEVICE)", 0),
        ("y.to('cuda:0')", 0),
        ("y.to(0)", 0),
        ("y.to(torch.device('cuda', 0), non_blocking=True)", 0),
        ("y.to(x)", 0),
        ("y.to(torch.float32)", 0),
        ("y.double()", 0),
        ("y.cuda()", 0),
        ("torch.zeros(64, 64, device=DEVICE)", 0),
    ],
)
def test_what_is_named_the_host_is_made_there(tmp_path: Path, expression: str, copies: int) -> None:
    body = f"x = x.to(DEVICE); y = self.first(x); kept = {expression}; return y * 1"
    assert len(traced(tmp_path, text_of(body)).host) == copies


@pytest.mark.parametrize("back", ["to('cuda')", "cuda()", "to(y)", "to(y.device)", "to(y.device, torch.float32)"])
def test_copy_back_is_of_the_device_again(tmp_path: Path, back: str) -> None:
    eager = traced(tmp_path, text_of(f"y = self.first(x.cuda()); z = y.cpu().{back}; return y + z"))
    assert eager.host.bytes == (COUNT,)
    assert eager.storages.maker == ("aten.addmm.default", "aten._to_copy.default", "aten.add.Tensor")
    assert eager.host.death[0] == eager.host.birth[0] + 2


def test_program_of_one_device_calls_it_cpu(tmp_path: Path) -> None:
    """A script on a machine without a GPU: what it calls the device is the one that is planned for."""
    header = 'DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")'
    text = text_of("return self.second(self.first(x.to(DEVICE)).to('cpu'))", header=header)
    assert traced(tmp_path, text).host.bytes == ()
    text = text_of("return self.second(self.first(x.to(DEVICE)).cpu())", header=header)
    assert traced(tmp_path, text).host.bytes == (COUNT,)


def test_on_the_cpu_no_copy_is_made(tmp_path: Path) -> None:
    eager = traced(tmp_path, text_of("y = self.first(x); return y.cpu() + y.to('cpu') + y.cuda()"), device="cpu")
    assert "aten._to_copy.default" not in eager.storages.maker
    assert eager.host.bytes == ()


@pytest.mark.parametrize("pinned", [False, True])
def test_saved_tensors_on_the_host_leave_the_device(tmp_path: Path, pinned: bool) -> None:
    """The hooks run inside of operators and of backward, where torch has no modes on."""
    text = text_of("return self.second(self.first(x).relu()).relu().sum()", loss="saved(net, x)")
    text += (
        f"def saved(net, x):\n    with torch.autograd.graph.save_on_cpu(pin_memory={pinned}):\n        return net(x)\n"
    )
    eager = traced(tmp_path, text, "backward")
    kept = [size for size, birth in zip(eager.host.bytes, eager.host.birth, strict=True) if size == COUNT]
    assert len(kept) >= 3  # input, what the first relu gives (twice), what the second does
    table = eager.storages
    begin = table.birth[table.maker.index("aten.ones_like.default")]  # of backward
    rows = zip(table.birth, table.death, table.bytes, strict=True)
    assert [size for birth, death, size in rows if birth < begin < death] == [4]  # the loss


def test_gradient_of_a_host_copy_goes_the_way_back(tmp_path: Path) -> None:
    eager = traced(tmp_path, text_of("return self.first(x)", loss="(net(x).cpu() * 3).sum()"), "backward")
    assert eager.storages.maker.count("aten._to_copy.default") == 1
    assert eager.host.maker[0] == "aten._to_copy.default"
    assert {"aten.mul.Tensor", "aten.sum.default", "aten.ones_like.default"} <= set(eager.host.maker)


def test_average_on_the_host_is_no_memory_of_the_device(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "net = torch.nn.Linear(64, 64).cuda()\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "average = {name: value.detach().cpu().clone() for name, value in net.named_parameters()}\n"
        "def inputs(): return torch.zeros(8, 64).cuda()\n"
        "def step(x):\n"
        "    net(x).square().mean().backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
        "    for name, value in net.named_parameters():\n"
        "        average[name].mul_(0.9).add_(value.detach().cpu(), alpha=0.1)\n"
    )
    run = capture(CaptureRequest(model=f"{path}:step", mode="step", device="cuda")).eager
    assert run is not None
    parameters = COUNT + 64 * 4
    assert run.persistent_bytes == parameters + 8 * 64 * 4
    assert run.host.bytes == (COUNT, 64 * 4)


def test_figures_and_file_name_the_host(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(text_of(BODIES["kept on the host"]))
    request = CaptureRequest(model=str(tmp_path / "net.py"), mode="inference", device="cuda")
    graph = lower_program(capture(request)).graph
    figures = eager_figures(graph, "inference")
    assert figures is not None
    assert figures.host_bytes == COUNT
    assert read_graph(encode_graph(graph)) == graph
    assert list(lifetimes(graph)) == []


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_data_that_a_loader_draws_from_is_no_memory_of_a_gpu(tmp_path: Path, device: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "net = torch.nn.Linear(64, 64)\n"
        "loader = DataLoader(TensorDataset(torch.zeros(1000, 64)), batch_size=8, shuffle=True)\n"
        "batch = next(iter(loader))\n"
        "def step(batch):\n"
        "    net.zero_grad(); net(batch[0]).square().mean().backward()\n"
    )
    run = capture(CaptureRequest(model=f"{path}:step", mode="step", device=device)).eager
    assert run is not None
    data = 1000 * 64 * 4 if device == "cpu" else 0
    assert run.persistent_bytes == (COUNT + 64 * 4) + 8 * 64 * 4 + data
    assert run.host.bytes == ()
