"""Values that the model's file gives: control flow follows them, and the program says which."""

from pathlib import Path

import pytest

from tests.unit.passes.known_values import BODIES, FILE
from tmmu.errors import CaptureFailed
from tmmu.passes.capture.constants import assumed_inputs
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture


def traced(folder: Path, body: str, **options: object) -> CapturedProgram:
    path = folder / "net.py"
    path.write_text(FILE.format(body=body))
    return capture(CaptureRequest(model=str(path), device="cpu", **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BODIES)
def test_values_of_the_file_decide_control_flow_and_shapes(tmp_path: Path, name: str) -> None:
    body, assumed = BODIES[name]
    program = traced(tmp_path, body)
    assert sorted(program.assumed) == sorted(assumed)
    assert sorted(assumed_inputs(program)) == sorted({"pad"} & set(assumed))


@pytest.mark.parametrize("name", [name for name, (_, assumed) in BODIES.items() if assumed])
def test_symbolic_inputs_refuse_what_depends_on_values(tmp_path: Path, name: str) -> None:
    with pytest.raises(CaptureFailed, match=r"net\.py:12"):
        traced(tmp_path, BODIES[name][0], symbolic_inputs=True)


UNKNOWN = (
    "return x[x > 0]", "return x if x.sum() > 0 else x + 1", "return x[self.weight > 0]",
    "return x if torch.equal(x, x + 1) else x[:1]", "return x if torch.allclose(self.weight, pad * 1.0) else x[:1]",
    "return x.tensor_split(x[0].long())[0]",
)  # fmt: skip


@pytest.mark.parametrize("body", UNKNOWN)
def test_random_draws_and_weights_have_no_value(tmp_path: Path, body: str) -> None:
    with pytest.raises(CaptureFailed, match=r"net\.py:12"):
        traced(tmp_path, body)


def test_inputs_of_the_command_line_have_no_value(tmp_path: Path) -> None:
    with pytest.raises(CaptureFailed, match=r"net\.py:12"):
        traced(tmp_path, "return x * 2 if pad.any() else x", inputs=("x=float32[3,4]", "pad=bool[3]"))
