"""Numbers that only a run knows: what ``.item()`` gives where no constant decides it.

Such a number may be stored, copied, returned, formatted (``nan``) and computed with, as logs do
(``total += loss.item()``). It keeps how it was computed from numbers of tensors, and may be a number of a pointwise
call (``parameter.add_(update, alpha=-number)``), which then reads these tensors.
Whatever would decide what the step does looks at it, and is refused at that line: truth, comparison, conversion to a
Python number, use as an index or a size.

Invariants. A call that takes such a number reads what ``.item()`` read: no call wrote to the tensor in between. Torch
is given a number of the same class in its place (``_FIRST_STAND_IN``), which no other argument is, and by which the
recorder finds it among the arguments of the calls that arrive; each is found once in all of them, or the call is
refused: torch computed with it. Autograd would too: a call that has a gradient is refused.
"""

import builtins
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NoReturn

import torch
from torch import fx, nn

from tmmu.ir.program import ItemRef, NumberFormula
from tmmu.passes.capture.program import Window
from tmmu.passes.capture.record.graph_builder import GraphBuilder, builder_of, flatten
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import DataDependentOutputException, DisableTorchFunction, FakeTensor, OpOverload

_ARITHMETIC: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
_CONVERSIONS: Final = ("bool", "int", "float", "complex", "index", "floor", "ceil", "trunc")
_INTEGER_FORM: Final = re.compile(r"(?:(?<=\D)0)?[bcdoxXn]$")
"""How a form ends that a float lacks."""
_FIRST_STAND_IN: Final = 0.4137251976310827
_STAND_IN_STEP: Final = 2.0**-44
_POINTWISE_LISTS: Final = "_foreach_"
"""How operators begin that do the same to each tensor of a list, and to no other element."""
_FILLS: Final = frozenset(
    {"fill", "fill_", "full", "full_like", "index_fill", "index_fill_", "masked_fill_", "new_full", "scalar_tensor"}
)
"""Operators whose only number is that of elements."""
_MAX_OPERATIONS: Final = 64
"""Beyond which it is not kept how a number was computed: sums of a log grow with every step."""


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """A number that ``.item()`` read: the tensor's node, and how many calls had written to its storage by then."""

    builder: GraphBuilder
    node: fx.Node
    window: Window
    writes: int

    @property
    def is_unchanged(self) -> bool:
        """Whether the tensor holds it still."""
        written = len(self.builder.mutators.get(self.window.storage, ()))
        return written == self.writes and not self.builder.table.is_freed(self.window)


class UnknownNumber:
    """A number without a value, of the class that Python's ``isinstance`` sees: ``float``, ``int``, ``bool``, ...

    Its type is none of these, so that C code cannot read a value of it. ``expression``: how it was computed, as in a
    ``NumberFormula`` with items in place of references; ``None`` where nobody knows.
    """

    __slots__ = ("_kind", "expression", "operations")
    __hash__ = object.__hash__

    def __init__(self, kind: type = float, expression: Any = None, operations: int = 0) -> None:
        self._kind = kind
        self.expression = expression if operations <= _MAX_OPERATIONS else None
        self.operations = operations

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._kind

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What the call gives that takes such numbers; refused where one would decide more than elements."""
        del types
        return _call_with_numbers(func, args, kwargs or {})

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
        return _computed("neg", self._arithmetic_kind, self)

    def __pos__(self) -> "UnknownNumber":
        return self

    def __abs__(self) -> "UnknownNumber":
        return _computed("abs", self._arithmetic_kind, self)

    def __round__(self, digits: int | None = None) -> "UnknownNumber":
        return UnknownNumber(int if digits is None else self._arithmetic_kind)

    @property
    def _arithmetic_kind(self) -> type:
        return int if self._kind is bool else self._kind


def _look(*_: Any) -> NoReturn:
    raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)


def _computed(name: str, kind: type, *operands: Any) -> UnknownNumber:
    """The number that an operation of ``NUMBER_OPERATIONS`` gives."""
    unknown = [operand for operand in operands if type(operand) is UnknownNumber]
    parts = [operand.expression if type(operand) is UnknownNumber else operand for operand in operands]
    expression = None if any(number.expression is None for number in unknown) else (name, *parts)
    return UnknownNumber(kind, expression, 1 + sum(number.operations for number in unknown))


def _arithmetic(name: str, *, reflected: bool) -> Callable[..., Any]:
    def compute(number: UnknownNumber, other: Any, *rest: Any) -> Any:
        if isinstance(other, torch.Tensor) or not isinstance(other, (int, float, complex)):
            return NotImplemented
        kinds = {number.__class__, other.__class__, float if name == "truediv" else int}
        kind = next((kind for kind in (complex, float) if kind in kinds), int)
        if rest and rest != (None,):
            return UnknownNumber(kind)
        return _computed(name, kind, *((other, number) if reflected else (number, other)))

    return compute


for _name in _ARITHMETIC:
    setattr(UnknownNumber, f"__{_name}__", _arithmetic(_name, reflected=False))
    setattr(UnknownNumber, f"__r{_name}__", _arithmetic(_name, reflected=True))
for _name in (*_COMPARISONS, *_CONVERSIONS):
    setattr(UnknownNumber, f"__{_name}__", _look)


def _call_with_numbers(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The call with a stand-in for each unknown number, which the recorder finds again."""
    numbers: dict[float, tuple[Any, ...]] = {}
    builders: list[GraphBuilder] = []
    known = {value for value in flatten((*args, *kwargs.values())) if type(value) is float}
    unused = (number for place in count() if (number := _FIRST_STAND_IN + place * _STAND_IN_STEP) not in known)

    def stand_in(value: Any) -> Any:
        if type(value) is UnknownNumber:
            items = _items_of(value.expression)
            if value.__class__ is not float or not items or not all(item.is_unchanged for item in items):
                _look()
            builders.extend(item.builder for item in items)
            number = next(unused)
            numbers[number] = _formula_of(value.expression, items)
            return number
        if isinstance(value, (list, tuple)):
            return type(value)(map(stand_in, value)) if type(value) in (list, tuple) else value
        return value

    args = [stand_in(value) for value in args]
    kwargs = {name: stand_in(value) for name, value in kwargs.items()}
    tensors = [value for value in flatten((*args, *kwargs.values())) if isinstance(value, torch.Tensor)]
    if not numbers or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        _look()
    if any(builder is not builders[0] for builder in builders):
        _look()
    with builders[0].numbers_in_calls(numbers) as arrived:
        try:
            result = func(*args, **kwargs)
        except (IndexError, RuntimeError, TypeError, ValueError):
            if not numbers.keys() <= set(arrived):  # torch refuses a stand-in: it is an index, or a size
                _look()
            raise
        if sorted(arrived) != sorted(numbers):
            _look()
    return result


