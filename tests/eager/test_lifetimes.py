"""Eager's live bytes, call by call, as a trace tells them: equal to the byte to those of a run on real tensors."""

import importlib.util
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.eager.interceptor import live_bytes
from tests.eager.models import BODIES, model_text
from tmmu.eager.peak import live_levels
from tmmu.ir.lifetimes import CYCLE, EagerRun
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture


def traced(path: Path, mode: str) -> EagerRun:
    eager = capture(CaptureRequest(model=str(path), mode=mode, device="cpu")).eager
    assert eager is not None
    return eager


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("beside", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step_of(path: Path, mode: str) -> tuple[Callable[[], Any], torch.nn.Module, torch.Tensor]:
    """A step of the file's model on real tensors, in plain torch; the model and its input."""
    file = loaded(path)
    net, x = file.model, file.inputs()
    net.train(mode != "inference")

    def step() -> Any:
        if mode == "inference":
            with torch.no_grad():
                return net(x)
        value = file.loss(net, x)
        value.backward()
        return value.detach(), *(parameter.grad for parameter in net.parameters())

    return step, net, x


def real_run(path: Path, mode: str) -> tuple[list[int], list[str]]:
    """Live bytes after each call of that step, and the calls' names."""
    step, net, x = step_of(path, mode)
    return live_bytes(step, [*net.parameters(), *net.buffers(), x])


@pytest.mark.parametrize("mode", ["inference", "backward"])
@pytest.mark.parametrize("name", list(BODIES))
def test_live_bytes_are_those_of_a_real_run(tmp_path: Path, name: str, mode: str) -> None:
    path = tmp_path / "net.py"
    path.write_text(model_text(name))
    eager = traced(path, mode)
    expected, calls = real_run(path, mode)
    actual = live_levels(eager.storages, eager.calls)
    assert max(actual) == max(expected)
    if len(actual) != len(expected):  # autograd replays a view that was written to as it was made, eager by its strides
        assert levels_that_differ(actual) == levels_that_differ(expected)
        return
    differing = [(i, calls[i], a, b) for i, (a, b) in enumerate(zip(actual, expected, strict=True)) if a != b]
    assert not differing


def levels_that_differ(levels: list[int]) -> list[int]:
    """Without those that are what the level before was."""
    return [level for level, _ in groupby(levels)]


def holders(tmp_path: Path, name: str, mode: str = "inference") -> dict[str, str]:
    path = tmp_path / "net.py"
    path.write_text(model_text(name))
    table = traced(path, mode).storages
    rows = reversed(list(zip(table.maker, table.holder, strict=True)))
    return {maker: holder for maker, holder in rows if holder}  # the first of each maker


def test_function_that_keeps_a_local_is_named_with_its_line(tmp_path: Path) -> None:
    held = holders(tmp_path, "locals")
    line = model_text("locals").splitlines().index("        a = self.first(x)") + 1
    assert held["aten.addmm.default"] == f"forward of net.py:{line} until it returns"


def test_function_that_binds_its_name_again_keeps_nothing(tmp_path: Path) -> None:
    assert holders(tmp_path, "rebound") == {}


def test_inner_function_is_named_and_not_its_caller(tmp_path: Path) -> None:
    assert holders(tmp_path, "helper function")["aten.addmm.default"].startswith("widen of net.py:")


def test_cycle_is_named(tmp_path: Path) -> None:
    assert CYCLE in holders(tmp_path, "cycle").values()
    assert CYCLE not in holders(tmp_path, "locals").values()


def test_name_that_is_bound_again_later_is_named_by_that_line(tmp_path: Path) -> None:
    held = holders(tmp_path, "attributes")
    line = model_text("attributes").splitlines().index("        self.last = y") + 1
    assert held["aten.addmm.default"] == f"forward of net.py until line {line}"


def test_locals_of_forward_make_eager_four_times_the_plan(tmp_path: Path) -> None:
    """A chain of four results of 4 MiB, each kept by a local: the plan has one, eager all."""
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        a = x + 1; b = a * 2; c = b * 3; d = c * 4\n"
        "        return d.sum()\n"
        "model = Net\n"
        "def inputs(): return (torch.ones(1024, 1024),)\n"
    )
    eager = traced(tmp_path / "net.py", "inference")
    assert max(live_levels(eager.storages, eager.calls)) == 4 * (4 << 20) + 4
