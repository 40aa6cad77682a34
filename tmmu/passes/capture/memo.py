"""The same call on arguments of the same form has a result of the same form: remember it.

A model of N equal layers makes each call N times. Fake tensors cache such calls too, by a key that costs more than all
else in the call; this memo sees the recorder's own calls alone (one device, static shapes, strided tensors) and needs
less. A call that it does not understand runs as usual.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from tmmu.passes.operators.schema import signature

_PLAIN: Final = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device, complex}
)


class _Unsuitable(Exception):
    """The call has an argument or a result that the memo does not cover."""


@dataclass(frozen=True, slots=True)
class _Form:
    """One result: a fresh tensor, or a view of tensor argument ``of``."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    of: int | None


class CallMemo:
    """Results by call; what cannot be remembered is run."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[_Form, ...] | _Form | None] = {}
        self.hits = 0

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``func(*args, **kwargs)`` returns."""
        tensors: list[FakeTensor] = []
        try:
            key = (func, torch.get_default_dtype(), _key(args, tensors), _key(tuple(kwargs.items()), tensors))
        except _Unsuitable:
            return func(*args, **kwargs)
        if key not in self._known:
            result = func(*args, **kwargs)
            self._known[key] = _remembered(func, result, tensors)
            return result
        form = self._known[key]
        if form is None:
            return func(*args, **kwargs)
        self.hits += 1
        return _made(form, tensors)


def _key(value: Any, tensors: list[FakeTensor]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return (kind, value)
    if isinstance(value, FakeTensor):
        return _tensor_key(value, tensors)
    if kind is tuple or kind is list:
        return tuple([_key(item, tensors) for item in value])
    raise _Unsuitable


def _tensor_key(tensor: FakeTensor, tensors: list[FakeTensor]) -> Any:
    if tensor.constant is not None or tensor.is_conj() or tensor.is_neg() or tensor.layout is not torch.strided:
        raise _Unsuitable
    tensors.append(tensor)
    return (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)


def _remembered(func: OpOverload, result: Any, tensors: list[FakeTensor]) -> tuple[_Form, ...] | _Form | None:
    """The form of the result; ``None`` for calls that must run each time."""
    if signature(func).mutates or not tensors:
        return None
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    try:
        if type(result) is tuple:
            return tuple([_form(item, storages) for item in result])
        return _form(result, storages)
    except _Unsuitable:
        return None


def _form(result: Any, storages: list[int]) -> _Form:
    if type(result) is not FakeTensor or result.constant is not None or result.is_conj() or result.is_neg():
        raise _Unsuitable
    storage = result.untyped_storage()
    of = storages.index(storage._cdata) if storage._cdata in storages else None
    if of is None and (result.storage_offset() or storage.nbytes() != _least_bytes(result)):
        raise _Unsuitable
    return _Form(tuple(result.shape), result.stride(), int(result.storage_offset()), result.dtype, of)


def _least_bytes(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def _made(form: tuple[_Form, ...] | _Form, tensors: list[FakeTensor]) -> Any:
    mode: FakeTensorMode = tensors[0].fake_mode
    if isinstance(form, tuple):
        return tuple([_tensor(item, tensors, mode) for item in form])
    return _tensor(form, tensors, mode)


def _tensor(form: _Form, tensors: list[FakeTensor], mode: FakeTensorMode) -> FakeTensor:
    with torch._C._DisableTorchDispatch():
        meta = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")
        if form.of is not None:
            storage = tensors[form.of].untyped_storage()
            with in_kernel_invocation_manager(mode):
                meta.set_(storage, form.offset, form.shape, form.stride)
        return FakeTensor(mode, meta, torch.device("cpu"))
