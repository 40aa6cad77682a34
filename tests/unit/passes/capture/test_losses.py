"""Losses that tmmu takes itself: of which tensor, over which dimension, compared with which input."""

from pathlib import Path

import pytest

from tmmu.errors import TmmuError
from tmmu.ir.graph import LOSS_MODULE, Graph
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
