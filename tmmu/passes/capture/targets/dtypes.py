"""``--dtype``: weights, buffers and inputs of a model in another floating dtype, as ``model.bfloat16()`` has them."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

import torch

from tmmu.errors import InvalidConfig
from tmmu.passes.capture.activities import Activity, in_activity
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.workload import Workload

_DTYPES: Final = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
_CONVERSIONS: Final = {
    torch.float32: torch.nn.Module.float,
    torch.float16: torch.nn.Module.half,
    torch.bfloat16: torch.nn.Module.bfloat16,
    torch.float64: torch.nn.Module.double,
}


def parse_dtype(name: str) -> torch.dtype:
    """The dtype of this name; ``INVALID_CONFIG`` for another."""
    if name not in _DTYPES:
        raise InvalidConfig(f"no dtype {name!r}", fix=f"choose one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def with_dtype(workload: Workload, request: CaptureRequest) -> Workload:
    """The workload in the dtype that the request names, converted in place; inputs of ``--input`` keep their own."""
    if request.dtype is None:
        return workload
    dtype = parse_dtype(request.dtype)
    if workload.module is None:
        raise InvalidConfig(
            f"--dtype: {workload.name} is a function, whose weights nobody can convert",
            fix="name a module or its class, or convert them in the file",
        )
    with in_activity(Activity.BUILDING):
        _CONVERSIONS[dtype](workload.module)
    if request.inputs:
        return workload
    with in_activity(Activity.INPUTS):
        converted = dict[int, torch.Tensor]()
        args, kwargs = (_convert(value, dtype, converted) for value in (workload.args, dict(workload.kwargs)))
    return replace(workload, args=args, kwargs=kwargs)


def convert_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A leaf in this dtype; the tensor itself where it has it, or has no floating one."""
    if not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def _convert(value: Any, dtype: torch.dtype, converted: dict[int, torch.Tensor]) -> Any:
    """The value with converted tensors inside of tuples, lists, dicts and dataclasses; one object stays one."""
    if isinstance(value, torch.Tensor):
        if id(value) not in converted:
            converted[id(value)] = convert_tensor(value, dtype)
        return converted[id(value)]
    if isinstance(value, dict):
        return {key: _convert(item, dtype, converted) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_convert(item, dtype, converted) for item in value]
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: _convert(getattr(value, name), dtype, converted) for name in names})
    return value
