"""``tmmu.compile`` of models that put results on the host: where those lie, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tmmu
from tests.api.test_compile import Structured
from tests.api.test_plan import X
from tmmu.api.compile import _require_plans_kernels
from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.call_form import FormNote
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture_live


def captured_on_gpu(build: Callable[[torch.Tensor, torch.Tensor], Any], note: FormNote) -> CapturedProgram:
    return capture_live(
        Structured(build).eval(), X, CaptureRequest(model="", mode="inference", device="cuda"), note=note
    )


def test_results_that_the_model_puts_on_the_host_are_noted() -> None:
    note = FormNote()
    captured_on_gpu(lambda y, x: (y, y.cpu(), {"x": x, "copy": x.cpu()}), note)
    assert note.form is not None
    first, second, named = note.form.template
    assert [first.on_host, second.on_host, named["x"].on_host, named["copy"].on_host] == [False, True, False, True]


def test_results_lie_where_the_model_puts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU is its own host: ``cpu()`` stands in for a copy that one can tell from its original."""
    note = FormNote()
    captured_on_gpu(lambda y, x: (y, y.cpu()), note)
    compiled = tmmu.compile(Structured(lambda y, x: (y, y + 0)).eval(), X)
    assert note.form is not None
    compiled._form = replace(compiled._form, template=note.form.template)
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.double)
    assert [result.dtype for result in compiled(X)] == [torch.float32, torch.float64]


def test_model_that_computes_on_the_host_is_refused_by_its_line() -> None:
    captured = captured_on_gpu(lambda y, x: y.cpu().to(torch.float64), FormNote())
    _require_plans_kernels(captured)
    captured = captured_on_gpu(lambda y, x: y.cpu().softmax(-1), FormNote())
    with pytest.raises(UnsupportedOp, match=r"aten\._softmax\.default at test_compile_host\.py:\d+ runs on the host"):
        _require_plans_kernels(captured)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_cpu_is_the_host_of_a_model_whose_input_lies_on_a_gpu(device: str) -> None:
    """Elsewhere it is what a script without a GPU calls its only device."""
    with FakeTensorMode():
        x = torch.empty(X.shape, device=device)
    model = Structured(lambda y, x: y.to("cpu")).eval()
    captured = capture_live(model, x, CaptureRequest(model="", mode="inference", device="cuda"))
    assert captured.eager is not None
    assert len(captured.eager.host) == (device == "cuda")
