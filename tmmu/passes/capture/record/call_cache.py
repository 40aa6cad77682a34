"""Call cache: a call on arguments of a form that was seen before makes its result from the form of the first one.

A model of N equal layers makes each call N times. Fake tensors cache such calls too, by a key that costs more than all
else in the call; this cache sees the recorder's own calls alone (one device, static shapes, strided tensors) and needs
less. An operator on lists (``_foreach_add_``) works on each place of them by itself, and is looked up place by place.

State: one table from key to result form. The key is the operator, the default dtype, and every argument: a plain value
by type and value (``1`` and ``True`` are equal and differ), a tensor by shape, stride, offset and dtype; of a call that
writes also by the bytes of its storage. The form of a result is the argument that it is, or its shape, stride, offset
and dtype, and either the argument whose storage it shares or a storage of its own that is exactly as long as the tensor
reaches. Invariant: two calls with one key run the same fake kernel on the same forms, so their results have one form;
and a rebuilt result shares storages with the arguments just as the first did. A write changes no fake tensor, unless it
resizes or moves it: such a call is not cached, nor is one that meets an argument or result of another kind (constants
inside fakes, lazy conjugates, subclasses, other devices). It runs each time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from tmmu.passes.operators.schema import argument_schema, signature
from tmmu.torch_private import (
    DisableTorchDispatch,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    cpp_address,
    device_of_fake,
    fake_like,
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


_Form: TypeAlias = _ResultForm | int
"""Of one result; the number of a tensor argument where it is that argument."""


@dataclass(frozen=True, slots=True)
class _ResultForms:
    """What a call returns: nothing or one result (``kind`` is ``None``), or a tuple or list of them."""

    forms: tuple[_Form, ...]
    kind: type[tuple[Any, ...]] | type[list[Any]] | None
    pattern: FakeTensor | None
    """Of the mode that its new tensors belong to; ``None`` where it returns none."""


Correction: TypeAlias = Callable[[OpOverload, tuple[Any, ...], dict[str, Any], Any], Any]
"""What makes of the result of a call the one that it should have; of one form where calls have one key."""


def keep_result(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:  # noqa: ARG001
    """The result as it is."""
    return result


class CallCache:
    """Result forms by call, each after its correction. ``O(size of the arguments)`` per call."""

    def __init__(self, correct: Correction = keep_result) -> None:
        self._correct = correct
        self._forms: dict[Any, _ResultForms | None] = {}
        self._patterns: dict[FakeTensorMode, FakeTensor] = {}

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``func(*args, **kwargs)`` returns."""
        places = _places(func, args, kwargs)
        if places is None:
            return self._run(func, args, kwargs)
        results = [self._run(func, *_at_place(place, func, args, kwargs)) for place in range(places)]
        return None if results[0] is None else [result for (result,) in results]

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors: list[FakeTensor] = []
        writes = signature(func).mutates
        try:
            key = (func, torch.get_default_dtype(), _key(args, tensors), _key(tuple(kwargs.items()), tensors))
        except _Uncacheable:
            return self._make(func, args, kwargs)
        if writes:
            key = (*key, *[tensor.untyped_storage().nbytes() for tensor in tensors])
        if key in self._forms:
            form = self._forms[key]
            return self._make(func, args, kwargs) if form is None else _rebuild(form, tensors)
        before = _memory_of(tensors) if writes else []
        result = self._make(func, args, kwargs)
        is_in_place = not writes or _memory_of(tensors) == before
        self._forms[key] = self._forms_of(result, tensors) if is_in_place else None
        return result

    def _make(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._correct(func, args, kwargs, func(*args, **kwargs))

    def _forms_of(self, result: Any, tensors: list[FakeTensor]) -> _ResultForms | None:
        """The form of what a call returned; ``None`` for one that must run each time."""
        kind = type(result) if type(result) in (tuple, list) else None
        results = () if result is None else result if kind else (result,)
        storages = [cpp_address(tensor.untyped_storage()) for tensor in tensors]
        try:
            forms = tuple([_form_of(item, tensors, storages) for item in results])
        except _Uncacheable:
            return None
        return _ResultForms(forms, kind, self._pattern_of(results[0].fake_mode) if results else None)

    def _pattern_of(self, mode: FakeTensorMode) -> FakeTensor:
        """A tensor that has what all new ones of a mode begin with."""
        if mode not in self._patterns:
            with DisableTorchDispatch():
                self._patterns[mode] = FakeTensor(mode, torch.empty(0, device="meta"), torch.device("cpu"))
        return self._patterns[mode]


def _places(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The length of the lists of an operator that works place by place; ``None`` for all others."""
    if not signature(func).name.startswith("aten._foreach_"):
        return None
    lengths = {len(value) for _, value in _lists(func, args, kwargs)}
    return lengths.pop() or None if len(lengths) == 1 else None  # torch has the word on lists of two lengths


def _lists(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int | str, Any]]:
    """(position or keyword, value) of each argument that has an element for each place."""
    schema = argument_schema(func)
    types = {name: kind for name, kind, _ in schema}
    listed: list[tuple[int | str, Any]] = [
        (at, value) for at, value in enumerate(args) if schema[at][1].startswith("List[")
    ]
    listed += [(name, value) for name, value in kwargs.items() if types[name].startswith("List[")]
    return listed


def _at_place(
    place: int, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the same call on one place of its lists."""
    taken = {at: [value[place]] for at, value in _lists(func, args, kwargs)}
    return (
        tuple([taken.get(at, value) for at, value in enumerate(args)]),
        {name: taken.get(name, value) for name, value in kwargs.items()},
    )


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


def _memory_of(tensors: list[FakeTensor]) -> list[tuple[Any, ...]]:
    """Where each tensor lies in which storage, of how many bytes."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return [
        (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, cpp_address(storage), storage.nbytes())
        for tensor, storage in zip(tensors, storages, strict=True)
    ]


def _form_of(result: Any, tensors: list[FakeTensor], storages: list[int]) -> _Form:
    same = next((number for number, tensor in enumerate(tensors) if tensor is result), None)
    if same is not None:
        return same
    if type(result) is not FakeTensor or result.layout is not torch.strided:
        raise _Uncacheable
    if result.constant is not None or result.is_conj() or result.is_neg() or device_of_fake(result).type != "cpu":
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
    pattern = form.pattern
    if pattern is None:
        return form.kind() if form.kind else None
    results = [tensors[item] if isinstance(item, int) else _tensor_of(item, tensors, pattern) for item in form.forms]
    return form.kind(results) if form.kind else results[0]


def _tensor_of(form: _ResultForm, tensors: list[FakeTensor], pattern: FakeTensor) -> FakeTensor:
    with DisableTorchDispatch():
        meta = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")
        if form.alias_of is not None:
            meta.set_(tensors[form.alias_of].untyped_storage(), form.offset, form.shape, form.stride)
        return fake_like(pattern, meta)
