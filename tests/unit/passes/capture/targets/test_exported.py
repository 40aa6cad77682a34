"""Exported programs: the same graph as the module's own, weights unread, mutations written back."""

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.unit.passes.models import Convolutional
from tmmu.errors import InvalidConfig, TmmuError
from tmmu.ir.graph import Graph
from tmmu.passes.capture.eager_model import EagerModel, stored_weights
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.untrusted import _ARITHMETIC
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
    for options in ({"inputs": ("x=float32[2,8]",)}, {"settings": (("width", "4"),)}):
        with pytest.raises(InvalidConfig, match="has its inputs fixed"):
            capture(CaptureRequest(model=path, **options))  # type: ignore[arg-type]


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


class _Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


def altered(path: str, change: Callable[[str, bytes], bytes], extra: str = "") -> str:
    """A copy of the archive with other records."""
    target = path.replace("program.pt2", "altered.pt2")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as archive:
        for record in source.infolist():
            archive.writestr(record.filename, change(record.filename, source.read(record)))
        if extra:
            archive.writestr(source.infolist()[0].filename.partition("/")[0] + extra, b"x")
    return target


def test_sample_inputs_are_read_only_with_trust(tmp_path: Path) -> None:
    mark, buffer = tmp_path / "ran", io.BytesIO()
    torch.save(((_Payload(mark),), {}), buffer)
    path = export_to(tmp_path, Tied(), torch.zeros(2, 8))
    hostile = altered(path, lambda name, old: buffer.getvalue() if "sample_inputs" in name else old)
    capture(CaptureRequest(model=hostile))
    assert not mark.exists()
    with suppress(TmmuError):
        capture(CaptureRequest(model=hostile, trust=True))
    assert mark.exists()


def with_pickled_weight(path: str, payload: object) -> str:
    """A copy of the archive in which the first weight is a pickle of ``payload``."""
    buffer = io.BytesIO()
    torch.save(payload, buffer)

    def change(name: str, old: bytes) -> bytes:
        if name.endswith("model_weights_config.json"):
            rows = json.loads(old)
            next(iter(rows["config"].values()))["use_pickle"] = True
            return json.dumps(rows).encode()
        return buffer.getvalue() if name.endswith("/weight_0") else old

    return altered(path, change)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.11, where it reads raw bytes
def test_pickled_weight_with_code_runs_only_with_trust_where_weights_are_read(tmp_path: Path) -> None:
    """A plan leaves weights unread; a run reads them, and so does the model beside it."""
    mark = tmp_path / "ran"
    hostile = with_pickled_weight(export_to(tmp_path, torch.nn.Linear(8, 2), torch.zeros(2, 8)), _Payload(mark))
    for read in (stored_weights, EagerModel):
        with pytest.raises(InvalidConfig, match="--trust"):
            read(CaptureRequest(model=hostile, device="cpu"))
        assert not mark.exists()
    with suppress(TmmuError):
        stored_weights(CaptureRequest(model=hostile, device="cpu", trust=True))
    assert mark.exists()


def test_pickled_weight_that_is_a_tensor_is_read_with_trust(tmp_path: Path) -> None:
    path = export_to(tmp_path, torch.nn.Linear(8, 2), torch.zeros(2, 8))
    pickled = with_pickled_weight(path, torch.nn.Parameter(torch.ones(2, 8)))
    with pytest.raises(InvalidConfig, match=r"only as a pickle .*--trust"):
        stored_weights(CaptureRequest(model=pickled, device="cpu"))
    weights = stored_weights(CaptureRequest(model=pickled, device="cpu", trust=True))
    assert weights["weight"].equal(torch.ones(2, 8))


def test_archive_of_the_form_before_torch_2_8_is_refused_for_its_pickles(tmp_path: Path) -> None:
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("serialized_exported_program.json", "serialized_state_dict.pt", "version"):
            archive.writestr(name, b"{}")
    with pytest.raises(InvalidConfig, match=r"serialized_state_dict.pt.*--trust"):
        capture(CaptureRequest(model=str(path)))


@pytest.mark.parametrize("extra", ["/data/aotinductor/m/a.so", "/data/constants/custom_obj_0", "/data/constants/x"])
def test_compiled_code_and_foreign_objects_are_refused(tmp_path: Path, extra: str) -> None:
    path = export_to(tmp_path, Tied(), torch.zeros(2, 8))
    with pytest.raises(InvalidConfig, match="--trust"):
        capture(CaptureRequest(model=altered(path, lambda _, old: old, extra)))


