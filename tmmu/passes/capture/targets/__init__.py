"""What the argument MODEL may name: a Python file, an importable object, a Hugging Face configuration, an export."""

from pathlib import Path

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.huggingface import load_huggingface
from tmmu.passes.capture.targets.named_module import load_named, source_root, split_name
from tmmu.passes.capture.targets.pyfile import load_file, split_file
from tmmu.passes.capture.workload import Workload
from tmmu.torch_private import FakeTensorMode

_HUGGINGFACE = "hf:"


def load(request: CaptureRequest, fake: FakeTensorMode | None) -> Workload:
    """The workload that the request names; of real tensors where no fake mode is on."""
    model = request.model
    if model.startswith(_HUGGINGFACE):
        return load_huggingface(request, Path(model.removeprefix(_HUGGINGFACE)))
    if model.endswith(".pt2"):
        from tmmu.passes.capture.targets.exported import load_exported  # noqa: PLC0415 - torch's compiler, 0.7 s to import

        return load_exported(request, Path(model), fake or FakeTensorMode())
    if split_file(model)[0].suffix == ".py":
        return load_file(request)
    named = _named_object(model)
    if named is None:
        kinds = "FILE.py, FILE.py:NAME, package.module:NAME, hf:PATH or FILE.pt2"
        raise InvalidConfig(f"{model!r} is no target", fix=f"give {kinds}")
    return load_named(request, *named)


def source_folder(model: str) -> str:
    """The folder that source lines are relative to; empty where the model has no code of the user's."""
    named = _named_object(model)
    if named is not None:
        return source_root(named[0])
    return "" if model.startswith(_HUGGINGFACE) or model.endswith(".pt2") else _folder_of_file(model)


def import_folder(model: str) -> str:
    """The folder from which its code may import what lies beside it; empty where there is none."""
    return str(Path.cwd()) if _named_object(model) is not None else source_folder(model)


def _named_object(model: str) -> tuple[str, str] | None:
    """Module and name, where the text names an importable object and neither ``hf:PATH`` nor ``FILE.py:NAME``."""
    is_other = model.startswith(_HUGGINGFACE) or split_file(model)[1] is not None
    return None if is_other else split_name(model)


def _folder_of_file(model: str) -> str:
    return str(split_file(model)[0].resolve().parent)
