"""An importable object as the model: ``package.module:Name``, from the current folder or the environment.

The module is imported as ``python -m`` would: the current folder comes first. Its source lines are relative to the
folder that holds the top-level package, so that they read ``package/module.py:12`` wherever that is installed.
"""

import importlib
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.activities import Activity, in_activity
from tmmu.passes.capture.imports import importable_from
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.python_object import workload_of_object
from tmmu.passes.capture.workload import Workload


def split_name(model: str) -> tuple[str, str] | None:
    """The module and the name in it, or ``None`` where the text is no ``package.module:Name``."""
    path, _, name = model.rpartition(":")
    return (path, name) if all(part.isidentifier() for part in (*path.split("."), name)) else None


def load_named(request: CaptureRequest, path: str, name: str) -> Workload:
    """The workload of an object of an importable module."""
    module = _import_module(path)
    if not hasattr(module, name):
        kind, fix = "module", "name a class or function of the module"
        if hasattr(module, "__path__"):
            kind, fix = "package", f"name the module that has it: {path}.MODULE:{name}"
        raise InvalidConfig(f"{request.model}: no {name!r} in the {kind}", fix=fix)
    if isinstance(getattr(module, name), ModuleType):
        raise InvalidConfig(f"{request.model} is a module", fix=f"name an object in it: {path}.{name}:NAME")
    return workload_of_object(module, name, request, source_root(path))


def source_root(path: str) -> str:
    """The folder that holds the module's top-level package; empty where it has no file."""
    with importable_from(str(Path.cwd())):
        spec = _find(path.partition(".")[0])
    if spec is None:
        return ""
    locations = list(spec.submodule_search_locations or ())
    if spec.has_location and spec.origin:
        locations.append(spec.origin)
    return str(Path(locations[0]).parent) if locations else ""


def _import_module(path: str) -> ModuleType:
    """The module, after its parents. What fails inside one of them is the user's own error and is raised as it is."""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        prefix = ".".join(parts[:end])
        if _find(prefix) is None:
            raise InvalidConfig(f"no module {prefix!r}", fix="check the name, or run in the folder that holds it")
        with in_activity(Activity.IMPORT):
            module = importlib.import_module(prefix)
    return module


def _find(path: str) -> ModuleSpec | None:
    """Where the module lies, if it is there; its parents are imported already."""
    try:
        return importlib.util.find_spec(path)
    except (ModuleNotFoundError, ValueError):  # its parent is no package; it is ``__main__``
        return None