def require_elements_alone(func: OpOverload, arguments: Sequence[Any]) -> None:
    """Refuse a call that takes such a number where it may decide more than elements: a shape, a probability."""
    name = func.overloadpacket.__name__
    if torch.Tag.pointwise in func.tags or name in _FILLS or name.startswith(_POINTWISE_LISTS):
        return
    if any(isinstance(leaf, NumberFormula) for leaf in flatten(tuple(arguments))):
        _look()


def _items_of(expression: Any) -> list[_Item]:
    """The items of an expression, each once, in order."""
    if isinstance(expression, _Item):
        return [expression]
    if not isinstance(expression, tuple):
        return []
    return list(dict.fromkeys(item for part in expression[1:] for item in _items_of(part)))


def _formula_of(expression: Any, items: Sequence[_Item]) -> tuple[Any, ...]:
    """The argument of a node: the formula, and the node of each item."""
    places = {item: ItemRef(place) for place, item in enumerate(items)}

    def refer(part: Any) -> Any:
        if isinstance(part, _Item):
            return places[part]
        return (part[0], *map(refer, part[1:])) if isinstance(part, tuple) else part

    return (NumberFormula(refer(expression)), *(item.node for item in items))


def _choice(name: str) -> Callable[..., Any]:
    """``max`` or ``min`` that knows unknown numbers among its arguments; everything else is the builtin's."""
    original = getattr(builtins, name)

    def choose(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 2 or kwargs or not any(type(arg) is UnknownNumber for arg in args):
            return original(*args, **kwargs)
        kinds = {arg.__class__ for arg in args}
        if len(kinds) > 1 or not kinds <= {int, float}:
            _look()  # which class it has depends on the values
        return _computed(name, kinds.pop(), *args)

    return choose


def _kind_of(dtype: torch.dtype) -> type:
    """The class of Python's numbers that ``.item()`` gives for the dtype."""
    if dtype is torch.bool:
        return bool
    return complex if dtype.is_complex else float if dtype.is_floating_point else int


def _item_of(tensor: torch.Tensor) -> _Item | None:
    """What ``.item()`` of a tensor reads, in the recording that it belongs to."""
    builder = builder_of(tensor)
    if builder is None:
        return None
    with DisableTorchFunction():
        node, window = builder.node_of(tensor), builder.table.window(tensor)
    return _Item(builder, node, window, len(builder.mutators.get(window.storage, ())))


@contextmanager
def unknown_items() -> Iterator[None]:
    """Block in which ``Tensor.item()`` of a tensor without a value is such a number, no error; so in a format.

    ``max`` and ``min`` know such numbers.
    """
    known: Callable[[torch.Tensor], Any] = torch.Tensor.item
    known_format: Callable[[torch.Tensor, str], str] = torch.Tensor.__format__

    def item(tensor: torch.Tensor) -> Any:
        try:
            return known(tensor)
        except DataDependentOutputException:
            return UnknownNumber(_kind_of(tensor.dtype), _item_of(tensor))

    def format_number(tensor: torch.Tensor, form: str) -> str:
        is_number = tensor.dim() == 0 and isinstance(tensor, FakeTensor) and not isinstance(tensor, nn.Parameter)
        return format(tensor.item(), form) if is_number else known_format(tensor, form)

    torch.Tensor.item = item  # type: ignore[method-assign,assignment]
    try:
        with (
            replace_attribute(torch.Tensor, "__format__", format_number),
            replace_attribute(builtins, "max", _choice("max")),
            replace_attribute(builtins, "min", _choice("min")),
        ):
            yield
    finally:
        del torch.Tensor.item  # it inherits the real one
