"""A Python file as the model: ``model.py``, or ``model.py:Name`` for an object in it."""

import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.activities import Activity, in_activity
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.python_object import workload_of_module, workload_of_object
from tmmu.passes.capture.workload import Workload


def split_file(model: str) -> tuple[Path, str | None]:
    """The file and, after a colon, the name inside it."""
    head, colon, name = model.rpartition(":")
    return (Path(head), name) if colon and head.endswith(".py") else (Path(model), None)


def load_file(request: CaptureRequest) -> Workload:
    """The workload of ``model.py`` or ``model.py:Name``."""
    path, name = split_file(request.model)
    if not path.is_file():
        raise InvalidConfig(f"no file {str(path)!r}", fix="check the path")
    with in_activity(Activity.IMPORT):
        module = _import_file(path.resolve())
    folder = str(path.resolve().parent)
    if name is None:
        return workload_of_module(module, request, folder)
    if not hasattr(module, name):
        raise InvalidConfig(f"{request.model}: no {name!r} in the file", fix="name a class or function of the file")
    return workload_of_object(module, name, request, folder)


class _SourceLoader(SourceFileLoader):
    """Compiles a file as it is now, and leaves nothing beside it.

    Bytecode is known by time in seconds and size: of a file that was changed at once it is that of before.
    """

    def get_code(self, fullname: str) -> CodeType:
        """The code of the source."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import_file(path: Path) -> ModuleType:
    """The file as a module: under its package where it is in one, so that relative imports work."""
    top, names = path.parent, [path.stem]
    while (top / "__init__.py").is_file() and top.parent != top:
        names.insert(0, top.name)
        top = top.parent
    if len(names) > 1:
        sys.path.insert(0, str(top))
        return importlib.import_module(".".join(names))
    name = f"tmmu_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    assert spec is not None and spec.loader is not None  # noqa: PT018 - a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        error.filename = error.filename or str(path)  # Python names no file for one that is no text
        raise
    return module
