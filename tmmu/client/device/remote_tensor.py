"""A tensor on the remote device: a shape, strides and a storage here, bytes there."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar, Final, NoReturn, Protocol

import torch

from tmmu.client.device.contents import RemoteStorage
from tmmu.errors import UnsupportedOp
from tmmu.torch_private import OpOverload, make_wrapper, no_torch_function

DEVICE_NAME: Final = "remote"


class CallRecorder(Protocol):
    """Whom operators on remote tensors are told."""

    def call(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the operator returns."""

    def fetch(self, tensor: "RemoteTensor") -> torch.Tensor:
        """Its elements in a tensor of the same strides on the cpu."""

    def copy_window(self, tensor: "RemoteTensor", memo: dict[int, Any]) -> "RemoteTensor":
        """The same window on a copy of its storage, of which there is one in a deep copy."""

    def fail_step(self, error: Exception) -> None:
        """Has the step that runs raise an error which may not pass autograd's engine."""


class RemoteTensor(torch.Tensor):
    """A strided window on a remote storage. Looking at its values (``item``, ``print``, ``cpu``) runs the recording.

    ``recorder``: the remote device that it lies on. Its address, and whatever would copy its bytes without an operator,
    is ``UNSUPPORTED_OP``.
    """

    recorder: CallRecorder
    remote_storage: RemoteStorage

    __torch_function__: ClassVar[Any] = no_torch_function

    @staticmethod
    def __new__(
        cls: "type[RemoteTensor]",
        recorder: CallRecorder,
        storage: RemoteStorage,
        window: tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype],
    ) -> "RemoteTensor":
        """``window``: offset, shape and stride in elements, and dtype."""
        offset, shape, stride, dtype = window
        tensor: RemoteTensor = make_wrapper(
            cls, shape, strides=stride, storage_offset=offset, dtype=dtype, device=f"{DEVICE_NAME}:0"
        )
        tensor.recorder, tensor.remote_storage = recorder, storage
        return tensor

    def __init__(self, *_: Any) -> None:
        """All is done by ``__new__``."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Has the device of the first remote tensor among the arguments record the call."""
        del types
        tensor = _first_remote((*args, *(kwargs or {}).values()))
        if tensor is None:
            raise UnsupportedOp(f"{func} without a remote tensor", fix="run it on the cpu")
        return tensor.recorder.call(func, args, kwargs or {})

    @property
    def data(self) -> "RemoteTensor":
        """The same window without gradients."""
        detached: RemoteTensor = self.detach()  # type: ignore[assignment]
        return detached

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if not isinstance(value, RemoteTensor) or value.recorder is not self.recorder:
            raise UnsupportedOp("a remote tensor takes the data of another one alone", fix='use .to("remote") first')
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.remote_storage = value.remote_storage

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """As for any tensor; what the hook raises, the step raises once the backward pass is over."""
        return super().register_hook(_raise_later(hook, self.recorder))  # type: ignore[no-untyped-call]

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], Any]) -> Any:
        """The same."""
        return super().register_post_accumulate_grad_hook(_raise_later(hook, self.recorder))  # type: ignore[no-untyped-call]

    def numpy(self, *, force: bool = False) -> Any:
        """Its elements as an array."""
        return self.recorder.fetch(self).numpy(force=force)

    def __array__(self, dtype: Any = None) -> Any:
        return self.recorder.fetch(self).__array__(dtype)  # type: ignore[no-untyped-call]

    def tolist(self) -> Any:
        """Its elements as nested lists."""
        return self.recorder.fetch(self).tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents
        with torch.no_grad():
            text = repr(self.recorder.fetch(self))
        suffix = f", device='{self.device}'{', requires_grad=True' if self.requires_grad else ''})"
        prefix = "Parameter containing:\n" if isinstance(self, torch.nn.Parameter) else ""
        return prefix + text.removesuffix(")") + suffix

    def __format__(self, format_spec: str) -> str:
        return format(self.item() if self.dim() == 0 else self.recorder.fetch(self), format_spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        with torch.no_grad():
            copy: torch.Tensor = self.recorder.copy_window(self, memo)
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, requires_grad=self.requires_grad)
        else:
            copy.requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        if self.is_leaf and self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)  # type: ignore[no-untyped-call]
        return copy

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UnsupportedOp("a remote tensor is not pickled: its bytes are on the server", fix="store tensor.cpu()")

    def data_ptr(self) -> NoReturn:
        """``UNSUPPORTED_OP``: it has no address here."""
        raise UnsupportedOp("a remote tensor has no address here", fix="use tensor.cpu().data_ptr()")

    def untyped_storage(self) -> NoReturn:
        """``UNSUPPORTED_OP``: the same."""
        raise UnsupportedOp("the storage of a remote tensor is on the server", fix="use tensor.cpu()")

    def share_memory_(self) -> NoReturn:
        """``UNSUPPORTED_OP``: the same."""
        raise UnsupportedOp("the storage of a remote tensor is on the server", fix="use tensor.cpu()")

    def __dlpack__(self, *_: Any, **__: Any) -> NoReturn:
        raise UnsupportedOp("a remote tensor has no address here", fix="use tensor.cpu()")

    def __dlpack_device__(self) -> NoReturn:
        raise UnsupportedOp("a remote tensor has no address here", fix="use tensor.cpu()")

    def __tensor_flatten__(self) -> NoReturn:
        """Its presence has modules keep their parameter objects when they are moved, so that tied ones stay tied."""
        raise UnsupportedOp("a remote tensor wraps no other tensor", fix="compile the model on the cpu")

    @staticmethod
    def __tensor_unflatten__(*_: Any) -> NoReturn:
        raise UnsupportedOp("a remote tensor wraps no other tensor", fix="compile the model on the cpu")


def _raise_later(hook: Callable[[Any], Any], recorder: CallRecorder) -> Callable[[Any], Any]:
    """The hook for autograd's engine, in which an error of a hook would end the process."""

    @wraps(hook)
    def run(tensor: Any) -> Any:
        try:
            return hook(tensor)
        except Exception as error:  # noqa: BLE001 - whatever the hook raises
            recorder.fail_step(error)
            return None

    return run


def _first_remote(values: Sequence[Any]) -> RemoteTensor | None:
    for value in values:
        if isinstance(value, RemoteTensor):
            return value
        if isinstance(value, (tuple, list)):
            tensor = _first_remote(value)
            if tensor is not None:
                return tensor
    return None
