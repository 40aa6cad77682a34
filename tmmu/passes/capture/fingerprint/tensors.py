"""Modules and tensors: structure, form and sharing; the values of tensors only where a trace may look at them."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from tmmu.passes.capture.fingerprint.data import named_set
from tmmu.passes.capture.fingerprint.homes import home_of_named
from tmmu.passes.capture.fingerprint.walker import Rule, Rules, Walker, slots
from tmmu.passes.capture.recorder import Recorder, made_by

_MEMOS: Final = ("nonzero", "item", "unique", "unique_consecutive", "nested_int")
_INTERNAL: Final = frozenset({
    *("_fake_device", "fake_mode", "constant", "pytype", "dispatch_keys", "real_tensor", "_is_param", "_tmmu_origin"),
    *(f"_{memo}_memo{what}" for memo in _MEMOS for what in ("", "_vc", "_epoch")),
})  # fmt: skip
"""Attributes by which fake tensors work."""
_HANDLES: Final = (
    *("_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_hooks_with_kwargs"),
    *("_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
"""Maps of a module from a number that torch gives out to a hook: their order counts, the numbers do not."""


class ModelWalker(Walker):
    """A walker that knows tensors; ``build`` is the recording under which fake ones were made."""

    def __init__(self, rules: Rules, folder: str, build: Recorder | None, *, training: bool) -> None:
        super().__init__(rules, folder)
        self.training = training
        self.tensors = 0
        self.modules = 0
        self._steps = {} if build is None else {node: at for at, node in enumerate(build.graph.nodes)}
        self._build = build
        self._storages: dict[int, int] = {}

    def storage(self, tensor: torch.Tensor) -> int:
        """Which storage it is, in the order in which they are met: what shares one, or an array's memory, shows it."""
        if not isinstance(tensor, FakeTensor) and tensor.device.type == "cpu" and tensor.untyped_storage().nbytes():
            return self.memory(tensor.untyped_storage().data_ptr())
        return -1 - self._storages.setdefault(tensor.untyped_storage()._cdata, len(self._storages))

    def step(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """The step of the build that made the tensor, where one did."""
        origin = made_by(tensor)
        if origin is None or origin.recorder is not self._build or origin.node not in self._steps:
            return ()
        return (self._steps[origin.node], -1 if origin.index is None else origin.index)

    def node(self, node: fx.Node) -> int | None:
        """The number of a step of the build."""
        return self._steps.get(node)


def _nn_module(w: ModelWalker, value: nn.Module) -> None:
    if w.met(value):
        return
    w.modules += 1
    if isinstance(value, torch.jit.ScriptModule):
        w.refuse("a compiled script")
    with w.sink.about("modules"):
        w.emit("nn.Module", type(value).__qualname__, int(value.training))
        w.visit(type(value))
        w.emit(len(vars(value)))
    with w.sink.about("attributes"):
        slots(w, value)
        for name, held in list(vars(value).items()):
            w.emit(name)
            if name in _HANDLES and isinstance(held, dict):
                w.emit(len(held))
                for hook in list(held.values()):
                    w.visit(hook, name)
            elif isinstance(held, set) and _is_of_library(type(value), name):
                named_set(w, held)
            else:
                w.visit(held, "" if name in ("_modules", "_parameters", "_buffers") else name)


def _is_of_library(kind: type, name: str) -> bool:
    """Whether a library's class has an attribute of this name, so that code of that library uses it."""
    for base in kind.__mro__:
        if home_of_named(base) is not None and (
            base is kind or name in {**vars(base), **vars(base).get("__annotations__", {})}
        ):
            return True
    return False


def _tensor(w: ModelWalker, value: torch.Tensor) -> None:
    """Form, storage, gradient; for a fake tensor the step that made it, for a real one that is no weight its bytes."""
    if w.met(value):
        return
    w.tensors += 1
    if value.layout is not torch.strided:
        w.refuse(f"a tensor of layout {value.layout}")
    if type(value) not in (torch.Tensor, nn.Parameter, nn.Buffer, FakeTensor):
        w.refuse(f"a tensor of class {type(value).__name__}")
    if w.training and value.grad_fn is not None:
        w.refuse("a tensor with a history of its own")
    with w.sink.about("tensors"), torch._C.DisableTorchFunction():
        fake = isinstance(value, FakeTensor)
        w.emit("tensor", str(value.dtype), str(value.device.type if fake else value.device), int(value.requires_grad))
        w.emit(int(isinstance(value, nn.Parameter)), int(fake), int(value.is_conj()), int(value.is_neg()))
        w.visit(tuple(value.shape))
        w.visit(value.stride())
        w.emit(int(value.storage_offset()), w.storage(value), value.untyped_storage().nbytes(), *w.step(value))
        if not fake and not isinstance(value, nn.Parameter):
            w.emit("bytes", _bytes(value))
        _kept(w, value)


def _kept(w: ModelWalker, value: torch.Tensor) -> None:
    """What hangs on a tensor."""
    if value.is_leaf and value.grad is not None:
        w.emit("grad")
        w.visit(value.grad, "grad")
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(value, name, None)
        for hook in list(hooks.values()) if hooks else ():
            w.emit(name)
            w.visit(hook, name)
    for name, held in value.__dict__.items():
        if name not in _INTERNAL:
            w.emit(name)
            w.visit(held, name)
    constant = getattr(value, "constant", None)
    if isinstance(constant, torch.Tensor):
        w.emit("constant", _bytes(constant))


def _bytes(tensor: torch.Tensor) -> bytes:
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def _node(w: ModelWalker, value: fx.Node) -> None:
    at = w.node(value)
    if at is None:
        w.refuse("a node of a graph")
    w.emit("node", at)


def _graph(w: ModelWalker, value: fx.Graph) -> None:
    """A graph that is a model's code: as the code that it makes."""
    w.emit("graph", value.python_code("self").src)


EXACT: Final[Mapping[type, Rule]] = {
    fx.Node: _node,
}

DERIVED: Final[Mapping[type, Rule]] = {
    nn.Module: _nn_module,
    torch.Tensor: _tensor,
    fx.Graph: _graph,
}


def recording(w: ModelWalker, build: Recorder) -> None:
    """Every call while the model was made: what decides the values of its constants."""
    with w.sink.about("build"):
        for node in build.graph.nodes:
            w.emit(node.op, str(node.target) if node.op == "call_function" else "")
            w.visit(node.args, "build")
            w.items(node.kwargs.items())
            real = node.meta.get("value")
            if isinstance(real, torch.Tensor):
                w.emit("value", str(real.dtype), str(tuple(real.shape)), str(real.stride()), _bytes(real))
