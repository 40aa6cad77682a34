"""What calls return, in shapes: found by fake kernels once for each form of a call, and put into tensors."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import torch

from tmmu.client.device.call_encoding import EncodedCall
from tmmu.client.device.contents import Content, RemoteStorage
from tmmu.client.device.local_operands import map_tensors, tensors_in
from tmmu.client.device.recording import encode_form
from tmmu.client.device.remote_tensor import RemoteTensor
from tmmu.errors import UnsupportedOp
from tmmu.passes.operators.schema import argument_names
from tmmu.passes.shapes.inference import ShapeInference, TensorGeometry
from tmmu.torch_private import OpOverload, schema_of
from tmmu.wire.graph import ContentWindow

_aten: Final = torch.ops.aten
_MOST_FORMS: Final = 16_384


class ResultForms:
    """Forms of results by call, those that were met last. Not safe between threads."""

    def __init__(self) -> None:
        self._inference = ShapeInference()
        self._known: OrderedDict[Any, tuple[TensorGeometry | None, ...]] = OrderedDict()

    def of_call(
        self,
        operator: OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        encoded: EncodedCall,
        storages: Sequence[RemoteStorage],
    ) -> tuple[TensorGeometry | None, ...]:
        """Forms of the results, by fake tensors the first time that such a call is met."""
        number = {storage: index for index, storage in enumerate(storages)}
        places = {id(tensor): geometry_of(tensor, number[tensor.remote_storage]) for tensor in encoded.tensors}
        key = (
            encode_form(encoded.form),
            torch.get_default_dtype(),
            tuple(places[id(tensor)] for tensor in encoded.tensors),
        )
        forms = self._known.get(key)
        if forms is None:
            fake_args, fake_kwargs = map_tensors((tuple(args), dict(kwargs)), lambda tensor: places[id(tensor)])
            forms = self._inference.results(operator, fake_args, fake_kwargs)
            _require_default_dtype(operator, encoded.tensors, forms)
            self._known[key] = forms
            if len(self._known) > _MOST_FORMS:
                self._known.popitem(last=False)
        return forms

    def of_copy(self, tensor: torch.Tensor) -> TensorGeometry:
        """The form of a dense copy of a tensor, as ``empty_like`` has it."""
        form = TensorGeometry(0, reach_bytes(tensor), 0, tuple(tensor.shape), tensor.stride(), tensor.dtype)
        (copy,) = self._inference.results(_aten.empty_like.default, (form,), {})
        assert copy is not None
        return copy

    def default_dtype(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
        """The dtype that a call leaves to a default which the server has not; ``None`` where it does not."""
        if torch.get_default_dtype() is torch.float32 or not _may_name_dtype(operator, args, kwargs):
            return None
        (form,) = self._inference.results(operator, args, kwargs)
        return None if form is None else form.dtype


def geometry_of(tensor: RemoteTensor, storage: int) -> TensorGeometry:
    """A remote tensor as shape inference takes it; ``storage``: a number of its storage."""
    return TensorGeometry(storage, tensor.remote_storage.content.bytes, *window_form(tensor))


def window_form(tensor: RemoteTensor) -> tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Offset, shape and stride in elements, and dtype of a tensor."""
    return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype


def form_window(form: TensorGeometry) -> tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]:
    """The same of a form."""
    return form.offset, form.shape, form.stride, form.dtype


def new_window(form: TensorGeometry | None, new: Mapping[int, Content]) -> tuple[ContentWindow, int] | None:
    """The window of a result on a content of its own, and the bytes of that; ``None`` for any other result."""
    if form is None or form.storage >= 0:
        return None
    content = new[form.storage]
    dtype = str(form.dtype).removeprefix("torch.")
    return ContentWindow(content.number, form.offset, form.shape, form.stride, dtype), content.bytes


def as_returned(operator: OpOverload, leaves: list[Any]) -> Any:
    """Leaves in the structure that the operator returns."""
    returns = schema_of(operator).returns
    if len(returns) == 1:
        return leaves if "List" in str(returns[0].type) else leaves[0]
    return tuple(leaves) if returns else None


def require_plain(operator: OpOverload, forms: Sequence[TensorGeometry | None]) -> None:
    """``UNSUPPORTED_OP`` for results that share a storage or have gaps: a content begins as one dense tensor."""
    fresh = [form for form in forms if form is not None and form.storage < 0]
    if len({form.storage for form in fresh}) < len(fresh) or any(
        form.offset or prod(form.shape) * form.dtype.itemsize != form.storage_bytes for form in fresh
    ):
        raise UnsupportedOp(f"{operator} lays its results out with gaps, or on one storage", fix="run it on the cpu")


def require_boolean_views(
    operator: OpOverload, forms: Sequence[TensorGeometry | None], storages: Sequence[RemoteStorage]
) -> None:
    """``UNSUPPORTED_OP`` where bytes that were no booleans are seen as some, or the other way."""
    for form in forms:
        if form is not None and (form.dtype is torch.bool) != (storages[form.storage].content.dtype is torch.bool):
            raise UnsupportedOp(f"{operator} sees booleans as numbers, or numbers as booleans", fix="convert them")


def _require_default_dtype(
    operator: OpOverload, tensors: Sequence[RemoteTensor], forms: Sequence[TensorGeometry | None]
) -> None:
    """``UNSUPPORTED_OP`` where a default dtype that the server has not may have decided a result."""
    default = torch.get_default_dtype()
    if default is torch.float32 or not tensors or any(tensor.dtype is default for tensor in tensors):
        return
    if any(form is not None and form.dtype is default for form in forms):
        raise UnsupportedOp(f"{operator} makes {default} by default", fix="convert its arguments, or set float32")


def _may_name_dtype(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of no tensor leaves its dtype to the default, and may name it."""
    if "dtype" not in argument_names(operator)[len(args) :] or kwargs.get("dtype") is not None:
        return False
    return next(tensors_in((args, kwargs)), None) is None


def spans_storage(tensor: RemoteTensor) -> bool:
    """Whether a tensor shows each byte of its storage once."""
    size = tensor.numel() * tensor.element_size()
    content = tensor.remote_storage.content
    return size == content.bytes and int(tensor.storage_offset()) == 0 and reach_bytes(tensor) == size


def reach_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a tensor to the end of its last."""
    if 0 in tensor.shape:
        return 0
    return (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()
