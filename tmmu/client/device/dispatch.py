"""What becomes of each operator call on remote tensors: a view, a recorded call, a look at a value, or a refusal."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from tmmu.client.device.call_encoding import EncodedCall
from tmmu.client.device.contents import Content, RemoteStorage
from tmmu.client.device.device_operators import (
    CPU_KERNELS,
    EMPTY,
    FREE_OF_GRADIENTS,
    IN_PARTS,
    OTHER_GRADIENTS,
    REFUSED,
    WHOLE_COMPOSITES,
)
from tmmu.client.device.differentiable import differentiable
from tmmu.client.device.equal_calls import EqualCalls, call_identity
from tmmu.client.device.local_operands import LocalOperands, tensors_in
from tmmu.client.device.operator_classes import OperatorClass, class_of
from tmmu.client.device.remote_recorder import MOST_CALLS, MOST_STEP_CALLS, RemoteRecorder, require_there
from tmmu.client.device.remote_tensor import DEVICE_NAME, RemoteTensor
from tmmu.client.device.result_forms import (
    ResultForms,
    as_returned,
    form_window,
    geometry_of,
    new_window,
    require_boolean_views,
    require_plain,
    window_form,
)
from tmmu.client.device.special_calls import (
    SPECIAL_CALLS,
    CallHandler,
    has_mask_beside_indices,
    without_masks,
)
from tmmu.errors import InternalError, InvalidConfig, TmmuError, UnsupportedOp
from tmmu.passes.operators.schema import signature, written_arguments
from tmmu.passes.shapes.inference import ShapesDecidedByValues, TensorGeometry
from tmmu.torch_private import OpOverload, call_composite, current_autograd_node, is_composite, schema_of
from tmmu.wire.graph import ContentWindow
from tmmu.wire.graph_operators import GRAPH_OPERATORS, RANDOM_OPERATORS, SIZED_OPERATORS, is_in, packet_name

_aten: Final = torch.ops.aten
_CPU: Final = torch.device("cpu")


class CallDispatcher:
    """Sends calls where they belong. State: forms of results by call, and calls that were recorded."""

    def __init__(self, recorder: RemoteRecorder) -> None:
        self.recorder = recorder
        self._forms, self._equal_calls = ResultForms(), EqualCalls()
        self._local = LocalOperands(self, recorder.counts)
        self.trains = False
        """Whether a step function runs, in which gradients are recorded."""
        self.backward_error: Exception | None = None
        """What the first call or hook inside of autograd's engine failed of, in the step that runs."""

    def call(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the operator returns: remote tensors, or values where it asks for them."""
        with self.recorder.lock, self.recorder.counts.stages.within("capture"):
            try:
                self.recorder.require_open()
                self._require_backward()
                return self.dispatch(operator, tuple(args), dict(kwargs))
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
            forms = self._forms.of_call(operator, args, kwargs, encoded, storages)
        except Exception:  # noqa: BLE001 - whatever was wrong with the call
            forms = tuple(geometry_of(tensors[0], 0) for _ in schema_of(operator).returns)
        failed = error if isinstance(error, TmmuError) else InternalError(str(error))
        leaves: list[Any] = []
        for form in forms:
            if form is None:
                leaves.append(None)
                continue
            content = self.recorder.new_content(form.storage_bytes, form.dtype)
            content.failure = failed
            leaves.append(self.tensor_of(content, form))
        return as_returned(operator, leaves)

    def dispatch(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As ``call``, for who has the recorder's lock, outside of autograd's engine."""
        if self._records_gradients(operator, args, kwargs) and operator in WHOLE_COMPOSITES:
            return differentiable(operator, args, kwargs)
        if is_composite(operator) and operator not in WHOLE_COMPOSITES | CPU_KERNELS:
            return call_composite(operator, *args, **kwargs)
        handle = SPECIAL_CALLS.get(operator) or self._handler_of(operator, args, kwargs)
        return handle(self, operator, args, kwargs)

    def _handler_of(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallHandler:
        """Who answers a call that has no meaning of its own."""
        name = packet_name(str(operator))
        if name in REFUSED:
            in_parts = "call torch.backends.mha.set_fastpath_enabled(False)"
            fix = in_parts if name in IN_PARTS else "run it on the cpu"
            raise UnsupportedOp(f"{operator} {REFUSED[name]}", fix=fix)
        if torch.Tag.data_dependent_output in operator.tags:
            return CallDispatcher._call_here
        device = kwargs.get("device")
        if device is not None and device.type != DEVICE_NAME:
            return CallDispatcher._make_like
        if device is not None and device.index:
            raise InvalidConfig(f"{device}: a process has one remote device", fix="write device='remote'")
        if any(not isinstance(tensor, RemoteTensor) for tensor in tensors_in((args, kwargs))):
            return CallDispatcher._call_mixed
        return CallDispatcher._empty if name in EMPTY else CallDispatcher.record

    def fetch(self, tensor: RemoteTensor) -> torch.Tensor:
        """Its elements in a tensor of the same strides on the cpu."""
        if self.trains:
            raise UnsupportedOp(
                "a step function looks at a value, and runs as one", fix="return the tensor, and look at it afterwards"
            )
        with self.recorder.lock, self.recorder.counts.stages.within("result"), torch.no_grad():
            data = self.recorder.fetch(tensor.remote_storage.content, self.window_of(tensor))
            if not data:
                return torch.empty(tensor.shape, dtype=tensor.dtype)
            rows = torch.frombuffer(bytearray(data), dtype=tensor.dtype).view(tensor.shape)
            like = self._forms.of_copy(tensor)
            if like.stride == rows.stride():
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

    def copy_window(self, tensor: RemoteTensor, memo: dict[int, Any]) -> RemoteTensor:
        """As ``CallRecorder.copy_window``; records nothing, since a shared content is copied when it is written."""
        with self.recorder.lock:
            self.recorder.require_open()
            self.window_of(tensor)
            storage = tensor.remote_storage
            copy = memo.get(id(storage))
            if copy is None:
                copy = memo[id(storage)] = RemoteStorage(storage.content)
                memo.setdefault(id(memo), []).append(storage)  # as ``copy`` keeps what ids in a memo name
            return self.tensor_on(copy, geometry_of(tensor, 0))

    def record(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call on remote tensors alone, or makes the view that it is."""
        kwargs = self._on_server(operator, args, kwargs)
        written = [t for t in tensors_in(written_arguments(operator, args, kwargs)) if isinstance(t, RemoteTensor)]
        encoded = EncodedCall(operator, args, kwargs)
        tensors = encoded.tensors
        storages = list(dict.fromkeys(tensor.remote_storage for tensor in tensors))
        try:
            forms = self._forms.of_call(operator, args, kwargs, encoded, storages)
        except ShapesDecidedByValues:
            if has_mask_beside_indices(operator, args):
                return self.record(operator, without_masks(self, *args), kwargs)
            return self._run_sized(operator, encoded)
        if not written and forms and all(form is None or form.storage >= 0 for form in forms):
            require_boolean_views(operator, forms, storages)
            self.recorder.counts.views += 1
            return self._result(operator, forms, storages, {}, ())
        if not is_in(str(operator), GRAPH_OPERATORS):
            raise UnsupportedOp(f"{operator} is no operator of a remote device", fix="run it on the cpu")
        require_plain(operator, forms)
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
            key = call_identity(encoded, windows)
            equal = self._equal_calls.find(key)
            if equal is not None:
                self.recorder.counts.equal += 1
                return self._result(operator, forms, storages, equal, ())
        new = {
            form.storage: self.recorder.new_content(form.storage_bytes, form.dtype)
            for form in forms
            if form is not None and form.storage < 0
        }
        results = [new_window(form, new) for form in forms]
        contents = [storage.content for storage in storages]
        changed = list(dict.fromkeys(tensor.remote_storage.content for tensor in written))
        self.recorder.record(encoded.form, contents, windows, results, written=changed, is_random=is_random)
        self.recorder.counts.calls[class_of(operator)] += 1
        if key:
            self._equal_calls.add(key, new, forms)
        fresh = {number: RemoteStorage(content) for number, content in new.items()}
        result = self._result(operator, forms, storages, fresh, written)
        if operator is not _aten.zeros.default:  # what is made empty is written, or dropped, before anybody reads it
            self.recorder.run_if_long(MOST_STEP_CALLS if self.trains else MOST_CALLS)
        return result

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
                same = [t for t in written if t.remote_storage is storage and window_form(t) == form_window(form)]
                leaves.append(same[0] if same else self.tensor_on(storage, form))
        return as_returned(operator, leaves)

    def _on_server(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments as the server takes them: its device, and the dtype where a default names it."""
        kwargs = {name: value for name, value in kwargs.items() if name not in ("pin_memory", "non_blocking")}
        if "device" in kwargs:
            kwargs["device"] = _CPU
        if kwargs.get("generator") is not None:
            raise UnsupportedOp(f"{operator} with a generator: the server has its own", fix="use torch.manual_seed")
        kwargs.pop("generator", None)
        dtype = self._forms.default_dtype(operator, args, kwargs)
        return kwargs if dtype is None else kwargs | {"dtype": dtype}

    def _empty(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteTensor:
        """Memory that nobody has written is zeros here: the server gives no bytes of anybody else's."""
        kwargs = self._on_server(operator, args, kwargs)
        encoded = EncodedCall(operator, args, kwargs)
        storages = list(dict.fromkeys(tensor.remote_storage for tensor in encoded.tensors))
        (form,) = self._forms.of_call(operator, args, kwargs, encoded, storages)
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

    def _call_here(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._local.call_here(operator, args, kwargs)

    def _call_mixed(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._local.call(operator, args, kwargs)

    def _make_like(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._local.like(operator, args, kwargs)

    def upload(self, tensor: torch.Tensor) -> RemoteTensor:
        """A remote copy of a cpu tensor."""
        laid = self._forms.of_copy(tensor)
        source = torch.empty_strided(laid.shape, laid.stride, dtype=laid.dtype).copy_(tensor.detach())
        return self.tensor_of(self.recorder.upload(source), laid)

    def _records_gradients(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether autograd needs a call; ``UNSUPPORTED_OP`` outside of a step function."""
        if operator.namespace != "aten":
            raise UnsupportedOp(f"{operator} is none of torch's own operators", fix="run it on the cpu")
        if not torch.is_grad_enabled() or operator in FREE_OF_GRADIENTS:
            return False
        needed = any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
        if needed and operator in OTHER_GRADIENTS and _require_gradient(args, OTHER_GRADIENTS[operator]):
            raise UnsupportedOp(
                f"gradients of {operator} are computed otherwise for tensors of a subclass", fix="train it on the cpu"
            )
        if needed and not self.trains:
            raise UnsupportedOp(
                f"{operator} on a tensor that requires a gradient, outside of a step function",
                fix="use torch.no_grad(), or device.step(function)",
            )
        return needed


def _require_gradient(args: Sequence[Any], position: int) -> bool:
    """Whether the argument at a position is a tensor that requires a gradient."""
    return len(args) > position and isinstance(args[position], torch.Tensor) and args[position].requires_grad


def _require_first_draw(operator: OpOverload) -> None:
    """``UNSUPPORTED_OP`` where a backward pass runs a part of the forward pass again, which drew other numbers."""
    if torch.is_grad_enabled() and current_autograd_node() is not None:
        raise UnsupportedOp(
            f"{operator} in a checkpoint: it would not draw what it drew in the forward pass",
            fix="checkpoint what draws nothing",
        )
