"""Calls of torch's operator database (``op_db``) as values: an operator's function on the tensors of one sample.

Samples are drawn from fixed seeds, one per call of ``cases``, so that a pair of operator and dtype has the same samples
in every process and in every order. The database needs the package ``expecttest``.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch

SEED: Final = 20
DTYPES: Final = (
    "float32", "float64", "bfloat16", "float16", "complex64", "int64", "bool", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One sample: ``function`` on ``args`` and ``kwargs``, in which a ``_Place`` stands for each of ``tensors``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: Tensors
    in_place: bool
    trains: bool

    def arguments(self, tensors: Tensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call with these tensors in their places."""
        return _filled(self.args, tensors), {name: _filled(value, tensors) for name, value in self.kwargs.items()}

    def call(self, tensors: Tensors) -> Any:
        args, kwargs = self.arguments(tensors)
        return self.function(*args, **kwargs)

    def call_on_copy(self, tensors: Tensors) -> Any:
        """The call where autograd admits it: an operator in place changes a copy of its leaf."""
        args, kwargs = self.arguments(tensors)
        return self.function(args[0].clone(), *args[1:], **kwargs) if self.in_place else self.call(tensors)

    def twins(self, *, trained: bool = False) -> dict[str, torch.Tensor]:
        """The tensors anew: same bytes, windows, shared storages and bits."""
        storages: dict[int, torch.Tensor] = {}
        return {name: _twin(tensor, storages, trained=trained) for name, tensor in self.tensors.items()}


@dataclass(frozen=True, slots=True)
class _Place:
    name: str


@cache
def operator_database() -> Sequence[Any]:
    """torch's, loaded without what loading it does to the process: no later setting of a backend would be allowed."""
    with patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - takes seconds

    return op_db  # type: ignore[no-any-return]


@cache
def _entries() -> Mapping[str, Any]:
    return {_full_name(entry): entry for entry in operator_database()}


def _full_name(entry: Any) -> str:
    return str(entry.name) + (f":{entry.variant_test_name}" if entry.variant_test_name else "")


def pairs() -> list[tuple[str, str]]:
    """(operator, dtype) for each operator of the database and each of ``DTYPES`` that it takes on a CPU."""
    return [
        (name, dtype)
        for name, entry in sorted(_entries().items())
        for dtype in DTYPES
        if getattr(torch, dtype) in entry.supported_dtypes("cpu")
    ]


def cases(name: str, dtype: str, count: int) -> Iterator[tuple[str, Case]]:
    """(label, case) of the first ``count`` samples, each as a function and, where there is one, in place."""
    entry, form = _entries()[name], getattr(torch, dtype)
    trains = bool(entry.supports_autograd) and form in entry.supported_backward_dtypes("cpu")
    _seed_all()
    samples = list(islice(entry.sample_inputs("cpu", form, requires_grad=trains), count))
    change = entry.get_inplace()
    for index, sample in enumerate(samples):
        yield str(index), _case(entry.get_op(), sample, trains=trains, in_place=False)
        if change is not None and not sample.broadcasts_input and isinstance(sample.input, torch.Tensor):
            yield f"{index} in place", _case(change, sample, trains=trains, in_place=True)


def _seed_all() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def _case(function: Callable[..., Any], sample: Any, *, trains: bool, in_place: bool) -> Case:
    found: dict[int, _Place] = {}
    tensors: dict[str, torch.Tensor] = {}

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            spot = found.setdefault(id(value), _Place(f"t{len(found)}"))
            tensors[spot.name] = value
            return spot
        return value

    args = _mapped((sample.input, *sample.args), place)
    kwargs = {name: _mapped(value, place) for name, value in sample.kwargs.items()}
    return Case(function=function, args=args, kwargs=kwargs, tensors=tensors, in_place=in_place, trains=trains)


def _filled(value: Any, tensors: Tensors) -> Any:
    return _mapped(value, lambda leaf: tensors[leaf.name] if isinstance(leaf, _Place) else leaf)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested lists, tuples and dicts with each leaf changed; other containers are leaves."""
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    if type(value) is dict:
        return {key: _mapped(item, change) for key, item in value.items()}
    return change(value)


def _twin(tensor: torch.Tensor, storages: dict[int, torch.Tensor], *, trained: bool) -> torch.Tensor:
    with torch.no_grad():
        if tensor.layout is not torch.strided:
            twin = tensor.detach().clone()
        else:
            storage = tensor.untyped_storage()
            flat = storages.get(storage._cdata)
            if flat is None:
                whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
                flat = storages[storage._cdata] = whole.clone()
            layout = tensor.storage_offset(), tensor.shape, tensor.stride()
            twin = torch.empty(0, dtype=tensor.dtype).set_(flat.untyped_storage(), *layout)
            twin = torch._neg_view(twin) if tensor.is_neg() else twin
            twin = (twin.conj() if tensor.is_conj() else twin).detach()
    return twin.requires_grad_(trained and tensor.requires_grad)
