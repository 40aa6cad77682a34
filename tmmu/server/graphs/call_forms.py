"""Call forms as torch has them: the operator, and arguments in which tensors are slots. Nothing else passes.

Strings are names of torch's own (``"mean"``, ``"trunc"``), which its operators check; a device is the server's, and a
generator or a pinned tensor cannot be said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from tmmu.errors import InvalidRequest, UnsupportedOp
from tmmu.passes.operators.schema import NO_DEFAULT, argument_schema, signature
from tmmu.server.graphs.whole_division import divide
from tmmu.torch_private import OpOverload, OpOverloadPacket, schema_of
from tmmu.wire.graph import ArgumentList, ComplexNumber, NamedConstant, OperatorForm, TensorSlot
from tmmu.wire.graph_operators import GRAPH_DTYPES, GRAPH_OPERATORS, RANDOM_OPERATORS, is_in
from tmmu.wire.limits import MOST_DIMENSIONS

_CONSTANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "dtype": {name: getattr(torch, name) for name in sorted(GRAPH_DTYPES)},
    "layout": {"strided": torch.strided},
    "memory_format": {
        name: getattr(torch, name)
        for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
    },
    "device": {"cpu": torch.device("cpu")},
}

_PLAIN_KINDS: Final = ("Tensor", "int", "float", "bool", "number", "str", "Device", "Generator")
_KINDS: Final = frozenset(
    form.format(kind)
    for kind in _PLAIN_KINDS
    for form in ("{}", "Optional[{}]", "List[{}]", "Optional[List[{}]]", "List[Optional[{}]]")
)
"""Types of arguments; a generator is never given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """A call form in torch's terms. ``written``: positions of the tensors that it writes, of ``tensors`` in all."""

    operator: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tensors: int
    written: frozenset[int]
    is_random: bool

    def arguments(self, tensor_of: Callable[[int], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with a tensor in place of each slot."""
        return (
            [_fill_slots(arg, tensor_of) for arg in self.args],
            {name: _fill_slots(value, tensor_of) for name, value in self.kwargs.items()},
        )

    def compute(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the operator returns for the tensors of its slots. Whatever the values, the process goes on."""
        args, kwargs = self.arguments(tensors.__getitem__)
        return divide(self.operator, args, kwargs) if self.is_division else self.operator(*args, **kwargs)

    @property
    def is_division(self) -> bool:
        """Whether the kernel is one of a division."""
        return str(self.operator).startswith(("aten.div.", "aten.div_."))

    def named_arguments(self, tensor_of: Callable[[int], Any]) -> dict[str, Any]:
        """The same by name, defaults included."""
        args, kwargs = self.arguments(tensor_of)
        schema = argument_schema(self.operator)
        arguments = {name: None if default is NO_DEFAULT else default for name, _, default in schema}
        return arguments | {name: arg for (name, _, _), arg in zip(schema, args, strict=False)} | kwargs


_MOST_NUMBERS: Final = 2 * MOST_DIMENSIONS
"""In one list, such as two for each dimension of a padding; lists of tensors may be longer."""


def operator_call(form: OperatorForm) -> OperatorCall:
    """The call of a form; ``UNSUPPORTED_OP`` for an operator that is not allowed, ``INVALID_REQUEST`` for nonsense."""
    if not is_in(form.operator, GRAPH_OPERATORS):
        raise UnsupportedOp(f"{form.operator} is no operator of a remote device", fix="run it on the cpu")
    operator = operator_named(form.operator)
    args, kwargs = tuple(map(_argument, form.args)), {name: _argument(value) for name, value in form.kwargs}
    names = [name for name, _, _ in argument_schema(operator)]
    if len(args) > len(names) or not set(kwargs) <= set(names[len(args) :]) or kwargs.get("pin_memory"):
        raise InvalidRequest(f"{form.operator} with arguments that it has not", fix="use a client of this version")
    slots = sorted(slot.position for slot in _slots((*args, *kwargs.values())))
    if slots != list(range(len(slots))):
        raise InvalidRequest(f"{form.operator}: tensors are not numbered", fix="use a client of this version")
    return OperatorCall(
        operator=operator,
        args=args,
        kwargs=kwargs,
        tensors=len(slots),
        written=frozenset(slot.position for slot in _slots(_written(operator, args, kwargs))),
        is_random=is_in(form.operator, RANDOM_OPERATORS),
    )


@cache
def operator_named(name: str) -> OpOverload:
    """The overload of a name such as ``aten.add.Tensor``; ``UNSUPPORTED_OP`` where this torch has none."""
    _, packet_name, overload_name = (*name.split(".", 2), "")[:3]
    packet = getattr(torch.ops.aten, packet_name, None)
    operator = getattr(packet, overload_name, None) if isinstance(packet, OpOverloadPacket) else None
    if isinstance(operator, OpOverload) and _is_of_tensors(operator):
        return operator
    raise UnsupportedOp(f"this torch ({torch.__version__}) has no {name}", fix="use the server's version of torch")


def _is_of_tensors(operator: OpOverload) -> bool:
    """Whether it takes tensors and plain values, and returns tensors: scripts have overloads of lists and texts."""
    schema = schema_of(operator)
    arguments, returns = ([str(value.type) for value in values] for values in (schema.arguments, schema.returns))
    return set(arguments) <= _KINDS and bool(returns) and set(returns) <= {"Tensor", "List[Tensor]"}


def _written(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    facts = signature(operator)
    written = []
    for position, name in zip(facts.positions, facts.keywords, strict=True):
        if position < len(args):
            written.append(args[position])
        elif name in kwargs:
            written.append(kwargs[name])
    if facts.mutates and not facts.positions:  # running statistics that the schema does not say
        written = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, TensorSlot)]
    return written


def _argument(argument: Any) -> Any:
    if isinstance(argument, ArgumentList):
        if sum(not isinstance(item, TensorSlot) for item in argument.items) > _MOST_NUMBERS:
            raise InvalidRequest(f"a list of more than {_MOST_NUMBERS} numbers", fix="give one for each dimension")
        return [_argument(item) for item in argument.items]
    if isinstance(argument, ComplexNumber):
        return complex(argument.real, argument.imaginary)
    if isinstance(argument, NamedConstant):
        constant = _CONSTANTS.get(argument.kind, {}).get(argument.name)
        if constant is None:
            raise InvalidRequest(f"no {argument.kind:.20} {argument.name:.40}", fix="use a client of this version")
        return constant
    return argument


def _slots(value: Any) -> list[TensorSlot]:
    if isinstance(value, (tuple, list)):
        return [slot for item in value for slot in _slots(item)]
    return [value] if isinstance(value, TensorSlot) else []


def _fill_slots(value: Any, tensor_of: Callable[[int], Any]) -> Any:
    if isinstance(value, list):
        return [_fill_slots(item, tensor_of) for item in value]
    return tensor_of(value.position) if isinstance(value, TensorSlot) else value
