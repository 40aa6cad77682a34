"""Values that numbers alone decide are known before anything is loaded; what is drawn or loaded is not."""

from pathlib import Path

import torch

from tmmu.passes.capture.constants import constant_values, meta_weights, weight_names
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture

NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.register_buffer("scale", torch.arange(4) / 3)
        self.register_buffer("noise", torch.randn(4))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("ramp", torch.ones(4))
        self.ramp[1:].mul_(2.0)
    def forward(self, x):
        self.count.add_(1)
        return self.line(x) * self.scale + self.noise * torch.tensor([1.0, 2.0, 3.0, 4.0]) + self.ramp
model = Net
inputs = (torch.zeros(2, 4),)
"""

WIDE = """
def model():
    torch.set_default_dtype(torch.float64)
    try:
        return Net()
    finally:
        torch.set_default_dtype(torch.float32)
"""


def test_buffers_and_constants_of_numbers_have_values(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    program = capture(CaptureRequest(model=str(tmp_path / "net.py"), device="cpu"))
    values = constant_values(program)
    assert values["scale"].equal(torch.arange(4) / 3)
    assert values["ramp"].tolist() == [1, 2, 2, 2]
    assert values["count"].tolist() == [0]
    assert [t.tolist() for name, t in values.items() if name.startswith("constant_")] == [[1, 2, 3, 4]]
    assert not {"noise", "line.weight", "line.bias", "x"} & set(values)
    assert {"noise", "line.weight", "line.bias", "scale", "count"} <= set(weight_names(program))
    assert "x" not in weight_names(program)


def test_model_of_another_default_dtype_has_values_of_that_dtype(tmp_path: Path) -> None:
    before = torch.get_default_dtype()
    text = NET.replace("model = Net", WIDE)
    (tmp_path / "net.py").write_text(text.replace("torch.zeros(2, 4)", "torch.zeros(2, 4, dtype=torch.float64)"))
    values = constant_values(capture(CaptureRequest(model=str(tmp_path / "net.py"), device="cpu")))
    assert values["scale"].equal(torch.arange(4, dtype=torch.float64) / 3)
    assert torch.get_default_dtype() == before


def test_meta_weights_have_the_declared_shape_and_stride(tmp_path: Path) -> None:
    turned = NET.replace("torch.ones(4))", "torch.ones(4))\n        self.x = nn.Parameter(torch.zeros(2, 4).t())")
    (tmp_path / "net.py").write_text(turned.replace("return self.line(x)", "return self.x.sum() + self.line(x)"))
    forms = meta_weights(capture(CaptureRequest(model=str(tmp_path / "net.py"), device="cpu")))
    assert {"noise", "line.weight", "scale", "count", "ramp", "x"} <= set(forms)
    assert (forms["x"].shape, forms["x"].stride(), forms["x"].dtype) == ((4, 2), (1, 4), torch.float32)
    assert all(form.is_meta for form in forms.values())
