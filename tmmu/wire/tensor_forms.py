"""Tensors as messages say them: a dtype by name and a shape, whose bytes are a payload."""

from collections.abc import Mapping
from math import prod
from typing import Annotated, Final, TypeAlias

import msgspec

from tmmu.errors import InvalidRequest
from tmmu.wire.interface import WireHeader
from tmmu.wire.limits import MOST_DIMENSIONS, Whole

ITEM_BYTES: Final[Mapping[str, int]] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Of each dtype that travels, by torch's name without ``torch.``."""
DtypeText: TypeAlias = Annotated[str, msgspec.Meta(max_length=32)]
Shape: TypeAlias = Annotated[tuple[Whole, ...], msgspec.Meta(max_length=MOST_DIMENSIONS)]


class TensorForm(WireHeader, frozen=True):
    """A dense tensor, row by row."""

    dtype: DtypeText
    shape: Shape


def require_form(form: TensorForm, payload: memoryview) -> None:
    """``INVALID_REQUEST`` where a payload has not the bytes of its form, or the dtype is none that travels."""
    item = ITEM_BYTES.get(form.dtype)
    if item is None:
        raise InvalidRequest(f"a tensor of {form.dtype!r}", fix=f"send one of {', '.join(ITEM_BYTES)}")
    if prod(form.shape) * item != len(payload):
        raise InvalidRequest(
            f"{form.dtype}{list(form.shape)!s:.80} in {len(payload)} bytes", fix="send the values of the tensor"
        )
