"""Numbers that only a run knows: what ``.item()`` gives where no constant decides it.

Such a number may be stored, copied, returned, formatted (``nan``) and computed with, as logs do
(``total += loss.item()``).
Whatever would decide what the step does looks at it, and is refused at that line: truth, comparison, conversion to a
Python number, use as an index, arithmetic with a tensor.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch
from torch import nn

from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import DataDependentOutputException, FakeTensor

_ARITHMETIC: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
_CONVERSIONS: Final = ("bool", "int", "float", "complex", "index", "floor", "ceil", "trunc")
_INTEGER_FORM: Final = re.compile(r"(?:(?<=\D)0)?[bcdoxXn]$")
"""How a form ends that a float lacks."""


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
        """As wide as it would be; ``ValueError`` for a form that numbers of its class do not have."""
        format(self._kind(), form)
        return format(float("nan"), _INTEGER_FORM.sub("f", form))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        del protocol
        _look()

    def __copy__(self) -> "UnknownNumber":
        return self

    def __deepcopy__(self, memo: Any) -> "UnknownNumber":
        return self

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
            raise TypeError(f"{type(number).__name__}, of .item(), beside a tensor")
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
    """Block in which ``Tensor.item()`` of a tensor without a value is such a number, no error; so in a format."""
    known: Callable[[torch.Tensor], Any] = torch.Tensor.item
    known_format: Callable[[torch.Tensor, str], str] = torch.Tensor.__format__

    def item(tensor: torch.Tensor) -> Any:
        try:
            return known(tensor)
        except DataDependentOutputException:
            return UnknownNumber(_kind_of(tensor.dtype))

    def format_number(tensor: torch.Tensor, form: str) -> str:
        is_number = tensor.dim() == 0 and isinstance(tensor, FakeTensor) and not isinstance(tensor, nn.Parameter)
        return format(tensor.item(), form) if is_number else known_format(tensor, form)

    torch.Tensor.item = item  # type: ignore[method-assign,assignment]
    try:
        with replace_attribute(torch.Tensor, "__format__", format_number):
            yield
    finally:
        del torch.Tensor.item  # it inherits the real one
