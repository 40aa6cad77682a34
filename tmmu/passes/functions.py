"""Calls caught before torch dispatches them: devices that this machine lacks, and attention on the target."""

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tmmu.passes.attention import cuda_attention

_HERE = torch.device("cpu")
_TO_HERE = frozenset({torch.Tensor.cuda, torch.Tensor.cpu})
_ATTENTION = torch._C._nn.scaled_dot_product_attention
_HALF = (torch.float16, torch.bfloat16)


class TargetFunctions(TorchFunctionMode):
    """Everything runs on one fake device; what differs on the target is replaced by the target's operator."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._cuda = device == "cuda"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _TO_HERE:
            return args[0]
        if "device" in kwargs or any(_names_a_device(arg) for arg in args):
            args = tuple(_here(arg) if _names_a_device(arg) else arg for arg in args)
            kwargs = {key: _HERE if key == "device" and value is not None else value for key, value in kwargs.items()}
        if self._cuda:
            if func is _ATTENTION:
                return cuda_attention(*args, **kwargs)
            if (
                func in (functional.softmax, torch.softmax, torch.Tensor.softmax)
                and kwargs.get("dtype") is torch.float32
            ):
                return _softmax_on_cuda(func, args, kwargs)
        return func(*args, **kwargs)


def _softmax_on_cuda(func: Any, args: Any, kwargs: Any) -> Any:
    """CUDA's softmax reads half precision and writes single without an upcast copy."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if args and args[0].dtype in _HALF and isinstance(dim, int):
        return torch.ops.aten._softmax.default(args[0], dim, half_to_float=True)
    return func(*args, **kwargs)


def _names_a_device(arg: Any) -> bool:
    if isinstance(arg, torch.device):
        return True
    return isinstance(arg, str) and arg.partition(":")[0] in ("cuda", "cpu", "meta", "mps", "xpu")


def _here(_: Any) -> torch.device:
    return _HERE
