"""Exported programs: the same graph as the module's own, weights unread, mutations written back."""

from pathlib import Path

import pytest
import torch

from tests.unit.passes.models import Convolutional
from tmmu.errors import InvalidConfig
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.pipeline import lower_program


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.b(self.a(x))


def export_to(folder: Path, module: torch.nn.Module, *inputs: torch.Tensor, decompose: bool = False) -> str:
    program = torch.export.export(module, inputs)
    path = folder / "program.pt2"
    torch.export.save(program.run_decompositions({}) if decompose else program, path)
    return str(path)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("decompose", [False, True])
def test_roles_names_and_mutation_survive_export(tmp_path: Path, decompose: bool) -> None:
    graph = lower_program(
        capture(CaptureRequest(model=export_to(tmp_path, Tied(), torch.zeros(2, 8), decompose=decompose)))
    ).graph
    roles = dict(zip(graph.notes.buffers, graph.buffers.role, strict=True))
    assert roles["a.weight"] == "parameter"
    assert roles["count"] == "state"
    assert list(roles.values()).count("parameter") == 1
    assert len(graph.outputs) == 1


def test_batch_statistics_in_training_mode_are_state(tmp_path: Path) -> None:
    path = export_to(tmp_path, Convolutional().train(), torch.zeros(2, 3, 8, 8))
    graph = lower_program(capture(CaptureRequest(model=path, device="cpu"))).graph
    roles = dict(zip(graph.notes.buffers, graph.buffers.role, strict=True))
    assert roles["norm.running_mean"] == roles["norm.running_var"] == roles["calls"] == "state"


def test_options_that_an_exported_program_cannot_take_are_refused(tmp_path: Path) -> None:
    path = export_to(tmp_path, Tied(), torch.zeros(2, 8))
    with pytest.raises(InvalidConfig):
        capture(CaptureRequest(model=path, mode="backward"))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 not really", b"hello"])
def test_file_that_is_no_exported_program_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(data)
    with pytest.raises(InvalidConfig):
        capture(CaptureRequest(model=str(path)))


def test_truncated_program_is_refused(tmp_path: Path) -> None:
    path = Path(export_to(tmp_path, Tied(), torch.zeros(2, 8)))
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(InvalidConfig):
        capture(CaptureRequest(model=str(path)))
