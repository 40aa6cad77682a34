"""What the argument MODEL may name: a Python file, an importable object, a Hugging Face configuration, an export."""

from pathlib import Path

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.huggingface import load_huggingface
from tmmu.passes.capture.targets.named_module import load_named, source_root, split_name
from tmmu.passes.capture.targets.pyfile import load_file, split_target
from tmmu.passes.capture.workload import Workload
from tmmu.torch_private import FakeTensorMode

_HUGGINGFACE = "hf:"


def load(request: CaptureRequest, fake: FakeTensorMode | None) -> Workload:
    """The workload that the request names; of real tensors where no fake mode is on."""
    target = request.target
    if target.startswith(_HUGGINGFACE):
        return load_huggingface(request, Path(target.removeprefix(_HUGGINGFACE)))
    if target.endswith(".pt2"):
        from tmmu.passes.capture.targets.exported import load_exported  # noqa: PLC0415 - torch's compiler, 0.7 s to import

        return load_exported(request, Path(target), fake or FakeTensorMode())
    if split_target(target)[0].suffix == ".py":
        return load_file(request)
    named = _named_object(target)
    if named is None:
        kinds = "FILE.py, FILE.py:NAME, package.module:NAME, hf:PATH or FILE.pt2"
        raise InvalidConfig(f"{target!r} is no target", fix=f"give {kinds}")
    return load_named(request, *named)


def source_folder(target: str) -> str:
    """The folder that source lines are relative to; empty where the target has no code of the user's."""
    named = _named_object(target)
    if named is not None:
        return source_root(named[0])
    return "" if target.startswith(_HUGGINGFACE) or target.endswith(".pt2") else _folder_of_file(target)


def import_folder(target: str) -> str:
    """The folder from which its code may import what lies beside it; empty where there is none."""
    return str(Path.cwd()) if _named_object(target) is not None else source_folder(target)


def _named_object(target: str) -> tuple[str, str] | None:
    """Module and name, where the target is an importable object and neither ``hf:PATH`` nor ``FILE.py:NAME``."""
    is_other = target.startswith(_HUGGINGFACE) or split_target(target)[1] is not None
    return None if is_other else split_name(target)


def _folder_of_file(target: str) -> str:
    return str(split_target(target)[0].resolve().parent)
