"""Numbers that only a run knows: what ``.item()`` gives where no constant decides it.

Such a number may be stored, returned, formatted (``nan``) and computed with, as logs do (``total += loss.item()``).
Whatever would decide what the step does looks at it, and is refused at that line: truth, comparison, conversion to a
Python number, use as an index, arithmetic with a tensor.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch

from tmmu.torch_private import DataDependentOutputException

_ARITHMETIC: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
_CONVERSIONS: Final = ("bool", "int", "float", "complex", "index", "floor", "ceil", "trunc")


class UnknownNumber:
    """A number without a value, of the class that Python's ``isinstance`` sees: ``float``, ``int``, ``bool``, ...

    Its type is none of these, so that C code cannot read a value of it.
    """

    __slots__ = ("_kind",)
    __hash__ = object.__hash__

    def __init__(self, kind: type = float) -> None:
        self._kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._kind

    def __repr__(self) -> str:
        return "nan"

    def __format__(self, form: str) -> str:
        return format(float("nan"), form.replace("d", "f"))  # an integer's form, which floats do not have

    def __neg__(self) -> "UnknownNumber":
        return self

    def __pos__(self) -> "UnknownNumber":
        return self

    def __abs__(self) -> "UnknownNumber":
        return self

    def __round__(self, digits: int | None = None) -> "UnknownNumber":
        return self


def _look(*_: Any) -> NoReturn:
    raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)


def _arithmetic(name: str) -> Callable[..., Any]:
    def compute(number: UnknownNumber, other: Any, *_: Any) -> Any:
        if isinstance(other, torch.Tensor):
            _look()
        if not isinstance(other, (int, float, complex)):
            return NotImplemented
        kinds = {number.__class__, other.__class__, float if name == "truediv" else int}
        return UnknownNumber(next((kind for kind in (complex, float) if kind in kinds), int))

    return compute


for _name in _ARITHMETIC:
    setattr(UnknownNumber, f"__{_name}__", _arithmetic(_name))
    setattr(UnknownNumber, f"__r{_name}__", _arithmetic(_name))
for _name in (*_COMPARISONS, *_CONVERSIONS):
    setattr(UnknownNumber, f"__{_name}__", _look)


def _kind_of(dtype: torch.dtype) -> type:
    """The class of Python's numbers that ``.item()`` gives for the dtype."""
    if dtype is torch.bool:
        return bool
    return complex if dtype.is_complex else float if dtype.is_floating_point else int


@contextmanager
def unknown_items() -> Iterator[None]:
    """Block in which ``Tensor.item()`` of a tensor without a value is such a number, no error."""
    known: Callable[[torch.Tensor], Any] = torch.Tensor.item

    def item(tensor: torch.Tensor) -> Any:
        try:
            return known(tensor)
        except DataDependentOutputException:
            return UnknownNumber(_kind_of(tensor.dtype))

    torch.Tensor.item = item  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del torch.Tensor.item  # it inherits the real one
