"""A witness independent of capture: what a real run on the CPU allocates and touches, call by call."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Call:
    """One operator call of a real run: bytes of the storages that it made, and the numbers of those that it touched."""

    name: str
    sizes: dict[int, int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)


class Witness(TorchDispatchMode):
    """Watches real tensors; a storage is made by the call that first returns it."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.storages: list[Any] = []
        self.number: dict[int, int] = {}
        for tensor in tensors:
            self.storage(tensor)

    def storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.number:
            self.number[storage._cdata] = len(self.number)
            self.storages.append(storage)
        return self.number[storage._cdata]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        arguments = _tensors((args, kwargs))
        copies = [t.detach().clone() for t in arguments]
        result = func(*args, **kwargs)
        call = Call(name=str(func))
        call.touched.update(self.storage(t) for t in arguments)
        call.changed.update(self.storage(t) for t, old in zip(arguments, copies, strict=True) if not _same(t, old))
        for tensor in _tensors(result):
            is_new = tensor.untyped_storage()._cdata not in self.number
            number = self.storage(tensor)
            if is_new:
                call.sizes[number] = tensor.untyped_storage().nbytes()
            call.touched.add(number)
        if call.sizes or call.changed or call.name.split(".")[1].endswith("_"):
            self.calls.append(call)
        return result


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) if a.dim() else bool(a == b)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _tensors(item)]
    return []
