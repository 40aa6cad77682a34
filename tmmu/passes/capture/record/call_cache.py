"""Call cache: a call on arguments of a form that was seen before makes its result from the form of the first one.

A model of N equal layers makes each call N times. Fake tensors cache such calls too, by a key that costs more than all
else in the call; this cache sees the recorder's own calls alone (one device, static shapes, strided tensors) and needs
less.

State: one table from key to result form. The key is the operator, the default dtype, and every argument: a plain value
by type and value (``1`` and ``True`` are equal and differ), a tensor by shape, stride, offset and dtype. The form of a
result is its shape, stride, offset and dtype, and either the argument whose storage it shares or a storage of its own
that is exactly as long as the tensor reaches. Invariant: two calls with one key run the same fake kernel on the same
forms, so their results have one form; and a rebuilt result shares storages with the arguments just as the first did.
What the key does not cover is not cached: a call that writes, makes its result of no tensor, or meets an argument or
result of another kind (constants inside fakes, lazy conjugates, subclasses). It runs each time.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from tmmu.passes.operators.schema import signature
from tmmu.torch_private import (
    DisableTorchDispatch,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    cpp_address,
    in_kernel_invocation_manager,
)

_PLAIN: Final = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device, complex}
)


class _Uncacheable(Exception):
    """The call has an argument or a result that the key does not cover."""


@dataclass(frozen=True, slots=True)
class _ResultForm:
    """One result: a new tensor, or a view of the tensor argument number ``alias_of``; ``offset`` in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    alias_of: int | None


_ResultForms: TypeAlias = tuple[_ResultForm, ...] | list[_ResultForm] | _ResultForm
"""One result, or the results of an operator that returns a tuple or a list."""


class CallCache:
    """Result forms by call. ``O(size of the arguments)`` per call."""

    def __init__(self) -> None:
        self._forms: dict[Any, _ResultForms | None] = {}

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``func(*args, **kwargs)`` returns."""
        tensors: list[FakeTensor] = []
        try:
            key = (func, torch.get_default_dtype(), _key(args, tensors), _key(tuple(kwargs.items()), tensors))
        except _Uncacheable:
            return func(*args, **kwargs)
        if key not in self._forms:
            result = func(*args, **kwargs)
            self._forms[key] = _cacheable_form(func, result, tensors)
            return result
        form = self._forms[key]
        return func(*args, **kwargs) if form is None else _rebuild(form, tensors)


def _key(value: Any, tensors: list[FakeTensor]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return (kind, value)
    if isinstance(value, FakeTensor):
        return _tensor_key(value, tensors)
    if kind is tuple or kind is list:
        return tuple([_key(item, tensors) for item in value])
    raise _Uncacheable


def _tensor_key(tensor: FakeTensor, tensors: list[FakeTensor]) -> Any:
    if tensor.constant is not None or tensor.is_conj() or tensor.is_neg() or tensor.layout is not torch.strided:
        raise _Uncacheable
    tensors.append(tensor)
    return (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)


def _cacheable_form(func: OpOverload, result: Any, tensors: list[FakeTensor]) -> _ResultForms | None:
    """The form of the result; ``None`` for calls that must run each time."""
    if signature(func).mutates or not tensors:
        return None
    storages = [cpp_address(tensor.untyped_storage()) for tensor in tensors]
    try:
        if type(result) is tuple:
            return tuple([_form_of(item, storages) for item in result])
        if type(result) is list:
            return [_form_of(item, storages) for item in result]
        return _form_of(result, storages)
    except _Uncacheable:
        return None


def _form_of(result: Any, storages: list[int]) -> _ResultForm:
    if type(result) is not FakeTensor or result.layout is not torch.strided:
        raise _Uncacheable
    if result.constant is not None or result.is_conj() or result.is_neg():
        raise _Uncacheable
    storage = result.untyped_storage()
    address = cpp_address(storage)
    alias_of = storages.index(address) if address in storages else None
    if alias_of is None and (result.storage_offset() or storage.nbytes() != _reach_bytes(result)):
        raise _Uncacheable
    return _ResultForm(tuple(result.shape), result.stride(), int(result.storage_offset()), result.dtype, alias_of)


def _reach_bytes(tensor: torch.Tensor) -> int:
    """From the tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def _rebuild(form: _ResultForms, tensors: list[FakeTensor]) -> Any:
    mode: FakeTensorMode = tensors[0].fake_mode
    if isinstance(form, _ResultForm):
        return _tensor_of(form, tensors, mode)
    results = [_tensor_of(item, tensors, mode) for item in form]
    return results if isinstance(form, list) else tuple(results)


def _tensor_of(form: _ResultForm, tensors: list[FakeTensor], mode: FakeTensorMode) -> FakeTensor:
    with DisableTorchDispatch():
        meta = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")
        if form.alias_of is not None:
            storage = tensors[form.alias_of].untyped_storage()
            with in_kernel_invocation_manager(mode):
                meta.set_(storage, form.offset, form.shape, form.stride)
        return FakeTensor(mode, meta, torch.device("cpu"))
