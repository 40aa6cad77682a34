"""Devices that this machine may lack: whatever a model asks for, its tensors are traced on one fake device.

For a GPU there are two places, the traced device and the host. A storage of the host has a mark, which
its views share; a call that leads from one place to the other is a copy, with the place in its argument ``device`` for
the recorder, which takes it out. A program that was written for this machine calls its one device "cpu" too, so that
name means the host only once the program has named a GPU; ``.cpu()`` always does.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from tmmu.passes.capture.record.places import HOST, ON_DEVICE, TRACED_DEVICE, place_of
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import BACKWARD_ENGINE, DisableTorchFunction, function_modes

_TRANSFERS = frozenset({torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.to})
_NEVER_TRACED = frozenset({"mps", "xpu"})
_KINDS = ("cuda", "cpu", "meta", "mps", "xpu")
_MAKERS = frozenset(
    {
        *(torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint, torch.arange),
        *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like, torch.rand_like, torch.randn_like),
        *(torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full),
    }
)
_SAVED_TENSORS: Final = "torch.autograd.graph"
_RANKS: Final = "torch.distributed."


@contextmanager
def one_device(target: str) -> Iterator[None]:
    """Block in which all is traced for ``target``; also in gradients and hooks, which torch runs without modes."""
    mode = OneDevice(target)
    run_backward, make_hooks = getattr(torch.autograd, BACKWARD_ENGINE), saved_tensors_hooks.__init__

    def with_mode(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with nullcontext() if mode in function_modes() else mode:
                return function(*args, **kwargs)

        return call

    def hook(self: Any, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
        make_hooks(self, with_mode(pack_hook), with_mode(unpack_hook))

    with (
        mode,
        replace_attribute(torch.autograd, BACKWARD_ENGINE, with_mode(run_backward)),
        replace_attribute(saved_tensors_hooks, "__init__", hook),
    ):
        yield


class OneDevice(TorchFunctionMode):
    """Calls that name a device get the one that is traced; where that is the target's, transfers return the tensor.

    On target ``cpu`` there is one place, and nothing is ever transferred.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self._has_host = target != "cpu"
        self._names_gpu = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _TRANSFERS:
            return self._transfer(func, args, kwargs)
        if func is torch.device and _names_foreign(args):
            return func(*args, **kwargs)  # to compare with: a tensor's device is none of these
        if func is torch.device and sys._getframe(1).f_globals.get("__name__", "").startswith(_RANKS):
            return TRACED_DEVICE  # of a mesh, whose devices are traced ones
        if func is torch.device:
            return self._place(args[0] if args else next(iter(kwargs.values()), None))
        if func is torch.empty and self._has_host and _is_pinned(sys._getframe(1), kwargs):
            return func(*args, **(kwargs | {"device": HOST, "pin_memory": False}))
        if "device" in kwargs or any(_is_device(arg) for arg in args):
            place = self._place if func in _MAKERS else self._traced
            args = tuple(place(arg) if _is_device(arg) else arg for arg in args)
            if kwargs.get("device") is not None:
                kwargs = kwargs | {"device": place(kwargs["device"])}
        return func(*args, **kwargs)

    def _traced(self, device: Any) -> torch.device:
        self._place(device)  # which may be the first to name a GPU
        return TRACED_DEVICE

    def _place(self, device: Any) -> torch.device:
        """The host or the traced device, as a program means it; what a tensor calls its device is the traced one."""
        text = str(device)
        self._names_gpu = self._names_gpu or text.startswith("cuda") or (isinstance(device, int) and self._has_host)
        is_host = device == HOST or (text.startswith("cpu") and self._names_gpu and device != TRACED_DEVICE)
        return HOST if is_host and self._has_host else TRACED_DEVICE

    def _transfer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, *rest = args
        if func is not torch.Tensor.to:
            place = HOST if func is torch.Tensor.cpu and self._has_host else TRACED_DEVICE
            self._names_gpu = self._names_gpu or func is torch.Tensor.cuda
            return tensor if place == place_of(tensor) else _copy_to(tensor, place, tensor.dtype)
        named = [*rest, *kwargs.values()]
        other = next((value for value in named if isinstance(value, torch.Tensor)), None)
        device = next((value for value in named if _is_device(value) or type(value) is int), None)
        if other is None and device is None:
            return func(*args, **kwargs)
        place = self._place(device) if other is None else place_of(other)
        if place == place_of(tensor):
            return func(tensor, *map(_as_traced, rest), **{key: _as_traced(value) for key, value in kwargs.items()})
        dtypes = [value for value in named if isinstance(value, torch.dtype)]
        dtype = other.dtype if other is not None else next(iter(dtypes), tensor.dtype)
        return _copy_to(tensor, place, dtype, kwargs.get("memory_format", torch.preserve_format))


def note_gpu() -> None:
    """From here on ``"cpu"`` is the host, as for a program that has named a GPU: of tensors that lie on one."""
    torch.device("cuda")


def _as_traced(value: Any) -> Any:
    return TRACED_DEVICE if _is_device(value) or type(value) is int else value


class _Transfer(torch.autograd.Function):
    """A copy to the other place, whose gradient goes the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: torch.Tensor, place: torch.device, dtype: torch.dtype, layout: Any) -> Any:
        return _copied(tensor, place, dtype, layout)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.place, ctx.dtype = place_of(inputs[0]), inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _copied(gradients[0], ctx.place, ctx.dtype, torch.preserve_format), None, None, None


def _copy_to(tensor: torch.Tensor, place: torch.device, dtype: torch.dtype, layout: Any = torch.preserve_format) -> Any:
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Transfer.apply(tensor, place, dtype, layout)  # type: ignore[no-untyped-call]
    return _copied(tensor, place, dtype, layout)


def _copied(tensor: torch.Tensor, place: torch.device, dtype: torch.dtype, layout: Any) -> Any:
    device = HOST if place == HOST else ON_DEVICE
    with DisableTorchFunction():  # a mode would take the name for the traced device's
        return torch.ops.aten._to_copy.default(tensor, dtype=dtype, device=device, memory_format=layout)


def _is_pinned(frame: Any, kwargs: dict[str, Any]) -> bool:
    """Whether memory is pinned, or would be on a machine with a GPU where saved tensors go to the host."""
    is_saved = frame.f_globals.get("__name__") == _SAVED_TENSORS and "pin_memory" in kwargs
    return bool(is_saved or kwargs.get("pin_memory"))


def _names_foreign(args: tuple[Any, ...]) -> bool:
    return bool(args) and str(args[0]).partition(":")[0] in _NEVER_TRACED


def _is_device(arg: Any) -> bool:
    if isinstance(arg, torch.device):
        return True
    return isinstance(arg, str) and arg.partition(":")[0] in _KINDS
