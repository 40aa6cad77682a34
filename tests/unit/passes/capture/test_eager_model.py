"""The model itself takes values by their elements, or the bytes of a storage; what shares memory is there once."""

from pathlib import Path

import pytest
import torch

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.passes.capture.eager_model import EagerModel
from tmmu.passes.capture.request import CaptureRequest

NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, 2).t())
        self.c = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("part", self.w.detach()[0])
        self.register_buffer("same", torch.ones(1).expand(4))
    def forward(self, x, y):
        return self.w * x, self.part + 0, self.c * 1, self.same * 1, x, x, y, x[:, :0], y[:, :0]
model = Net
inputs = (torch.zeros(0, 2, 3), torch.zeros(0, 2, 3))
"""
INPUTS = {"x": torch.zeros(0, 2, 3), "y": torch.zeros(0, 2, 3)}


@pytest.fixture
def model(tmp_path: Path) -> EagerModel:
    (tmp_path / "net.py").write_text(NET)
    return EagerModel(CaptureRequest(model=str(tmp_path / "net.py"), device="cpu"))


def test_empty_tensors_of_two_storages_are_two_inputs(model: EagerModel) -> None:
    assert model.input_names == ("x", "y")
    assert len(model.run()) == 8  # x is given back twice


def test_weights_are_loaded_by_elements_and_flat_ones_by_bytes(model: EagerModel) -> None:
    value = torch.arange(6.0).view(2, 3)
    model.load({"w": value}, INPUTS)
    assert model.run()[1].tolist() == [0, 1, 2]  # a view of the weight is no value of its own
    model.load({"w": value.t().contiguous().t()}, INPUTS)
    assert model.run()[1].tolist() == [0, 1, 2]
    model.load({"w": torch.arange(6.0)}, INPUTS)
    assert model.run()[1].tolist() == [0, 2, 4]
    model.load({}, INPUTS)
    assert model.run()[1].tolist() == [0, 0, 0]


def test_pairs_load_as_complex_numbers_and_shared_elements_as_one(model: EagerModel) -> None:
    model.load({"c": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "same": torch.full((1,), 7.0).expand(4)}, INPUTS)
    assert model.run()[2].tolist() == [1 + 2j, 3 + 4j]
    assert model.run()[3].tolist() == [7] * 4


@pytest.mark.parametrize("shape", [(3, 2), (2, 2), (1, 6), (5,), ()])
def test_weight_of_another_shape_is_refused(model: EagerModel, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidConfig, match=r"w has shape \[.*\], and \[2, 3\] in the model"):
        model.load({"w": torch.zeros(shape)}, INPUTS)


TRAINED = """
import torch
model = lambda: torch.nn.Linear(4, 2)
inputs = lambda: (torch.ones(3, 4),)
loss = lambda model, x: model(x).square().mean()
"""


def test_optimizer_and_its_state_are_made_by_the_first_step_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is timed or measured does the work of the model's author, and no more."""
    (tmp_path / "net.py").write_text(TRAINED)
    request = CaptureRequest(model=str(tmp_path / "net.py"), device="cpu", mode="backward", optimizer="adamw")
    model, makers = EagerModel(request), list[str]()
    original = torch.optim.AdamW.__init__
    monkeypatch.setattr(torch.optim.AdamW, "__init__", lambda *a, **k: makers.append("") or original(*a, **k))
    counts = []
    for _ in range(3):
        model.step()
        counts.append(len(makers))
    assert counts == [2, 2, 2]  # its own, and that of the twins
    assert {t.item() for name, t in model.states.items() if name.startswith("optimizer.step.")} == {3.0}
    model.load({}, {"input": torch.ones(3, 4)})
    model.step()
    assert {t.item() for name, t in model.states.items() if name.startswith("optimizer.step.")} == {1.0}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the model finds its GPU")
@pytest.mark.parametrize("place", ["torch.set_default_device('cuda')", "torch.ones(1, device='cuda')"])
def test_model_that_names_a_gpu_is_told_to_run_where_one_is(tmp_path: Path, place: str) -> None:
    (tmp_path / "net.py").write_text(TRAINED.replace("import torch", f"import torch\n{place}"))
    with pytest.raises(CaptureFailed) as refusal:
        EagerModel(CaptureRequest(model=str(tmp_path / "net.py"), device="cpu"))
    assert "tmmu plan needs none" in refusal.value.fix
