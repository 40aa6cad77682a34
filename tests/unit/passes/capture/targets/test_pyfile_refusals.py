"""Python files that cannot be planned: the refusal points at the line and says what to write."""

from pathlib import Path

import pytest

from tests.unit.passes.capture.targets.pyfiles import LINEAR, refusal_of
from tmmu.errors import CaptureFailed, InvalidConfig, UnsupportedOp
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nowhere_to_be_found\n", "net.py:1: ModuleNotFoundError"),
        ("model = 1 +\n", "net.py:1: invalid syntax"),
        ("x = 1\n", "defines no `model`"),
        (LINEAR + "model = Net\n", "defines no `inputs`"),
        (LINEAR + "model = 3\ninputs = ()\n", "`model` is neither"),
        (LINEAR + "model = Net\ninputs = 3\n", "`inputs` is no tensor"),
        (LINEAR + "model = Net\ninputs = torch.zeros(2, 5)\n", "net.py:9: RuntimeError"),
        (LINEAR + "model = Net\ninputs = (torch.zeros(2, 4), 1)\n", "TypeError"),
        ("raise SystemExit(3)\n", "net.py:1: SystemExit"),
        ("model = lambda: (lambda x: None)\ninputs = 1\n", "`inputs` is no tensor"),
    ],
)
def test_untraceable_files_say_why_and_in_which_line(tmp_path: Path, text: str, says: str) -> None:
    error = refusal_of(tmp_path, text)
    assert isinstance(error, CaptureFailed)
    assert says in error.what
    assert "\n" not in str(error)


def test_hints_name_the_models_of_the_file_and_what_a_model_takes(tmp_path: Path) -> None:
    assert refusal_of(tmp_path, LINEAR).fix.endswith("FILE.py:NAME, such as Net")
    assert "--input x=dtype[shape]" in refusal_of(tmp_path, LINEAR + "model = Net\n").fix


def test_control_flow_on_data_names_the_line(tmp_path: Path) -> None:
    text = (
        "import torch\ndef model():\n    def f(x):\n        if x.sum() > 0:\n            return x\n        return -x\n"
    )
    error = refusal_of(tmp_path, text + "    return f\ninputs = torch.randn(2)\n")
    assert error.what.startswith("net.py:4: DataDependentOutputException")
    assert "torch.where" in error.fix


def test_model_without_tensor_outputs_is_refused(tmp_path: Path) -> None:
    error = refusal_of(tmp_path, "import torch\ndef model():\n    return lambda x: None\ninputs = torch.zeros(2)\n")
    assert "returns no tensor" in error.what


def test_nested_control_flow_operators_are_unsupported(tmp_path: Path) -> None:
    text = (
        "import torch\ndef model():\n    def f(x):\n"
        "        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))\n    return f\n"
    )
    error = refusal_of(tmp_path, text + "inputs = torch.zeros(2)\n")
    assert isinstance(error, UnsupportedOp), error


def test_sparse_tensors_are_unsupported(tmp_path: Path) -> None:
    text = "import torch\ndef model():\n    return lambda x: x.to_sparse()\ninputs = torch.zeros(2, 2)\n"
    assert refusal_of(tmp_path, text).code in ("UNSUPPORTED_OP", "CAPTURE_FAILED")


THREADED = (
    "from concurrent.futures import ThreadPoolExecutor as P\n        with P() as p:\n"
    "            return p.submit(torch.add, x, x).result() + 1"
)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return x.to(torch.float16) @ w", "mixed dtypes"),
        ("return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()", "quantized"),
        (THREADED, "another thread"),
        ("return x * 2 if torch.empty(1).item() > 0 else x", "DataDependent"),
        ("return x * 2 if torch.nn.init.normal_(torch.zeros(1)).item() > 0 else x", "DataDependent"),
    ],
)
def test_calls_that_a_real_run_refuses_or_cannot_repeat_are_refused(tmp_path: Path, body: str, says: str) -> None:
    text = f"import torch\ndef model():\n    def f(x, w):\n        {body}\n    return f\n"
    assert says in refusal_of(tmp_path, text + "inputs = (torch.zeros(4, 4), torch.zeros(4, 4))\n").what


@pytest.mark.parametrize(
    "raised",
    [
        "raise GeneratorExit('leaving')",
        "raise type('Rude', (BaseException,), {})('rude')",
        "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()",
    ],
)
def test_exceptions_of_any_kind_end_in_one_line(tmp_path: Path, raised: str) -> None:
    error = refusal_of(tmp_path, f"x = 1\n{raised}\n")
    assert isinstance(error, CaptureFailed)
    assert error.what.startswith("net.py:2: ")


def test_missing_file_and_missing_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        capture(CaptureRequest(model=str(tmp_path / "none.py")))
    assert isinstance(refusal_of(tmp_path, LINEAR, "Nat", inputs=("x=float32[1]",)), InvalidConfig)
    with pytest.raises(InvalidConfig):
        capture(CaptureRequest(model="model.onnx"))


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("if not torch.isfinite(loss): return", "guards and comparisons of a loop, leave out of the step"),
        (
            "if loss.item() < best[-1]: best.append(loss.item())",
            "guards and comparisons of a loop, leave out of the step",
        ),
        ("loss.detach().numpy().sum()", "leave it out of what is planned"),
    ],
)
def test_line_of_a_loop_that_needs_values_is_told_to_be_left_out(tmp_path: Path, line: str, hint: str) -> None:
    step = f"def step(x):\n    loss = (x * w).sum()\n    {line}\n"
    text = "import torch\nbest = [1.0]\ninputs = torch.ones(4)\nw = torch.randn(4)\n" + step
    assert hint in refusal_of(tmp_path, text, "step", mode="step").fix


@pytest.mark.parametrize("line", ["", "model = 3", "model = Net()"])
def test_file_with_a_step_and_no_model_to_call_is_told_to_name_the_step(tmp_path: Path, line: str) -> None:
    step = "def step(batch):\n    return batch * 2\n"
    assert refusal_of(tmp_path, LINEAR + step + line).fix.startswith("to plan its step, name it: FILE.py:step; or ")
    assert "its step" not in refusal_of(tmp_path, LINEAR + line).fix
