"""What a Python module gives to plan: its ``model`` and ``inputs``, or any class, module or function by name."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.ir.graph import DTYPE_BYTES
from tmmu.passes.capture.activities import Activity, in_activity
from tmmu.passes.capture.failures.causes import BATCH_IN_PLACE_OF_LOADER
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.targets.dtypes import with_dtype
from tmmu.passes.capture.targets.file_optimizer import FileInstance
from tmmu.passes.capture.targets.settings import setting_of
from tmmu.passes.capture.workload import Workload, module_of
from tmmu.torch_private import UNCOMPILED_MODULE

_INPUT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\]")

_LISTED = 5
"""Names in a hint."""


def workload_of_module(module: ModuleType, request: CaptureRequest, folder: str) -> Workload:
    """The workload of the ``model`` and ``inputs`` that the module defines."""
    settings = _settings_of(request, module)
    if request.mode == "step":
        raise InvalidConfig("--mode step plans a function of the file", fix="name it: FILE.py:step")
    if not hasattr(module, "model"):
        names = _module_classes(module)
        listed = f", such as {', '.join(names[:_LISTED])}" if names else ""
        raise CaptureFailed(
            f"{request.model} defines no `model`",
            fix=f"{_step_hint(module)}define model and inputs, or name an object: FILE.py:NAME{listed}",
        )
    used: set[str] = set()
    maker = module.model
    is_instance = isinstance(maker, torch.nn.Module) or not callable(maker)
    run = _without_compile(maker) if is_instance else _call_maker(maker, settings, used)
    if not callable(run):
        raise CaptureFailed(
            "`model` is neither a module nor makes one",
            fix=f"{_step_hint(module)}define model as an nn.Module or a callable",
        )
    args, kwargs = _inputs(module, request, settings, used, run)
    makers = [m for m in (maker, getattr(module, "inputs", None)) if not isinstance(m, torch.nn.Module)]
    _refuse_unknown(settings, used, *makers)
    workload = Workload(
        name=Path(request.model).stem,
        folder=folder,
        run=run,
        module=module_of(run),
        args=args,
        kwargs=kwargs,
        loss=getattr(module, "loss", None),
        optimizer=_optimizer_maker(module, module_of(run)),
        gives_values=not request.symbolic_inputs,
    )
    return with_dtype(workload, request)


def workload_of_object(module: ModuleType, name: str, request: CaptureRequest, folder: str) -> Workload:
    """The workload of one object of the module: the program itself, or what makes it."""
    settings = _settings_of(request, module)
    member = getattr(module, name)
    used: set[str] = set()
    if request.mode == "step":
        return _workload_of_step(module, name, request, folder)
    is_program = isinstance(member, torch.nn.Module) or (
        not isinstance(member, type) and _takes_inputs(member, request)
    )
    if is_program:
        run, extra = _without_compile(member), {key: settings[key] for key in settings if key in _parameters(member)[0]}
        used.update(extra)
    else:
        run, extra = _call_maker(member, settings, used, may_be_step=inspect.isfunction(member)), {}
    if not callable(run):
        raise CaptureFailed(f"{name} makes no module", fix="name an nn.Module class, or a function that makes one")
    args, kwargs = _inputs(module, request, settings, used, run)
    _refuse_unknown(settings, used, *(() if isinstance(member, torch.nn.Module) else (member,)))
    workload = Workload(
        name=name,
        folder=folder,
        run=run,
        module=module_of(run),
        args=args,
        kwargs={**kwargs, **extra},
        loss=getattr(module, "loss", None),
        optimizer=_optimizer_maker(module, module_of(run)),
        gives_values=not request.symbolic_inputs,
    )
    return with_dtype(workload, request)


def _optimizer_maker(module: ModuleType, model: torch.nn.Module | None) -> Callable[..., Any] | None:
    """The file's ``optimizer(params)``: a function, a class, a partial call; what takes no parameters is not one.

    Or an optimizer that the file has made of this model's parameters, as a function that makes it of others.
    """
    maker = getattr(module, "optimizer", None)
    if isinstance(maker, torch.optim.Optimizer):
        instance = FileInstance(maker)
        return instance if model is not None and instance.has_any(model.parameters()) else None
    return (
        maker
        if callable(maker) and not isinstance(maker, torch.nn.Module) and len(required_parameters(maker)) == 1
        else None
    )


def _workload_of_step(module: ModuleType, name: str, request: CaptureRequest, folder: str) -> Workload:
    """A function of the file that takes a step, with the ``inputs`` (or ``batch``) of the file."""
    step = getattr(module, name)
    if isinstance(step, (type, torch.nn.Module)) or not callable(step):
        raise CaptureFailed(f"{name} is no function", fix="name a function that takes a step, such as step(batch)")
    settings, used = _settings_of(request, module), set[str]()
    takes = required_parameters(step)
    source = "inputs" if hasattr(module, "inputs") else "batch"
    if not takes:
        args: tuple[Any, ...] = ()
        kwargs: Mapping[str, Any] = {}
    elif request.inputs:
        args, kwargs = (), _inputs_of_options(request, step)
    elif not hasattr(module, source):
        raise CaptureFailed(
            f"{request.model} defines neither inputs nor batch",
            fix="define inputs or batch in the file, or give --input name=dtype[shape]",
        )
    else:
        maker = getattr(module, source)
        with in_activity(Activity.INPUTS):
            value = _batch_of(source, _call_maker(maker, settings, used) if callable(maker) else maker)
        args, kwargs = spread_batch(value, takes)
    _refuse_unknown(settings, used, getattr(module, source, None))
    return Workload(
        name=name, folder=folder, run=step, args=args, kwargs=kwargs, gives_values=not request.symbolic_inputs
    )


def spread_batch(value: Any, takes: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """A step of one parameter takes the batch whole; one of several takes its parts."""
    if isinstance(value, Mapping) and set(takes) <= set(value):
        return (), value
    if len(takes) > 1 and isinstance(value, (tuple, list)):
        return tuple(value), {}
    return (value,), {}


def _settings_of(request: CaptureRequest, module: ModuleType) -> dict[str, Any]:
    return {key: setting_of(key, text, module) for key, text in request.settings}


def _takes_inputs(function: Any, request: CaptureRequest) -> bool:
    """Whether the function is the program itself: every ``--input`` is one of its parameters."""
    names = {parse_input(text)[0] for text in request.inputs}
    return bool(names) and names <= _parameters(function)[0]


def _inputs(
    module: ModuleType, request: CaptureRequest, settings: dict[str, Any], used: set[str], run: Any
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if request.inputs:
        return (), _inputs_of_options(request, run)
    if not hasattr(module, "inputs"):
        names = required_parameters(run.forward if isinstance(run, torch.nn.Module) else run) or ["name"]
        options = " ".join(f"--input {name}=dtype[shape]" for name in names[:_LISTED])
        raise CaptureFailed(
            f"{request.model} defines no `inputs`",
            fix=f"{_step_hint(module)}define inputs in the file, or give {options}",
        )
    inputs = module.inputs
    with in_activity(Activity.INPUTS):
        value = _batch_of("inputs", _call_maker(inputs, settings, used) if callable(inputs) else inputs)
    if isinstance(value, torch.Tensor):
        return (value,), {}
    if isinstance(value, Mapping):
        return (), value
    if isinstance(value, (tuple, list)):
        return tuple(value), {}
    raise CaptureFailed("`inputs` is no tensor, tuple or dict", fix="return a tuple of tensors, or a dict by name")


def _step_hint(module: ModuleType) -> str:
    """How to plan the step that the file defines; empty where it defines none."""
    return "to plan its step, name it: FILE.py:step; or " if inspect.isfunction(getattr(module, "step", None)) else ""


def _batch_of(name: str, value: Any) -> Any:
    """The value itself; of a loader its first batch. ``CAPTURE_FAILED`` for a loader without any."""
    if not isinstance(value, DataLoader):
        return value
    batch = next(iter(value), None)
    if batch is None:
        raise CaptureFailed(f"`{name}` is a DataLoader without a batch", fix=BATCH_IN_PLACE_OF_LOADER)
    return batch


def _inputs_of_options(request: CaptureRequest, run: Any) -> dict[str, Any]:
    names, any_name = _parameters(run.forward if isinstance(run, torch.nn.Module) else run)
    inputs: dict[str, Any] = {}
    for text in request.inputs:
        name, dtype, shape = parse_input(text)
        if name not in names and not any_name:
            raise InvalidConfig(f"the model takes no input {name!r}", fix=f"it takes {', '.join(sorted(names))}")
        if name in inputs:
            raise InvalidConfig(f"input {name!r} is given twice", fix="give each --input once")
        inputs[name] = torch.empty(shape, dtype=dtype)
    return inputs


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


def _parameters(function: Callable[..., Any]) -> tuple[set[str], bool]:
    """Names that the callable takes by keyword, and whether it takes any name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set(), True
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _call_maker(
    maker: Callable[..., Any], settings: dict[str, Any], used: set[str], *, may_be_step: bool = False
) -> Any:
    """Call a maker with the settings that it takes; ``may_be_step``: what it lacks may be a batch."""
    names, any_name = _parameters(maker)
    taken = {key: value for key, value in settings.items() if key in names or any_name}
    used.update(taken)
    missing = [name for name in required_parameters(maker) if name not in taken]
    if missing:
        setting = f"give --set {missing[0]}=VALUE"
        step = (
            "use --mode step if it takes a step of its own (with or without gradients); "
            f"if it is the program, give --input {missing[0]}=dtype[shape]; if it makes the model, {setting}"
        )
        raise InvalidConfig(
            f"{getattr(maker, '__name__', 'model')} needs {', '.join(missing)}",
            fix=step if may_be_step else f"{setting}, or name a function of the file that makes the model",
        )
    return _without_compile(maker(**taken))


def _without_compile(value: Any) -> Any:
    """The module that ``torch.compile`` wraps: what is planned is what eager does."""
    if not isinstance(value, torch.nn.Module):
        return value
    # By name among its children: a model's own __getattr__ may do anything for an attribute that it lacks.
    return next((m for name, m in torch.nn.Module.named_children(value) if name == UNCOMPILED_MODULE), value)


def _module_classes(module: ModuleType) -> list[str]:
    """The classes of models that the file itself defines, in its order."""
    members = [(name, member) for name, member in vars(module).items() if isinstance(member, type)]
    return [name for name, cls in members if issubclass(cls, torch.nn.Module) and cls.__module__ == module.__name__]


def required_parameters(maker: Callable[..., Any]) -> list[str]:
    """Positional parameters without a default."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _refuse_unknown(settings: dict[str, Any], used: set[str], *takers: Any) -> None:
    unknown = [key for key in settings if key not in used]
    if unknown:
        names = sorted({name for taker in takers if callable(taker) for name in _parameters(taker)[0]})
        fix = f"known here: {', '.join(names)}" if names else "neither model nor inputs takes any"
        raise InvalidConfig(f"nothing takes the setting {unknown[0]!r}", fix=fix)
