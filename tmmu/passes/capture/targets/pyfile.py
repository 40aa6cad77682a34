"""A Python file that defines ``model`` and ``inputs``, or any class or function in any file."""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.ir.graph import DTYPE_BYTES
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.workload import Workload, module_of

_INPUT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\]")


def split_target(target: str) -> tuple[Path, str | None]:
    """The file and, after a colon, the name inside it."""
    head, colon, name = target.rpartition(":")
    return (Path(head), name) if colon and head.endswith(".py") else (Path(target), None)


def load_file(request: CaptureRequest) -> Workload:
    """The workload of ``model.py`` or ``model.py:Name``."""
    path, name = split_target(request.target)
    if not path.is_file():
        raise InvalidConfig(f"no file {str(path)!r}", fix="check the path")
    module = _imported(path.resolve())
    settings = {key: parse_setting(text) for key, text in request.settings}
    folder = str(path.resolve().parent)
    if name is None:
        return _from_module(module, request, settings, folder)
    return _from_name(module, name, request, settings, folder)


def _imported(path: Path) -> ModuleType:
    """The file as a module: under its package where it is in one, so that relative imports work."""
    top, names = path.parent, [path.stem]
    while (top / "__init__.py").is_file() and top.parent != top:
        names.insert(0, top.name)
        top = top.parent
    if len(names) > 1:
        sys.path.insert(0, str(top))
        return importlib.import_module(".".join(names))
    spec = importlib.util.spec_from_file_location(f"tmmu_target_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 - a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _from_module(module: ModuleType, request: CaptureRequest, settings: dict[str, Any], folder: str) -> Workload:
    if not hasattr(module, "model"):
        raise CaptureFailed(
            f"{request.target} defines no `model`", fix="define model and inputs, or name an object: FILE.py:NAME"
        )
    used: set[str] = set()
    maker = module.model
    made = isinstance(maker, torch.nn.Module) or not callable(maker)
    run = _uncompiled(maker) if made else _called(maker, settings, used)
    if not callable(run):
        raise CaptureFailed(
            "`model` is neither a module nor makes one", fix="define model as an nn.Module or a callable"
        )
    args, kwargs = _inputs(module, request, settings, used, run)
    makers = [m for m in (maker, getattr(module, "inputs", None)) if not isinstance(m, torch.nn.Module)]
    _refuse_unknown(settings, used, *makers)
    return Workload(
        name=Path(request.target).stem,
        folder=folder,
        run=run,
        module=module_of(run),
        args=args,
        kwargs=kwargs,
        loss=getattr(module, "loss", None),
    )


def _from_name(
    module: ModuleType, name: str, request: CaptureRequest, settings: dict[str, Any], folder: str
) -> Workload:
    if not hasattr(module, name):
        raise InvalidConfig(f"{request.target}: no {name!r} in the file", fix="name a class or function of the file")
    made = getattr(module, name)
    used: set[str] = set()
    is_program = isinstance(made, torch.nn.Module) or (not isinstance(made, type) and _takes_inputs(made, request))
    if is_program:
        run, extra = _uncompiled(made), {key: settings[key] for key in settings if key in _parameters(made)[0]}
        used.update(extra)
    else:
        run, extra = _called(made, settings, used), {}
    if not callable(run):
        raise CaptureFailed(f"{name} makes no module", fix="name an nn.Module class, or a function that makes one")
    args, kwargs = _inputs(module, request, settings, used, run)
    _refuse_unknown(settings, used, *(() if isinstance(made, torch.nn.Module) else (made,)))
    return Workload(
        name=name,
        folder=folder,
        run=run,
        module=module_of(run),
        args=args,
        kwargs={**kwargs, **extra},
        loss=getattr(module, "loss", None),
    )


def _takes_inputs(function: Any, request: CaptureRequest) -> bool:
    """Whether the function is the program itself: every ``--input`` is one of its parameters."""
    names = {parse_input(text)[0] for text in request.inputs}
    return bool(names) and names <= _parameters(function)[0]


def _inputs(
    module: ModuleType, request: CaptureRequest, settings: dict[str, Any], used: set[str], run: Any
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if request.inputs:
        return (), _given_inputs(request, run)
    if not hasattr(module, "inputs"):
        raise CaptureFailed(
            f"{request.target} defines no `inputs`", fix="define inputs in the file, or give --input name=dtype[shape]"
        )
    made = module.inputs
    value = _called(made, settings, used) if callable(made) else made
    if isinstance(value, torch.Tensor):
        return (value,), {}
    if isinstance(value, Mapping):
        return (), value
    if isinstance(value, (tuple, list)):
        return tuple(value), {}
    raise CaptureFailed("`inputs` is no tensor, tuple or dict", fix="return a tuple of tensors, or a dict by name")


def _given_inputs(request: CaptureRequest, run: Any) -> dict[str, Any]:
    names, any_name = _parameters(run.forward if isinstance(run, torch.nn.Module) else run)
    given: dict[str, Any] = {}
    for text in request.inputs:
        name, dtype, shape = parse_input(text)
        if name not in names and not any_name:
            raise InvalidConfig(f"the model takes no input {name!r}", fix=f"it takes {', '.join(sorted(names))}")
        if name in given:
            raise InvalidConfig(f"input {name!r} is given twice", fix="give each --input once")
        given[name] = torch.empty(shape, dtype=dtype)
    return given


def parse_input(text: str) -> tuple[str, torch.dtype, tuple[int, ...]]:
    """``ids=int64[1,1024]`` as name, dtype and shape."""
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise InvalidConfig(f"--input {text!r} is not name=dtype[shape]", fix="for example ids=int64[1,1024]")
    dtype = getattr(torch, match["dtype"], None)
    if match["dtype"] not in DTYPE_BYTES or not isinstance(dtype, torch.dtype):
        raise InvalidConfig(
            f"--input {text!r}: no dtype {match['dtype']!r}", fix="for example int64, float32, bfloat16"
        )
    pieces = [piece.strip() for piece in match["shape"].split(",") if piece.strip()]
    if any(not piece.isdigit() for piece in pieces):
        raise InvalidConfig(f"--input {text!r}: sizes are whole numbers", fix="for example ids=int64[1,1024]")
    return match["name"], dtype, tuple(int(piece) for piece in pieces)


def parse_setting(text: str) -> Any:
    """A ``--set`` value: a Python literal where it is one, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _parameters(function: Callable[..., Any]) -> tuple[set[str], bool]:
    """Names that the callable takes by keyword, and whether it takes any name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set(), True
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _called(maker: Callable[..., Any], settings: dict[str, Any], used: set[str]) -> Any:
    """Call a maker with the settings that it takes."""
    names, any_name = _parameters(maker)
    taken = {key: value for key, value in settings.items() if key in names or any_name}
    used.update(taken)
    missing = [name for name in _required(maker) if name not in taken]
    if missing:
        raise InvalidConfig(
            f"{getattr(maker, '__name__', 'model')} needs {', '.join(missing)}",
            fix=f"give --set {missing[0]}=VALUE, or name a function of the file that makes the model",
        )
    return _uncompiled(maker(**taken))


def _uncompiled(made: Any) -> Any:
    """A module that ``torch.compile`` wraps, as it was: what is planned is what eager does."""
    return getattr(made, "_orig_mod", made) if isinstance(made, torch.nn.Module) else made


def _required(maker: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _refuse_unknown(settings: dict[str, Any], used: set[str], *takers: Any) -> None:
    unknown = [key for key in settings if key not in used]
    if unknown:
        names = sorted({name for taker in takers if callable(taker) for name in _parameters(taker)[0]})
        known = f"known here: {', '.join(names)}" if names else "neither model nor inputs takes any"
        raise InvalidConfig(f"nothing takes the setting {unknown[0]!r}", fix=known)
