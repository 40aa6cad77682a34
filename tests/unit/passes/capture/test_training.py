"""Training steps: stages, gradients, what is saved, optimizers and their state."""

from pathlib import Path

import pytest
import torch

from tmmu.errors import TmmuError
from tmmu.ir.graph import Graph
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.unused = nn.Parameter(torch.zeros(5))
    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
model = Net
inputs = (torch.zeros(2, 4),)
"""
LOSS = "def loss(model, x):\n    return model(x).square().mean()\n"


def step(folder: Path, text: str = NET + LOSS, **options: object) -> Graph:
    path = folder / "net.py"
    path.write_text(text)
    return lower_program(capture(CaptureRequest(model=str(path), **{"mode": "backward", **options}))).graph  # type: ignore[arg-type]


def names(graph: Graph, role: str) -> list[str]:
    return [n for n, r in zip(graph.notes.buffers, graph.buffers.role, strict=True) if r == role]


def test_step_has_two_stages_and_returns_loss_and_gradients(tmp_path: Path) -> None:
    graph = step(tmp_path)
    assert [s for s in graph.ops.stage if s == "update"] == []
    assert list(graph.ops.stage) == sorted(graph.ops.stage, key=["forward", "backward"].index)
    shapes = [graph.values.shape[v] for v in graph.outputs]
    assert shapes == [(), (8, 4), (8,), (4, 8), (4,)]


def test_forward_ops_save_what_their_gradients_read(tmp_path: Path) -> None:
    graph = step(tmp_path)
    saved = {(graph.ops.target[i], graph.values.shape[v]) for i, vs in enumerate(graph.ops.saves) for v in vs}
    assert ("aten.relu.default", (2, 8)) in saved
    assert all(graph.ops.stage[i] == "forward" for i, vs in enumerate(graph.ops.saves) if vs)


def test_gradients_carry_the_module_of_their_forward_op(tmp_path: Path) -> None:
    graph = step(tmp_path)
    backward = [
        graph.notes.ops.module[i]
        for i in range(len(graph.ops))
        if graph.ops.stage[i] == "backward" and graph.ops.target[i] == "aten.mm.default"
    ]
    assert set(backward) == {"up", "down"}


def test_adamw_keeps_its_moments_as_state_and_consumes_the_gradients(tmp_path: Path) -> None:
    graph = step(tmp_path, optimizer="adamw:fused")
    state = names(graph, "state")
    assert {
        "up.weight",
        "optimizer.exp_avg.up.weight",
        "optimizer.exp_avg_sq.down.bias",
        "optimizer.step.up.bias",
    } <= set(state)
    assert names(graph, "parameter") == ["unused"]
    assert [graph.values.shape[v] for v in graph.outputs] == [()]
    assert graph.ops.target[-1] == "aten._fused_adamw_.default"


def test_plain_sgd_has_no_state_but_the_weights(tmp_path: Path) -> None:
    state = names(step(tmp_path, optimizer="sgd"), "state")
    assert state == ["up.weight", "up.bias", "down.weight", "down.bias"]


def test_returned_loss_needs_no_loss_function(tmp_path: Path) -> None:
    text = NET.replace("return self.down(torch.relu(self.up(x)))", "return {'loss': self.up(x).sum()}")
    assert "backward" in step(tmp_path, text).ops.stage


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (NET, "no scalar loss"),
        (NET + "def loss(model, x):\n    return x.sum()\n", "no trainable parameter"),
        (NET + "def loss(model, x):\n    return model(y)\n", "NameError"),
    ],
)
def test_step_without_usable_loss_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TmmuError, match=says):
        step(tmp_path, text)


def test_checkpointed_layers_are_recomputed_and_not_saved(tmp_path: Path) -> None:
    text = NET.replace(
        "return self.down(torch.relu(self.up(x)))",
        "return self.down(torch.utils.checkpoint.checkpoint(lambda t: torch.relu(self.up(t)), x, use_reentrant=False))",
    ).replace("import torch\n", "import torch, torch.utils.checkpoint\n")
    graph = step(tmp_path, text + LOSS)
    again = [
        t
        for t, s in zip(graph.ops.target, graph.ops.stage, strict=True)
        if s == "backward" and t == "aten.relu.default"
    ]
    assert len(again) == 1


def test_scalar_among_returned_results_is_the_loss(tmp_path: Path) -> None:
    text = NET.replace(
        "return self.down(torch.relu(self.up(x)))", "y = self.up(x)\n        return y, y.square().mean()"
    )
    assert "backward" in step(tmp_path, text).ops.stage


def test_gradients_take_no_line_of_a_call_without_gradient(tmp_path: Path) -> None:
    text = NET.replace(
        "return self.down(torch.relu(self.up(x)))",
        "y = self.up(x)\n        with torch.no_grad():\n            table = torch.arange(8.0).cos()\n"
        "        return self.down(y + table)",
    )
    graph = step(tmp_path, text + LOSS)
    backward = [
        graph.notes.ops.source[i]
        for i in range(len(graph.ops))
        if graph.ops.stage[i] == "backward" and graph.notes.ops.module[i] == "up"
    ]
    assert backward
    assert set(backward) == {"net.py:10"}


def test_input_gradients_are_outputs(tmp_path: Path) -> None:
    text = NET.replace("inputs = (torch.zeros(2, 4),)", "inputs = lambda: (torch.zeros(2, 4, requires_grad=True),)")
    graph = step(tmp_path, text + LOSS)
    assert [graph.values.shape[v] for v in graph.outputs][-1] == (2, 4)
    assert len(graph.outputs) == len(step(tmp_path).outputs) + 1


@pytest.mark.parametrize(
    "text",
    [
        NET.replace("class Net", "torch.autograd.set_detect_anomaly(True)\nclass Net") + LOSS,
        NET
        + "def loss(model, x):\n    with torch.autograd.detect_anomaly():\n        return model(x).square().mean()\n",
        NET.replace("return self", "torch.autograd.set_detect_anomaly(True); return self") + LOSS,
    ],
)
def test_anomaly_detection_is_no_part_of_a_step(tmp_path: Path, text: str) -> None:
    """It looks at values, which a trace has none of, and changes no result."""
    assert step(tmp_path, text).ir_hash == step(tmp_path).ir_hash
    assert not torch.is_anomaly_enabled()


def test_gradients_that_are_off_are_blamed_and_not_the_parameters(tmp_path: Path) -> None:
    with pytest.raises(TmmuError, match="gradients are off") as refusal:
        step(tmp_path, NET.replace("class Net", "torch.set_grad_enabled(False)\nclass Net") + LOSS)
    assert "torch.set_grad_enabled" in refusal.value.fix
    assert torch.is_grad_enabled()
