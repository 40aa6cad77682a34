"""Losses that tmmu takes itself: of which tensor, over which dimension, compared with which input."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tmmu.errors import TmmuError
from tmmu.ir.graph import LOSS_MODULE, Graph
from tmmu.passes.capture.eager_model import EagerModel
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program

NET = """
from types import SimpleNamespace
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
    def forward(self, x):
        {body}
model = Net
def inputs():
    return (torch.zeros({shape}),)
"""


def step(folder: Path, *, shape: tuple[int, ...], body: str = "return x * self.scale", **options: object) -> Graph:
    path = folder / "net.py"
    path.write_text(NET.format(body=body, shape=list(shape)))
    request = CaptureRequest(model=str(path), **{"mode": "backward", "device": "cpu", **options})  # type: ignore[arg-type]
    return lower_program(capture(request)).graph


def last_input(graph: Graph) -> tuple[str, str, tuple[int, ...]]:
    value = graph.inputs[-1]
    return graph.notes.buffers[graph.values.buffer[value]], graph.values.dtype[value], graph.values.shape[value]


def loss_modules(graph: Graph) -> set[str]:
    pairs = zip(graph.ops.stage, graph.notes.ops.module, strict=True)
    return {module for stage, module in pairs if stage == "forward" and module.startswith(LOSS_MODULE)}


@pytest.mark.parametrize(
    ("shape", "dim", "labels"),
    [
        ((7,), 0, ()),
        ((2, 7), 1, (2,)),
        ((2, 5, 7), 2, (2, 5)),
        ((2, 7, 4, 3), 1, (2, 4, 3)),
        ((2, 7, 4, 3, 2), 1, (2, 4, 3, 2)),
    ],
)
def test_classes_are_last_in_sequences_and_second_in_images(
    tmp_path: Path, shape: tuple[int, ...], dim: int, labels: tuple[int, ...]
) -> None:
    graph = step(tmp_path, shape=shape, loss="cross_entropy")
    assert last_input(graph) == ("labels", "int64", labels)
    assert loss_modules(graph) == {f"loss:cross_entropy:dim={dim}"}
    assert graph.values.shape[graph.outputs[0]] == ()


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({}, "float32"), ({"dtype": "bfloat16"}, "bfloat16"), ({"autocast": "bf16"}, "float32")],
)
def test_target_has_the_outputs_dtype_outside_of_autocast(tmp_path: Path, options: dict[str, str], dtype: str) -> None:
    graph = step(tmp_path, shape=(2, 3), body="return x @ x.mT * self.scale", loss="mse", **options)
    assert last_input(graph) == ("target", dtype, (2, 2))
    assert loss_modules(graph) == {"loss:mse"}


def test_sum_takes_no_further_input(tmp_path: Path) -> None:
    graph = step(tmp_path, shape=(2, 3), loss="sum")
    assert last_input(graph)[0] == "x"
    assert loss_modules(graph) == {"loss:sum"}


@pytest.mark.parametrize(
    "body",
    [
        "return SimpleNamespace(hidden=x, logits=x[:, :2] * self.scale)",
        "return {'hidden': x, 'logits': x[:, :2] * self.scale}",
        "return (x > 0, 3, x[:, :2] * self.scale, x)",
        "return [None, x.long(), {'deep': x[:, :2] * self.scale}]",
    ],
)
def test_output_is_logits_or_the_first_floating_tensor(tmp_path: Path, body: str) -> None:
    assert last_input(step(tmp_path, shape=(4, 3), body=body, loss="mse"))[2] == (4, 2)


def test_loss_replaces_that_of_the_file(tmp_path: Path) -> None:
    own = "return x * self.scale\ndef loss(model, x):\n    raise ValueError('not this one')"
    assert loss_modules(step(tmp_path, shape=(2, 3), body=own, loss="sum")) == {"loss:sum"}


def test_inputs_name_is_not_taken_twice(tmp_path: Path) -> None:
    body = "return labels * self.scale\n    def other(self): pass"
    (tmp_path / "net.py").write_text(NET.format(body=body, shape=[2, 3]).replace("self, x)", "self, labels)"))
    request = CaptureRequest(model=str(tmp_path / "net.py"), mode="backward", device="cpu", loss="cross_entropy")
    assert len(lower_program(capture(request)).graph.inputs) == 2


@pytest.mark.parametrize(
    ("shape", "body", "loss", "says"),
    [
        ((), "return x * self.scale.sum()", "cross_entropy", r"needs two classes or more, and the output is \[\]"),
        ((2, 1), "return x * self.scale", "cross_entropy", r"the output is \[2, 1\] .take another --loss"),
        ((2, 1), "return (x > 0, 3)", "mse", "no floating tensor to take mse of .take another --loss, or define loss"),
        ((2, 1), "return x", "sum", "no trainable parameter"),
        ((2, 1), "return x", "hinge", "INVALID_CONFIG: no loss 'hinge' .choose one of cross_entropy, mse, sum"),
    ],
)
def test_outputs_without_that_loss_are_refused(
    tmp_path: Path, shape: tuple[int, ...], body: str, loss: str, says: str
) -> None:
    with pytest.raises(TmmuError, match=says):
        step(tmp_path, shape=shape, body=body, loss=loss)


def test_loss_of_an_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TmmuError, match=r"INVALID_CONFIG: a loss needs a training step .add --mode backward"):
        step(tmp_path, shape=(2, 3), loss="sum", mode="inference")


SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 5)
    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)))
model = Net
inputs = (torch.zeros(2, 3, 4),)
"""


def script_loss(loss: str, output: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
    """The loss as a training script has it."""
    if loss == "sum":
        return output.sum()
    assert target is not None
    if loss == "mse":
        return torch.nn.functional.mse_loss(output, target)
    return torch.nn.functional.cross_entropy(output.view(-1, output.size(-1)), target.view(-1))


@pytest.mark.parametrize("cast", [{}, {"autocast": "bf16"}, {"autocast": "fp16"}, {"dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "sum"])
def test_step_is_that_of_a_training_script(tmp_path: Path, loss: str, cast: dict[str, str]) -> None:
    (tmp_path / "net.py").write_text(SCRIPT)
    request = CaptureRequest(model=str(tmp_path / "net.py"), mode="backward", device="cpu", loss=loss, **cast)  # type: ignore[arg-type]
    dtype = torch.bfloat16 if "dtype" in cast else torch.float32
    x = torch.randn(2, 3, 4).to(dtype)
    targets = {"cross_entropy": torch.randint(5, (2, 3)), "mse": torch.randn(2, 3, 5).to(dtype)}
    eager = EagerModel(request)
    assert eager.input_names == ("x", *{"cross_entropy": ["labels"], "mse": ["target"]}.get(loss, []))
    eager.load({}, dict(zip(eager.input_names, [x, targets.get(loss)], strict=False)))  # type: ignore[arg-type]

    names: dict[str, Any] = {}
    exec(SCRIPT, names)
    net = names["Net"]().to(dtype)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(cast.get("autocast", ""))
    with torch.autocast("cpu", dtype=half or torch.bfloat16, enabled=half is not None):
        value = script_loss(loss, net(x), targets.get(loss))
    value.backward()
    expected = [value.detach(), *(parameter.grad for parameter in net.parameters())]
    for result, tensor in zip(eager.run(), expected, strict=True):
        assert result.dtype == tensor.dtype
        assert torch.equal(result, tensor)
