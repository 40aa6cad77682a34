"""A call as it travels: its form, and the tensors that stand in the slots of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tmmu.client.device.remote_tensor import RemoteTensor
from tmmu.errors import UnsupportedOp
from tmmu.torch_private import OpOverload
from tmmu.wire.graph import ArgumentList, ComplexNumber, NamedConstant, OperatorForm, TensorSlot

_MOST_TEXT = 100


class EncodedCall:
    """``form``, and ``tensors`` in the order of its slots."""

    def __init__(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.tensors: list[RemoteTensor] = []
        self._operator = operator
        self.form = OperatorForm(
            str(operator),
            tuple(self._encode(arg) for arg in args),
            tuple((name, self._encode(value)) for name, value in sorted(kwargs.items()) if name != "non_blocking"),
        )

    def _encode(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return ArgumentList(tuple(self._encode_plain(item) for item in value))
        return self._encode_plain(value)

    def _encode_plain(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float):
            return value
        if isinstance(value, RemoteTensor):
            self.tensors.append(value)
            return TensorSlot(len(self.tensors) - 1)
        if isinstance(value, complex):
            return ComplexNumber(value.real, value.imag)
        if isinstance(value, str) and len(value) <= _MOST_TEXT:
            return value
        for kind, kinds in _CONSTANT_KINDS:
            if isinstance(value, kinds):
                return NamedConstant(kind, "cpu" if kind == "device" else str(value).removeprefix("torch."))
        raise UnsupportedOp(f"{self._operator} of a {type(value).__name__}", fix="run it on the cpu")


_CONSTANT_KINDS = (
    ("dtype", torch.dtype),
    ("layout", torch.layout),
    ("memory_format", torch.memory_format),
    ("device", torch.device),
)
