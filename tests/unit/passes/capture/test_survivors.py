"""What a step makes and leaves with somebody is said: no plan keeps it."""

from pathlib import Path

import pytest

from tmmu.passes.capture.program import SurvivingStorage
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture

FILE = """
import torch

LAST = []

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        {body}
        return y.sum()

model = Net
def inputs(): return (torch.randn(2, 4),)
def loss(model, x): return model(x)
"""


def survivors(folder: Path, body: str, **options: object) -> tuple[SurvivingStorage, ...]:
    path = folder / "net.py"
    path.write_text(FILE.format(body=body))
    return capture(CaptureRequest(model=str(path), device="cpu", **options)).survivors  # type: ignore[arg-type]


@pytest.mark.parametrize("body", ["self.last = y * 2", "LAST.append(y * 2)", "LAST.append((y * 2)[0])"])
def test_tensors_that_somebody_keeps_are_named_with_their_line(tmp_path: Path, body: str) -> None:
    assert survivors(tmp_path, body) == (SurvivingStorage(bytes=32, source="net.py:13"),)


@pytest.mark.parametrize(
    "body",
    [
        "z = y * 2",
        "z = [y * 2]; z.append(z)",  # garbage, in a cycle
        "self.last = self.linear.weight",
        "y = y * 2; self.last = y.sum(); return self.last",
        "self.last = torch.zeros(0)",
    ],
)
def test_what_nobody_keeps_or_the_step_returns_is_not_named(tmp_path: Path, body: str) -> None:
    assert survivors(tmp_path, body) == ()


@pytest.mark.parametrize("optimizer", [None, "adamw", "sgd"])
def test_steps_of_training_hold_no_more_than_they_say(tmp_path: Path, optimizer: str | None) -> None:
    assert survivors(tmp_path, "pass", mode="backward", optimizer=optimizer) == ()
