"""TARGETs: a Python file, an object in one, a Hugging Face configuration, an exported program."""

from pathlib import Path

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.sources import display_name
from tmmu.passes.capture.targets.huggingface import load_huggingface
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
    path, _ = split_target(target)
    if path.suffix != ".py":
        raise InvalidConfig(f"{target!r} is no target", fix="give FILE.py, FILE.py:NAME, hf:PATH or FILE.pt2")
    return load_file(request)


def folder_of(target: str) -> str:
    """The folder that source lines are relative to; empty where the target has no code of the user's."""
    if target.startswith(_HUGGINGFACE) or target.endswith(".pt2"):
        return ""
    return str(split_target(target)[0].resolve().parent)


def shown(filename: str | None, folder: str) -> str:
    """A file name as messages show it."""
    return display_name(filename, folder) if filename else "?"
