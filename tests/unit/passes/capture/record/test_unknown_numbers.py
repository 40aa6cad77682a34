"""Numbers of tensors that only a run knows: logs may keep them, and nothing that decides the step may look."""

import re
from pathlib import Path

import pytest
import torch

from tmmu.errors import CaptureFailed
from tmmu.ir.program import is_formula
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.record import unknown_numbers
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture

SCRIPT = """
import math
import torch
log = []
total = 0.0
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        global total
        y = self.linear(x)
        number = y.sum().item()
        {use}
        return y{more}
model = Net
inputs = lambda: (torch.zeros(2, 4),)
"""
ALLOWED = {
    "stored": "log.append(number)",
    "formatted": "log.append(f'{number:.3f} {number}')",
    "formatted_as_integer": "log.append(f'{y.argmax().item():5d} {y.argmax().item():04x} {y.argmax().item():,}')",
    "formatted without item": "log.append(f'{y.sum():>8.3f} {y.sum()} {y.argmax():d} {y.sum().detach():e}')",
    "copied": "import copy; log.append(copy.deepcopy([number, copy.copy(number)]))",
    "summed": "total += number / 2",
    "averaged": "log.append(round(sum([number, -number]) / 2, 3))",
    "percent": "log.append('loss %s' % number)",
    "largest": "log.append(max(number, 1.0) + min(0.5, number, 2.0))",
    "factor": "y = number * y * (number ** 2 - 1)",
    "factor of a list": "torch._foreach_mul_([y, y.clone()], [-number, 2.0])",
    "fill": "y = torch.full((2,), number) + torch.full_like(y[0, :2], -number).fill_(number)",
    "comparison of elements": "y = torch.where(y > number, y, -abs(number) / 3)",
    "seen as a float": "y = y if isinstance(number, float) and not isinstance(number, int) else y.item()",
    "half of an integer is seen as a float": "y = y if isinstance(y.argmax().item() / 2, float) else y.item()",
    "integer is seen as one": "y = y if isinstance(y.argmax().item() + 1, int) else y.item()",
    "truth is seen as one": "y = y if isinstance((y.sum() > 0).item(), bool) else y.item()",
}
REFUSED = {
    "branch": "if number: y = y * 2",
    "comparison": "if number > 1: y = y * 2",
    "comparison_of_sum": "if number * 2 + 1 == 3: y = y * 2",
    "largest of a list": "log.append(max([number, 1.0]))",
    "largest of two classes": "log.append(max(number, 1))",
    "not_a_number": "log.append(math.isnan(number))",
    "shape": "y = y.new_zeros(int(number))",
    "index": "y = y[number]",
    "repetition": "log.extend([1] * number)",
    "range": "log.extend(range(number))",
    "size": "y = y.view(number)",
    "end": "y = torch.arange(number)",
    "number that torch takes twice": "y = torch.triplet_margin_loss(x, y, y + 1, eps=number)",
    "number that torch computes with": "y = torch.alpha_dropout(y, number, train=True)",
    "result of another size": "out = y.new_empty(0); torch.mul(y, number, out=out); y = out",
    "integer in a product": "y = y * y.argmax().item()",
    "rounded": "y = y * round(number, 2)",
    "probability": "y = torch.nn.functional.dropout(y, abs(number), training=True)",
    "part of a product with a gradient": "with torch.enable_grad(): y = self.linear(x) * number",
    "tensor that was changed since": "total = y.sum(); n = total.item(); total.add_(1); y = y * n",
    "tensor": "y = y + torch.tensor(number)",
    "json": "import json; log.append(json.dumps({'loss': number}))",
    "pickle": "import pickle; log.append(pickle.dumps(number))",
    "percent": "log.append('%.3f' % number)",
}


def trace(folder: Path, monkeypatch: pytest.MonkeyPatch, use: str, more: str = "") -> CapturedProgram:
    monkeypatch.chdir(folder)
    (folder / "net.py").write_text(SCRIPT.format(use=use, more=more))
    return capture(CaptureRequest(model="net.py", device="cpu"))


@pytest.mark.parametrize("name", ALLOWED)
def test_numbers_may_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert len(trace(tmp_path, monkeypatch, ALLOWED[name]).outputs) == 1
    assert "item" not in vars(torch.Tensor)


def test_numbers_may_be_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(trace(tmp_path, monkeypatch, "pass", more=", number").outputs) == 1


def test_a_number_is_told_from_a_constant_that_stands_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constant = unknown_numbers._FIRST_STAND_IN
    program = trace(tmp_path, monkeypatch, f"y = y.clamp({constant!r}, number * 2)")
    (clamp,) = (node for node in program.graph.nodes if str(node.target) == "aten.clamp.default")
    assert clamp.args[1] == constant
    assert is_formula(clamp.args[2])
    assert clamp.args[2][0].evaluate([1.5]) == 3.0


def test_numbers_in_lists_have_no_value_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use = "z = torch.ones(2); torch._foreach_mul_([z], [number]); y = y if z[0].item() else x"
    with pytest.raises(CaptureFailed, match=r"net\.py:14: ") as refusal:
        trace(tmp_path, monkeypatch, use)
    assert "control flow depends on tensor data" in refusal.value.fix


@pytest.mark.parametrize("name", REFUSED)
def test_looking_at_a_number_is_refused_at_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(CaptureFailed) as refusal:
        trace(tmp_path, monkeypatch, REFUSED[name])
    assert refusal.value.what.startswith(("net.py:14: ", "net.py:14 (json/encoder.py:"))
    assert re.search("control flow depends on tensor data|keep it a tensor, without .item", refusal.value.fix)


@pytest.mark.parametrize(("number", "form"), [("y.sum()", "5d"), ("y.argmax()", "s"), ("y.argmax().item()", "q")])
def test_a_form_that_numbers_do_not_have_is_refused_as_in_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, form: str
) -> None:
    with pytest.raises(CaptureFailed, match=r"net\.py:14: ValueError: Unknown format code"):
        trace(tmp_path, monkeypatch, f"log.append(f'{{{number}:{form}}}')")
