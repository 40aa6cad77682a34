"""What becomes of each operator call on remote tensors: a view, a recorded call, a look at a value, or a refusal."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias
from weakref import ref

import msgspec
import torch
from blake3 import blake3

from tmmu.client.device.call_encoding import EncodedCall
from tmmu.client.device.contents import Content, RemoteStorage
from tmmu.client.device.differentiable import differentiable
from tmmu.client.device.local_operands import LocalOperands, map_tensors, tensors_in
from tmmu.client.device.operator_classes import OperatorClass, class_of
from tmmu.client.device.recording import encode_form
from tmmu.client.device.remote_recorder import MOST_CALLS, MOST_STEP_CALLS, RemoteRecorder, require_there
from tmmu.client.device.remote_tensor import DEVICE_NAME, RemoteTensor
from tmmu.errors import InternalError, TmmuError, UnsupportedOp
from tmmu.passes.operators.schema import argument_names, signature, written_arguments
from tmmu.passes.shapes.inference import ShapeInference, ShapesDecidedByValues, TensorGeometry
from tmmu.torch_private import (
    DisableTorchDispatch,
    OpOverload,
    call_composite,
    current_autograd_node,
    is_composite,
    schema_of,
)
from tmmu.wire.graph import ContentWindow
from tmmu.wire.graph_operators import GRAPH_OPERATORS, RANDOM_OPERATORS, SIZED_OPERATORS, is_in, packet_name

_aten: Final = torch.ops.aten
_CPU: Final = torch.device("cpu")
_MOST_FORMS: Final = 16_384
_MOST_EQUAL: Final = 4096

WHOLE_COMPOSITES: Final = frozenset({
    _aten.dropout.default,
    _aten.gru.input,
    _aten.linalg_eigvals.default,
    _aten.linalg_eigvalsh.default,
    _aten.linalg_svdvals.default,
    _aten.log_softmax.int,
    _aten.lstm.input,
    _aten.rnn_relu.input,
    _aten.rnn_tanh.input,
    _aten.scaled_dot_product_attention.default,
    _aten.softmax.int,
})  # fmt: skip
"""Composites that torch takes apart by the device, or computes by another algorithm for a tensor of a subclass.

They are recorded whole, so that the server's cpu takes them apart."""

CPU_KERNELS: Final = frozenset({
    _aten.mish_backward.default,
    _aten.native_channel_shuffle.default,
    _aten.silu_backward.default,
})  # fmt: skip
"""Composites for which the cpu has a kernel all the same: recorded, and differentiable, as if they were none."""

OTHER_GRADIENTS: Final[Mapping[OpOverload, int]] = {
    **dict.fromkeys((_aten.prod.default, _aten.prod.dim_int), 0),
    **dict.fromkeys((_aten.masked_fill.Tensor, _aten.masked_fill_.Tensor), 2),
}
"""Operators whose gradients autograd computes otherwise for tensors of a subclass: by the argument that needs one."""

_EMPTY: Final = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()  # noqa: SIM905
)
_FREE_OF_GRADIENTS: Final = frozenset({_aten.detach.default, _aten.alias.default})
_REFUSED: Final[Mapping[str, str]] = {
    "set": "gives a tensor another storage",
    "resize": "resizes a storage",
    "_conj": "makes a view that is conjugated without changing memory; use conj_physical()",
    "_neg_view": "makes a view that is negated without changing memory",
    "_to_sparse": "makes a tensor that is not dense",
    "to_sparse": "makes a tensor that is not dense",
    "_pin_memory": "pins memory, which is on the server",
}


@dataclass(frozen=True, slots=True)
class _EqualCall:
    """What a call has made: its results as (content, version, window), by weak references."""

    results: tuple[tuple["ref[Content]", int, TensorGeometry], ...]


