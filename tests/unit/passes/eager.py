"""An independent witness: what a real run on the CPU allocates and touches, call by call."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Call:
    """One operator call of a real run: storages (by number) that it made, with sizes, and that it touched."""

    name: str
    made: dict[int, int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)


class Witness(TorchDispatchMode):
    """Watches real tensors; a storage is made by the call that first returns it."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.kept: list[Any] = []
        self.number: dict[int, int] = {}
        for tensor in known:
            self.storage(tensor)

    def storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.number:
            self.number[storage._cdata] = len(self.number)
            self.kept.append(storage)
        return self.number[storage._cdata]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        given = _tensors((args, kwargs))
        held = [t.detach().clone() for t in given]
        result = func(*args, **kwargs)
        call = Call(name=str(func))
        call.touched.update(self.storage(t) for t in given)
        call.changed.update(self.storage(t) for t, old in zip(given, held, strict=True) if not _same(t, old))
        for tensor in _tensors(result):
            fresh = tensor.untyped_storage()._cdata not in self.number
            number = self.storage(tensor)
            if fresh:
                call.made[number] = tensor.untyped_storage().nbytes()
            call.touched.add(number)
        if call.made or call.changed or call.name.split(".")[1].endswith("_"):
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
