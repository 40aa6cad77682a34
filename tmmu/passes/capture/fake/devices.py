"""Devices that this machine may lack: whatever a model asks for, its tensors are traced on one fake device."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_HERE = torch.device("cpu")
_STAYS = frozenset({torch.Tensor.cuda, torch.Tensor.cpu})
_KINDS = ("cuda", "cpu", "meta", "mps", "xpu")


class OneDevice(TorchFunctionMode):
    """Calls that name a device get the one that is traced; ``.cuda()`` returns the tensor itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _STAYS:
            return args[0]
        if "device" in kwargs or any(_names_a_device(arg) for arg in args):
            args = tuple(_HERE if _names_a_device(arg) else arg for arg in args)
            kwargs = {key: _HERE if key == "device" and value is not None else value for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _names_a_device(arg: Any) -> bool:
    if isinstance(arg, torch.device):
        return True
    return isinstance(arg, str) and arg.partition(":")[0] in _KINDS
