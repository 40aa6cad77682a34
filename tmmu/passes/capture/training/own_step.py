"""A step that the user wrote: ``def step(batch)`` with model, optimizers, scaler and all else that it closes over.

It runs as Python three times on fake tensors. The first run makes what later ones find: optimizer state, gradients,
averages. The second is planned. The third must be the same, or there is no steady step. State is whatever was there
before the second run and is read or written in it; what it makes and somebody holds afterwards is an output.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from types import CodeType
from typing import Any, Final

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.ir.graph import UPDATE_MODULE
from tmmu.passes.capture.program import CapturedProgram
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.recording import recording
from tmmu.passes.capture.request import CaptureRequest, Progress
from tmmu.passes.capture.tree import named_tensors, plain_tensors
from tmmu.passes.capture.workload import Workload, inputs_by_name
from tmmu.torch_private import cpp_address

_NAMED_DEPTH: Final = 3
"""So many containers or objects deep, tensors that a step reaches are called by their path."""


def capture_step(
    workload: Workload, request: CaptureRequest, progress: Progress, building: Recorder
) -> CapturedProgram:
    """The steady step, with the lifetimes of the first; ``building`` recorded how model and optimizers were made.

    ``CAPTURE_FAILED`` where two steady runs differ.
    """
    for name in ("optimizer", "loss", "autocast", "dtype"):
        if getattr(request, name) is not None:
            raise InvalidConfig(f"--{name} is for a model: a step has its own", fix="leave it out, or plan the model")
    recorders = [building]
    gc.collect()  # what only garbage holds is not there
    first, steady, again = (_run(workload, request, progress, recorders) for _ in range(3))
    _require_agreement(steady, again)
    return replace(steady, first=first.eager)


def _run(workload: Workload, request: CaptureRequest, progress: Progress, recorders: list[Recorder]) -> CapturedProgram:
    """One run; ``recorders`` are those of all that ran before, which know what it left."""
    recorder = Recorder(
        folder=workload.folder,
        modules=workload.modules,
        progress=progress,
        device=request.device,
        strict=True,
        own_step=True,
    )
    inputs = _note_what_is_there(workload, recorder, recorders)
    recorders.append(recorder)
    found = recorder.builder.lifetimes.earlier_bytes
    with recording(recorder, workload, request.device) as scaled, _update_stages(recorder):
        results = workload.run(*workload.args, **workload.kwargs)
        tensors = [tensor for _, tensor in named_tensors(results)]
        returned = tuple(dict.fromkeys(map(recorder.window_of, tensors)))
        outliving = recorder.outliving_windows((*inputs, *returned))
        del results, tensors
    outputs = (*returned, *outliving)
    program = recorder.finish(name=workload.name, device=request.device, inputs=inputs, outputs=outputs)
    kept = sum(program.storages[window.storage].bytes for window in outliving)
    growth = kept - (found - recorder.builder.lifetimes.earlier_bytes)
    return replace(program, scaled_updates=scaled.count, growth=max(growth, 0))


def _note_what_is_there(workload: Workload, recorder: Recorder, earlier: list[Recorder]) -> tuple[Any, ...]:
    """The recorder knows all tensors that a run finds; the windows of its inputs. Nothing here lives on in the run."""
    roots = _reachable(_roots_of(workload.run))
    handles = [handle for before in earlier for handle in before.builder.table.handles()]
    recorder.note_earlier((handle for handle in handles if handle.device.type == "meta"), _names_of(roots))
    return _declare(workload, recorder, roots)


@contextmanager
def _update_stages(recorder: Recorder) -> Iterator[None]:
    """Block in which calls inside ``step`` of any optimizer of torch's base class belong to the stage ``update``."""
    stages: list[Any] = []

    def begin(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        stage = recorder.in_stage("update", module=f"{UPDATE_MODULE}{type(optimizer).__name__.lower()}")
        stage.__enter__()
        stages.append(stage)

    def end(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if stages:
            stages.pop().__exit__(None, None, None)

    hooks = register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _declare(workload: Workload, recorder: Recorder, roots: dict[str, Any]) -> tuple[Any, ...]:
    """Weights and buffers of all modules that the step closes over, and its inputs; the windows of these."""
    modules = {name: root for name, root in roots.items() if isinstance(root, nn.Module)}
    for name, module in modules.items():
        prefix = name if len(modules) > 1 else ""
        workload.modules.name_all(module, prefix)
        for role, tensors in (
            ("parameter", module.named_parameters(prefix)),
            ("constant", module.named_buffers(prefix)),
        ):
            for path, tensor in (plain for named in tensors for plain in plain_tensors(*named)):
                if tensor.layout is torch.strided:
                    recorder.declare(tensor, role=role, name=path, known=workload.gives_values and role == "constant")
    return tuple(
        dict.fromkeys(
            recorder.declare(tensor, role="input", name=name, known=workload.gives_values)
            for name, tensor in named_tensors(inputs_by_name(workload))
        )
    )


def _roots_of(step: Callable[..., Any]) -> dict[str, Any]:
    """What the step reaches by name: closure, ``self``, defaults, and globals that it or what it calls names."""
    roots: dict[str, Any] = {}
    pending, seen = [step], set[int]()
    while pending:
        function = pending.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        owner, function = getattr(function, "__self__", None), getattr(function, "__func__", function)
        named = {} if owner is None else {"self": owner}
        code = getattr(function, "__code__", None)
        if code is not None:
            cells = getattr(function, "__closure__", None) or ()
            named |= {
                name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True) if _full(cell)
            }
            known = getattr(function, "__globals__", {})
            named |= {name: known[name] for name in sorted(global_names(code)) if name in known}
        for name, value in named.items():
            if callable(value) and hasattr(value, "__code__"):
                pending += [] if is_outside(value) else [value]
            elif not isinstance(value, type) and type(value).__name__ != "module":
                roots.setdefault(name, value)
    return roots


def is_outside(function: Any) -> bool:
    """Whether it is a function of torch or of numpy, which reaches nothing of the user's by name."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("torch", "numpy", "builtins")


def _full(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def global_names(code: CodeType) -> set[str]:
    """Names that a function's code, or code inside it, looks up outside of it; attributes are among them."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= global_names(constant)
    return names


def _names_of(roots: dict[str, Any]) -> dict[int, str]:
    """What tensors are called that are no weights: gradients, an optimizer's state, other attributes; by address."""
    names: dict[int, str] = {}

    def note(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            names.setdefault(cpp_address(value.untyped_storage()), name)

    weights: dict[int, str] = {}
    for name, root in roots.items():
        if isinstance(root, nn.Module):
            for path, parameter in root.named_parameters():
                weights.setdefault(id(parameter), path)
                note(f"grad.{path}", parameter.grad)
        elif isinstance(root, torch.optim.Optimizer):
            continue
        else:
            note(name, root)
    for root in roots.values():
        if isinstance(root, torch.optim.Optimizer):
            for trained, state in root.state.items():
                for key, value in state.items():
                    note(f"optimizer.{key}.{weights.get(id(trained), '')}", value)
    return names


def _reachable(roots: dict[str, Any]) -> dict[str, Any]:
    """Modules, optimizers and tensors in what the step names, by path; of each the first path."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    pending = [(name, root, _NAMED_DEPTH) for name, root in reversed(roots.items())]
    while pending:
        path, value, depth = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (nn.Module, torch.optim.Optimizer, torch.Tensor)):
            found[path] = value
        elif depth:
            pending += [(f"{path}.{key}", item, depth - 1) for key, item in reversed(_items(value))]
    return found


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(_key_text(key, index), item) for index, (key, item) in enumerate(value.items())]
    if isinstance(value, (list, tuple)):
        return [(str(index), item) for index, item in enumerate(value)]
    return list(getattr(value, "__dict__", {}).items())


def _key_text(key: Any, index: int) -> str:
    return str(key) if isinstance(key, (str, int)) else str(index)


def _require_agreement(steady: CapturedProgram, again: CapturedProgram) -> None:
    """Two runs in a row make the same calls on the same windows; where only numbers differ, they are inputs."""
    calls = [node for node in steady.graph.nodes if node.op == "call_function"]
    others = [node for node in again.graph.nodes if node.op == "call_function"]
    for position, (call, other) in enumerate(zip_longest(calls, others)):
        if call is None or other is None or _form(call) != _form(other):
            texts = [
                f"{node.target} at {node.meta.get('source') or 'no line'}" if node else "none" for node in (call, other)
            ]
            raise CaptureFailed(
                f"the step does otherwise each time: call {position} is {texts[0]}, and the next time {texts[1]}",
                fix="plan a step that does not depend on how often it ran",
            )
        if _numbers(call) != _numbers(other):
            call.meta["numbers_vary"] = True
    if len(steady.outputs) != len(again.outputs):
        raise CaptureFailed(
            f"the step leaves {len(steady.outputs)} tensors, and the next time {len(again.outputs)}",
            fix="plan a step that does not depend on how often it ran",
        )


def _form(node: Any) -> tuple[Any, ...]:
    return str(node.target), node.meta.get("windows"), node.meta.get("mutates")


def _numbers(node: Any) -> list[str]:
    """The numbers among a call's arguments, as texts: NaN is itself, and zeros have signs."""
    numbers: list[str] = []
    pending: list[Any] = [*node.args, *node.kwargs.values()]
    while pending:
        argument = pending.pop()
        if isinstance(argument, (list, tuple)):
            pending.extend(argument)
        elif isinstance(argument, (int, float, complex)):
            numbers.append(repr(argument))
    return numbers
