"""What is traced: a model, its inputs, and how it is trained."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tmmu.passes.capture.modules import ModuleStack
from tmmu.passes.capture.ranks.layouts import Layouts
from tmmu.passes.capture.routing.routing import Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTensor:
    """A tensor that the program keeps between steps, its role (``parameter``, ``constant``, ``state``) and its name."""

    role: str
    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``run(*args, **kwargs)`` is the program; ``loss`` (of the model and the inputs) trains it, and
    the optimizer that ``optimizer`` makes of its parameters.

    ``module`` owns the weights and gives ops their paths; ``owned`` are tensors that outlive a step beside the
    module's parameters and buffers, such as KV caches. ``modules`` tells which module is running. ``gives_values``: its
    inputs and buffers were made by the user's own code, which is run again for each run, so that control flow may look
    at their values.
    """

    name: str
    folder: str
    run: Callable[..., Any]
    module: torch.nn.Module | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    owned: tuple[OwnedTensor, ...] = ()
    modules: ModuleStack = field(default_factory=ModuleStack)
    gives_values: bool = False
    layouts: Layouts = field(default_factory=Layouts)
    """How its distributed tensors lie."""
    routing: Routing | None = None
    """What its gates are taken to choose, where a capacity of experts is declared."""


def module_of(run: Callable[..., Any]) -> torch.nn.Module | None:
    """The program as the module that owns its weights, where it is one."""
    return run if isinstance(run, torch.nn.Module) else None


def inputs_by_name(workload: Workload) -> dict[str, Any]:
    """The inputs under the names that the program gives them."""
    run = workload.run.forward if isinstance(workload.run, torch.nn.Module) else workload.run
    try:
        names = [p.name for p in inspect.signature(run).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        names = []
    names += [f"input_{i}" for i in range(len(names), len(workload.args))]
    return dict(zip(names, workload.args, strict=False)) | dict(workload.kwargs)