def test_compressed_and_overlapping_records_are_refused(tmp_path: Path) -> None:
    path = export_to(tmp_path, Tied(), torch.zeros(2, 8))
    whole = Path(altered(path, lambda _, old: old))
    with zipfile.ZipFile(whole, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("program/data/weights/more", bytes(1 << 20))
    with pytest.raises(InvalidConfig, match="is compressed"):
        capture(CaptureRequest(model=str(whole)))
    with zipfile.ZipFile(altered(path, lambda _, old: old), "a") as archive:
        archive.filelist *= 40
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(InvalidConfig, match="larger than the file"):
        capture(CaptureRequest(model=str(whole)))


def test_damaged_program_is_refused_in_one_line_with_the_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = export_to(tmp_path, torch.nn.Linear(8, 2), torch.zeros(2, 8))
    short = altered(path, lambda name, old: old[:3] if name.endswith("/weight_0") else old)
    with pytest.raises(InvalidConfig, match="cannot be read") as refusal:
        capture(CaptureRequest(model=short))
    assert "warnings above" not in refusal.value.what
    assert capfd.readouterr().err == ""


def test_dynamic_shape_is_named(tmp_path: Path) -> None:
    size = torch.export.Dim("batch", min=2, max=9)
    program = torch.export.export(torch.nn.Linear(8, 2), (torch.zeros(2, 8),), dynamic_shapes=({0: size},))
    torch.export.save(program, tmp_path / "program.pt2")
    with pytest.raises(InvalidConfig, match=r"dynamic shape .*static"):
        capture(CaptureRequest(model=str(tmp_path / "program.pt2")))


@pytest.mark.parametrize("text", ["open(1)", "a.b", "().__class__", "'x'", "Lambda.x(1)", "exit ()"])
def test_expression_that_is_no_arithmetic_is_refused(text: str) -> None:
    assert not _ARITHMETIC.fullmatch(text)


@pytest.mark.parametrize("text", ["s0", "2*s0 + 1", "Max(1, s77//2)", "ceiling(s0/2)", "Eq(Mod(s0, 2), 0)", "1.5*s0"])
def test_arithmetic_is_admitted(text: str) -> None:
    assert _ARITHMETIC.fullmatch(text)


class Trained(torch.nn.Module):
    """Shared, frozen and unused weights, a number of the program, statistics and dropout of training."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = torch.nn.Embedding(5, 4), torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.ones(4))

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        h = self.norm((self.embed(ids) + x) * self.frozen + torch.tensor(0.5))
        return self.head(torch.nn.functional.dropout(h, 0.1, self.training)).to(x.dtype)


def exported_step(folder: Path, **options: object) -> tuple[Graph, CaptureRequest]:
    path = export_to(folder, Trained().train(), torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4))
    request = CaptureRequest(model=path, device="cpu", **{"mode": "backward", "loss": "sum", **options})  # type: ignore[arg-type]
    return lower_program(capture(request)).graph, request


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "sum"])
def test_training_step_gives_the_gradients_of_each_trained_weight_once(tmp_path: Path, loss: str) -> None:
    graph, request = exported_step(tmp_path, loss=loss)
    shapes = [graph.values.shape[value] for value in graph.outputs]
    assert shapes == [tuple(tensor.shape) for tensor in EagerModel(request).run()]
    assert sorted(shapes) == [(), (4,), (4,), (5, 4)]
    assert {"forward", "backward"} == set(graph.ops.stage)


def test_training_step_without_a_scalar_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(TmmuError, match=r"no scalar loss to train on.*give --loss"):
        exported_step(tmp_path, loss=None)


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"autocast": "bf16"}])
def test_casts_pass_what_asserts_the_dtypes_of_the_export(tmp_path: Path, options: dict[str, str]) -> None:
    graph, request = exported_step(tmp_path, **options)
    eager = EagerModel(request)
    dtypes = [str(tensor.dtype)[6:] for tensor in eager.run()]
    assert [graph.values.dtype[value] for value in graph.outputs] == dtypes
    weight = stored_weights(request)["embed.weight"].dtype
    assert weight == (torch.bfloat16 if "dtype" in options else torch.float32)
    assert "bfloat16" in graph.values.dtype
