"""Devices that this machine may lack: whatever a model asks for, its tensors are traced on one fake device."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_TRACED = torch.device("cpu")
_TRANSFERS = frozenset({torch.Tensor.cuda, torch.Tensor.cpu})
_NEVER_TRACED = frozenset({"mps", "xpu"})
_KINDS = ("cuda", "cpu", "meta", "mps", "xpu")


class OneDevice(TorchFunctionMode):
    """Calls that name a device get the one that is traced; ``.cuda()`` returns the tensor itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _TRANSFERS:
            return args[0]
        if func is torch.device and _names_foreign(args):
            return func(*args, **kwargs)  # to compare with: a tensor's device is none of these
        if "device" in kwargs or any(_is_device(arg) for arg in args):
            args = tuple(_TRACED if _is_device(arg) else arg for arg in args)
            kwargs = {key: _TRACED if key == "device" and value is not None else value for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _names_foreign(args: tuple[Any, ...]) -> bool:
    return bool(args) and str(args[0]).partition(":")[0] in _NEVER_TRACED


def _is_device(arg: Any) -> bool:
    if isinstance(arg, torch.device):
        return True
    return isinstance(arg, str) and arg.partition(":")[0] in _KINDS
