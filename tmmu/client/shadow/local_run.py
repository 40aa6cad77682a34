"""A module's run on this machine: planned for each form of its arguments, and let through by the interlock."""

import inspect
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any, Final

import torch
from torch import nn

from tmmu.api.memory_plan import MemoryPlan
from tmmu.api.plan import plan
from tmmu.client.device.local_operands import map_tensors
from tmmu.client.device.remote_tensor import RemoteTensor
from tmmu.client.forks import leave_to_parent
from tmmu.client.interlock import FreeBytes, require_local_room
from tmmu.errors import InvalidConfig, TmmuError, UserError

_MOST_PLANS: Final = 64
_FIX: Final = "wait() until it is on the server"


class LocalRuns:
    """Runs of one module. ``local_bytes``: what a run takes, where no plan is to say it.

    Bytes of a run are those that it makes beside its weights and inputs, which are here already: the larger of its
    plan's stack and of what eager has at once. A form is planned once: where values decide what the
    module does, those that were met first.
    """

    def __init__(self, module: nn.Module, local_bytes: int | None, free_bytes: FreeBytes) -> None:
        self._module, self._local_bytes, self._free_bytes = module, local_bytes, free_bytes
        self._planned: OrderedDict[Hashable, int] = OrderedDict()
        self._lock = Lock()
        leave_to_parent(self)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module returns, its inputs fetched. ``DEVICE_MEMORY`` where there is too little memory for it."""
        args, kwargs = map_tensors((args, kwargs), lambda t: t.cpu() if isinstance(t, RemoteTensor) else t)
        planned = self._planned_bytes(args, kwargs) if self._local_bytes is None else self._local_bytes
        require_local_room(planned, self._free_bytes, fix=f"{_FIX}, or free memory")
        return self._module(*args, **kwargs)

    def leave_to_parent(self) -> None:
        """As ``Forked.leave_to_parent``."""
        self._lock = Lock()

    def _planned_bytes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        key = repr((self._module.training, map_tensors((args, kwargs), _form_of)))
        with self._lock:
            if key not in self._planned:
                local_plan = self._plan(args, kwargs)
                self._planned[key] = max(local_plan.stack, local_plan.eager.stack_bytes)
                if len(self._planned) > _MOST_PLANS:
                    self._planned.popitem(last=False)
            self._planned.move_to_end(key)
            return self._planned[key]

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> MemoryPlan:
        try:
            inputs: Any = args
            if kwargs:
                bound = inspect.signature(self._module.forward).bind(*args, **kwargs)
                if len(bound.arguments) != len(args) + len(kwargs):
                    raise InvalidConfig("arguments that have no names of their own", fix="name them")
                inputs = dict(bound.arguments)
            return plan(self._module, inputs, device="cpu", training=False)
        except UserError as error:
            raise _unplanned(error) from error


class _TensorForm:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._text = f"{tensor.dtype}{list(tensor.shape)}{list(tensor.stride())}"

    def __repr__(self) -> str:
        return self._text


def _form_of(tensor: torch.Tensor) -> _TensorForm:
    return _TensorForm(tensor)


def _unplanned(error: UserError) -> TmmuError:
    """The same error, which says what to do where a local run has no plan."""
    what = f"what a local run takes is not known: {error.what}"
    return type(error)(what, fix=f"{_FIX}, or say local_bytes=", **dict(error.fields))