class CallDispatcher:
    """Sends calls where they belong. State: forms of results by call, and calls that were recorded, by what they read.

    Invariant: a call is equal to another only with one encoded form and windows of equal contents at equal versions,
    and only where it neither writes nor draws.
    """

    def __init__(self, recorder: RemoteRecorder) -> None:
        self.recorder = recorder
        self._inference = ShapeInference()
        self._forms: OrderedDict[Any, tuple[TensorGeometry | None, ...]] = OrderedDict()
        self._equal: OrderedDict[bytes, _EqualCall] = OrderedDict()
        self._local = LocalOperands(self, recorder.counts)
        self.trains = False
        """Whether a step function runs, in which gradients are recorded."""
        self.backward_error: Exception | None = None
        """What the first call or hook inside of autograd's engine failed of, in the step that runs."""

    def call(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the operator returns: remote tensors, or values where it asks for them."""
        with self.recorder.lock:
            try:
                self.recorder.require_open()
                self._require_backward()
                return self._call(operator, tuple(args), dict(kwargs))
            except Exception as error:
                if current_autograd_node() is None:
                    raise
                return self._fail_later(operator, tuple(args), dict(kwargs), error)

    def fail_step(self, error: Exception) -> None:
        """Has the step that runs raise an error once autograd's engine has returned; outside of one, raises it."""
        if not self.trains:
            raise error
        self.backward_error = self.backward_error or error

    def _require_backward(self) -> None:
        """What a backward pass failed of, once it has returned: nothing goes on from gradients that are not there."""
        if self.trains and self.backward_error is not None and current_autograd_node() is None:
            raise self.backward_error

    def _fail_later(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
        """Results without bytes, in place of an error inside of autograd's engine, which would end the process.

        The engine asks a device that is written in Python where it is while an error passes, and Python does not answer
        then. The step raises the error once the engine has returned.
        """
        if self.backward_error is None:
            self.backward_error = error
        tensors = [tensor for tensor in tensors_in((args, kwargs)) if isinstance(tensor, RemoteTensor)]
        forms: tuple[TensorGeometry | None, ...]
        try:
            encoded = EncodedCall(operator, args, self._on_server(operator, args, kwargs))
            storages = list(dict.fromkeys(tensor.remote_storage for tensor in encoded.tensors))
            forms = self._results(operator, args, kwargs, encoded, storages)
        except Exception:  # noqa: BLE001 - whatever was wrong with the call
            forms = tuple(_form(tensors[0], 0) for _ in schema_of(operator).returns)
        failed = error if isinstance(error, TmmuError) else InternalError(str(error))
        leaves: list[Any] = []
        for form in forms:
            if form is None:
                leaves.append(None)
                continue
            content = self.recorder.new_content(form.storage_bytes, form.dtype)
            content.failure = failed
            leaves.append(self.tensor_of(content, form))
        return _as_returned(operator, leaves)

    def _call(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._records_gradients(operator, args, kwargs) and operator in WHOLE_COMPOSITES:
            return differentiable(operator, args, kwargs)
        if is_composite(operator) and operator not in WHOLE_COMPOSITES | CPU_KERNELS:
            return call_composite(operator, *args, **kwargs)
        handle = _SPECIAL.get(operator) or self._handler_of(operator, args, kwargs)
        return handle(self, operator, args, kwargs)

    def _handler_of(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Handler":
        """Who answers a call that has no meaning of its own."""
        name = packet_name(str(operator))
        if name in _REFUSED:
            raise UnsupportedOp(f"{operator} {_REFUSED[name]}", fix="run it on the cpu")
        if torch.Tag.data_dependent_output in operator.tags:
            return CallDispatcher._call_here
        device = kwargs.get("device")
        if device is not None and device.type != DEVICE_NAME:
            return CallDispatcher._make_like
        if any(not isinstance(tensor, RemoteTensor) for tensor in tensors_in((args, kwargs))):
            return CallDispatcher._call_mixed
        return CallDispatcher._empty if name in _EMPTY else CallDispatcher.record

    def fetch(self, tensor: RemoteTensor) -> torch.Tensor:
        """Its elements in a tensor of the same strides on the cpu."""
        if self.trains:
            raise UnsupportedOp(
                "a step function looks at a value, and runs as one", fix="return the tensor, and look at it afterwards"
            )
        with self.recorder.lock, torch.no_grad():
            data = self.recorder.fetch(tensor.remote_storage.content, self.window_of(tensor))
            if not data:
                return torch.empty(tensor.shape, dtype=tensor.dtype)
            rows = torch.frombuffer(bytearray(data), dtype=tensor.dtype).view(tensor.shape)
            form = TensorGeometry(0, _reach(tensor), 0, tuple(tensor.shape), tensor.stride(), tensor.dtype)
            (like,) = self._inference.results(_aten.empty_like.default, (form,), {})
            if like is None or like.stride == rows.stride():
                return rows
            return torch.empty_strided(like.shape, like.stride, dtype=like.dtype).copy_(rows)

    def window_of(self, tensor: RemoteTensor) -> ContentWindow:
        """The window that a tensor is now; ``REFERENCE_STALE`` where its bytes are not there."""
        if tensor.recorder is not self:
            raise UnsupportedOp("a tensor of another remote device, or of one that was closed", fix="move it first")
        content = tensor.remote_storage.content
        require_there(content)
        return ContentWindow(
            content.number,
            int(tensor.storage_offset()) if tensor.numel() else 0,  # one without elements may lie anywhere
            tuple(tensor.shape),
            tensor.stride(),
            str(tensor.dtype).removeprefix("torch."),
        )

    def tensor_of(self, content: Content, form: TensorGeometry) -> RemoteTensor:
        """A tensor on a storage of its own."""
        return self.tensor_on(RemoteStorage(content), form)

    def tensor_on(self, storage: RemoteStorage, form: TensorGeometry) -> RemoteTensor:
        """A tensor on a storage."""
        return RemoteTensor(self, storage, (form.offset, form.shape, form.stride, form.dtype))

    def record(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call on remote tensors alone, or makes the view that it is."""
        kwargs = self._on_server(operator, args, kwargs)
        written = [t for t in tensors_in(written_arguments(operator, args, kwargs)) if isinstance(t, RemoteTensor)]
        encoded = EncodedCall(operator, args, kwargs)
        tensors = encoded.tensors
        storages = list(dict.fromkeys(tensor.remote_storage for tensor in tensors))
        try:
            forms = self._results(operator, args, kwargs, encoded, storages)
        except ShapesDecidedByValues:
            return self._run_sized(operator, encoded)
        if not written and forms and all(form is None or form.storage >= 0 for form in forms):
            _require_boolean_views(operator, forms, storages)
            self.recorder.counts.views += 1
            return self._result(operator, forms, storages, {}, ())
        if not is_in(str(operator), GRAPH_OPERATORS):
            raise UnsupportedOp(f"{operator} is no operator of a remote device", fix="run it on the cpu")
        _require_plain(operator, forms)
        for storage in dict.fromkeys(tensor.remote_storage for tensor in written):
            self.recorder.unshare(storage)
        return self._record(operator, encoded, forms, storages, written)

    def _record(
        self,
        operator: OpOverload,
        encoded: EncodedCall,
        forms: tuple[TensorGeometry | None, ...],
        storages: Sequence[RemoteStorage],
        written: Sequence[RemoteTensor],
    ) -> Any:
        windows = [self.window_of(tensor) for tensor in encoded.tensors]
        is_random = is_in(str(operator), RANDOM_OPERATORS)
        if is_random:
            _require_first_draw(operator)
        key = b""
        if windows and not written and not is_random and all(form and form.storage < 0 for form in forms):
            key = _identity(encoded, windows)
            equal = self._equal_results(key)
            if equal is not None:
                self.recorder.counts.equal += 1
                return self._result(operator, forms, storages, equal, ())
        new = {
            form.storage: self.recorder.new_content(form.storage_bytes, form.dtype)
            for form in forms
            if form is not None and form.storage < 0
        }
        results = [_new_window(form, new) for form in forms]
        contents = [storage.content for storage in storages]
        changed = list(dict.fromkeys(tensor.remote_storage.content for tensor in written))
        self.recorder.record(encoded.form, contents, windows, results, written=changed, is_random=is_random)
        self.recorder.counts.calls[class_of(operator)] += 1
        if key:
            self._remember(key, new, forms)
        fresh = {number: RemoteStorage(content) for number, content in new.items()}
        result = self._result(operator, forms, storages, fresh, written)
        if operator is not _aten.zeros.default:  # what is made empty is written, or dropped, before anybody reads it
            self.recorder.run_if_long(MOST_STEP_CALLS if self.trains else MOST_CALLS)
        return result

    def _equal_results(self, key: bytes) -> dict[int, RemoteStorage] | None:
        """New storages on what an equal call has made, where that is all there as it was made."""
        entry = self._equal.get(key)
        if entry is None:
            return None
        storages: dict[int, RemoteStorage] = {}
        for reference, version, form in entry.results:
            content = reference()
            if content is None or content.version != version or content.failure is not None:
                del self._equal[key]
                return None
            storages[form.storage] = RemoteStorage(content)
        return storages

    def _remember(self, key: bytes, new: Mapping[int, Content], forms: Sequence[TensorGeometry | None]) -> None:
        for number, content in new.items():
            content.identity = key + (-number).to_bytes(2, "little")
        rows = tuple((ref(new[form.storage]), 0, form) for form in forms if form is not None)
        self._equal[key] = _EqualCall(rows)
        if len(self._equal) > _MOST_EQUAL:
            self._equal.popitem(last=False)

    def _result(
        self,
        operator: OpOverload,
        forms: Sequence[TensorGeometry | None],
        storages: Sequence[RemoteStorage],
        new: Mapping[int, RemoteStorage],
        written: Sequence[RemoteTensor],
    ) -> Any:
        """Tensors in the structure that the operator returns: an argument that was written is itself."""
        leaves: list[Any] = []
        for form in forms:
            if form is None:
                leaves.append(None)
            elif form.storage < 0:
                leaves.append(self.tensor_on(new[form.storage], form))
            else:
                storage = storages[form.storage]
                same = [t for t in written if t.remote_storage is storage and _window(t) == _form_window(form)]
                leaves.append(same[0] if same else self.tensor_on(storage, form))
        return _as_returned(operator, leaves)

    def _results(
        self,
        operator: OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        encoded: EncodedCall,
        storages: Sequence[RemoteStorage],
    ) -> tuple[TensorGeometry | None, ...]:
        """Forms of the results, by fake tensors the first time that such a call is met."""
        number = {storage: index for index, storage in enumerate(storages)}
        places = {id(tensor): _form(tensor, number[tensor.remote_storage]) for tensor in encoded.tensors}
        key = (
            encode_form(encoded.form),
            torch.get_default_dtype(),
            tuple(places[id(tensor)] for tensor in encoded.tensors),
        )
        forms = self._forms.get(key)
        if forms is None:
            fake_args, fake_kwargs = map_tensors((tuple(args), dict(kwargs)), lambda tensor: places[id(tensor)])
            forms = self._inference.results(operator, fake_args, fake_kwargs)
            _require_default_dtype(operator, encoded.tensors, forms)
            self._forms[key] = forms
            if len(self._forms) > _MOST_FORMS:
                self._forms.popitem(last=False)
        return forms

    def _on_server(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments as the server takes them: its device, and the dtype where a default names it."""
        kwargs = {name: value for name, value in kwargs.items() if name not in ("pin_memory", "non_blocking")}
        if "device" in kwargs:
            kwargs["device"] = _CPU
        if kwargs.get("generator") is not None:
            raise UnsupportedOp(f"{operator} with a generator: the server has its own", fix="use torch.manual_seed")
        kwargs.pop("generator", None)
        if torch.get_default_dtype() is not torch.float32 and _may_name_dtype(operator, args, kwargs):
            (form,) = self._inference.results(operator, args, kwargs)
            kwargs["dtype"] = form.dtype if form is not None else None
        return kwargs

    def _empty(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteTensor:
        """Memory that nobody has written is zeros here: the server gives no bytes of anybody else's."""
        kwargs = self._on_server(operator, args, kwargs)
        encoded = EncodedCall(operator, args, kwargs)
        storages = list(dict.fromkeys(tensor.remote_storage for tensor in encoded.tensors))
        (form,) = self._results(operator, args, kwargs, encoded, storages)
        assert form is not None
        sizes = [form.storage_bytes // form.dtype.itemsize]
        zeros: RemoteTensor = self.record(_aten.zeros.default, (sizes,), {"dtype": form.dtype, "device": _CPU})
        return self.tensor_on(zeros.remote_storage, form)

    def _run_sized(self, operator: OpOverload, encoded: EncodedCall) -> Any:
        """A call whose results have the sizes that values decide: it runs now, and their shapes come back."""
        if not is_in(str(operator), SIZED_OPERATORS) or signature(operator).mutates:
            raise UnsupportedOp(f"values decide the shape of what {operator} returns", fix="run it on the cpu")
        windows = [self.window_of(tensor) for tensor in encoded.tensors]
        contents = [tensor.remote_storage.content for tensor in encoded.tensors]
        returns = [str(value.type) for value in schema_of(operator).returns]
        first = encoded.tensors[0].dtype
        dtypes = [torch.int64] if operator is _aten.nonzero.default else [first, *[torch.int64] * (len(returns) - 1)]
        rows = self.recorder.run_sized(encoded.form, contents, windows, dtypes)
        self.recorder.counts.calls[OperatorClass.SHAPE_DEPENDENT] += 1
        leaves = [
            self.tensor_of(content, TensorGeometry(0, content.bytes, w.offset, w.shape, w.stride, content.dtype))
            for content, w in rows
        ]
        return leaves[0] if len(leaves) == 1 else tuple(leaves)

    # -- calls with a meaning of their own

    def _call_here(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._local.call_here(operator, args, kwargs)

    def _call_mixed(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._local.call(operator, args, kwargs)

    def _make_like(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._local.like(operator, args, kwargs)

    def _item(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del operator, kwargs
        self.recorder.counts.calls[OperatorClass.TRIGGER] += 1
        return self.fetch(args[0]).item()

    def _equal_tensors(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether two tensors have equal elements: the server compares, and one value comes back."""
        del operator, kwargs
        a, b = args
        if a.shape != b.shape:
            return False
        return bool(self._call(_aten.eq.Tensor, (a, b), {}).all().item())

    def _lift(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del operator, kwargs
        return args[0]

    def _move(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A view in place: the tensor is another window on its storage from now on."""
        tensor = args[0]
        view = self.record(_VIEWS[operator], args, kwargs)
        with DisableTorchDispatch():
            tensor.as_strided_(view.shape, view.stride(), view.storage_offset())
        return tensor

    def _copy_to(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``to`` of a remote tensor: recorded where it stays, fetched where it goes to the cpu."""
        tensor, device = args[0], kwargs.get("device")
        if not isinstance(tensor, RemoteTensor):
            raise UnsupportedOp(f"{operator} of a tensor on {tensor.device}", fix="move it to the cpu first")
        if device is None or device.type == DEVICE_NAME:
            return self.record(operator, args, kwargs)
        if device.type == "meta":
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kwargs.get("dtype"), device="meta")
        if device.type != "cpu":
            raise UnsupportedOp(f"a remote tensor goes to the cpu, not to {device}", fix="use .cpu() first")
        self.recorder.counts.calls[OperatorClass.TRIGGER] += 1
        changes = {name: value for name, value in kwargs.items() if name in ("dtype", "memory_format") and value}
        tensor = self.fetch(tensor)
        return _aten._to_copy.default(tensor, **changes) if changes else tensor

    def _copy_into(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``copy_`` between here and there."""
        del kwargs
        target, source = args[:2]
        if not isinstance(target, RemoteTensor):
            target.copy_(self.fetch(source))
            return target
        if isinstance(source, RemoteTensor):
            return self.record(operator, args[:2], {})
        if type(source) not in (torch.Tensor, torch.nn.Parameter) or source.device.type != "cpu":
            raise UnsupportedOp(f"a {type(source).__name__} on {source.device} is not uploaded", fix="use .cpu() first")
        if source.layout is not torch.strided:
            raise UnsupportedOp("a tensor that is not dense is not uploaded", fix="use .to_dense() first")
        if source.shape == target.shape and _spans_storage(target):
            laid = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype)
            target.remote_storage.exchange(self.recorder.upload(laid.copy_(source.detach())))
            return target
        return self.record(operator, (target, self.upload(source)), {})

    def upload(self, tensor: torch.Tensor) -> RemoteTensor:
        """A remote copy of a cpu tensor."""
        form = TensorGeometry(0, _reach(tensor), 0, tuple(tensor.shape), tensor.stride(), tensor.dtype)
        (laid,) = self._inference.results(_aten.empty_like.default, (form,), {})
        assert laid is not None
        source = torch.empty_strided(laid.shape, laid.stride, dtype=laid.dtype).copy_(tensor.detach())
        return self.tensor_of(self.recorder.upload(source), laid)

    def _records_gradients(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether autograd needs a call; ``UNSUPPORTED_OP`` outside of a step function."""
        if operator.namespace != "aten":
            raise UnsupportedOp(f"{operator} is none of torch's own operators", fix="run it on the cpu")
        if not torch.is_grad_enabled() or operator in _FREE_OF_GRADIENTS:
            return False
        needed = any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
        if needed and operator in OTHER_GRADIENTS and tensors_require(args, OTHER_GRADIENTS[operator]):
            raise UnsupportedOp(
                f"gradients of {operator} are computed otherwise for tensors of a subclass", fix="train it on the cpu"
            )
        if needed and not self.trains:
            raise UnsupportedOp(
                f"{operator} on a tensor that requires a gradient, outside of a step function",
                fix="use torch.no_grad(), or device.step(function)",
            )
        return needed


_VIEWS: Final[Mapping[OpOverload, OpOverload]] = {
    _aten.squeeze_.default: _aten.squeeze.default,
    _aten.squeeze_.dim: _aten.squeeze.dim,
    _aten.squeeze_.dims: _aten.squeeze.dims,
    _aten.t_.default: _aten.t.default,
    _aten.transpose_.default: _aten.transpose.int,
    _aten.unsqueeze_.default: _aten.unsqueeze.default,
}
"""The view that an operator makes of its argument, in its place."""
Handler: TypeAlias = Callable[[CallDispatcher, OpOverload, tuple[Any, ...], dict[str, Any]], Any]
_SPECIAL: Final[Mapping[OpOverload, Handler]] = {
    _aten._local_scalar_dense.default: CallDispatcher._item,
    _aten.equal.default: CallDispatcher._equal_tensors,
    _aten.lift_fresh.default: CallDispatcher._lift,
    _aten._to_copy.default: CallDispatcher._copy_to,
    _aten.copy_.default: CallDispatcher._copy_into,
    **dict.fromkeys(_VIEWS, CallDispatcher._move),
}


def tensors_require(args: Sequence[Any], position: int) -> bool:
    """Whether the argument at a position is a tensor that requires a gradient."""
    return len(args) > position and isinstance(args[position], torch.Tensor) and args[position].requires_grad


def _identity(encoded: EncodedCall, windows: Sequence[ContentWindow]) -> bytes:
    """Names what a call computes: equal for equal operators and arguments on equal windows of equal bytes."""
    digest = blake3(encode_form(encoded.form))
    for tensor, window in zip(encoded.tensors, windows, strict=True):
        rest = (window.offset, window.shape, window.stride, window.dtype, tensor.remote_storage.content.identity)
        digest.update(msgspec.msgpack.encode(rest))
    return digest.digest()


def _form(tensor: RemoteTensor, storage: int) -> TensorGeometry:
    return TensorGeometry(storage, tensor.remote_storage.content.bytes, *_window(tensor))


def _window(tensor: RemoteTensor) -> tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]:
    return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _form_window(form: TensorGeometry) -> tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]:
    return form.offset, form.shape, form.stride, form.dtype


def _new_window(form: TensorGeometry | None, new: Mapping[int, Content]) -> tuple[ContentWindow, int] | None:
    if form is None or form.storage >= 0:
        return None
    content = new[form.storage]
    dtype = str(form.dtype).removeprefix("torch.")
    return ContentWindow(content.number, form.offset, form.shape, form.stride, dtype), content.bytes


def _as_returned(operator: OpOverload, leaves: list[Any]) -> Any:
    """Leaves in the structure that the operator returns."""
    returns = schema_of(operator).returns
    if len(returns) == 1:
        return leaves if "List" in str(returns[0].type) else leaves[0]
    return tuple(leaves) if returns else None


def _require_plain(operator: OpOverload, forms: Sequence[TensorGeometry | None]) -> None:
    """``UNSUPPORTED_OP`` for results that share a storage or have gaps: a content begins as one dense tensor."""
    fresh = [form for form in forms if form is not None and form.storage < 0]
    if len({form.storage for form in fresh}) < len(fresh) or any(
        form.offset or prod(form.shape) * form.dtype.itemsize != form.storage_bytes for form in fresh
    ):
        raise UnsupportedOp(f"{operator} lays its results out with gaps, or on one storage", fix="run it on the cpu")


def _require_first_draw(operator: OpOverload) -> None:
    """``UNSUPPORTED_OP`` where a backward pass runs a part of the forward pass again, which drew other numbers."""
    if torch.is_grad_enabled() and current_autograd_node() is not None:
        raise UnsupportedOp(
            f"{operator} in a checkpoint: it would not draw what it drew in the forward pass",
            fix="checkpoint what draws nothing",
        )


def _require_boolean_views(
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


def _spans_storage(tensor: RemoteTensor) -> bool:
    size = tensor.numel() * tensor.element_size()
    content = tensor.remote_storage.content
    return size == content.bytes and int(tensor.storage_offset()) == 0 and _reach(tensor) == size


def _reach(tensor: torch.Tensor) -> int:
    if 0 in tensor.shape:
        return 0
    return (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()
