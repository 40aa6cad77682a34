"""Record what a program does: every operator call, on which storages, in an fx graph.

The recorder is a dispatch mode above fake tensors. It sees the calls that eager PyTorch would make, in the order
in which it would make them, with views, in-place writes, autograd and optimizer steps as they are: nothing is
functionalized, so a mutated buffer stays one buffer. Storages are told apart by identity, which fake tensors keep.
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.ir.graph import DTYPE_BYTES
from tmmu.passes.capture.corrections import corrected, done_at_once, refused_by_fakes, require_real
from tmmu.passes.capture.memo import CallMemo
from tmmu.passes.capture.modules import ModuleStack
from tmmu.passes.capture.program import CapturedProgram, Storage, Window
from tmmu.passes.capture.randomness import Place, Randomness
from tmmu.passes.capture.request import Progress, no_progress
from tmmu.passes.capture.sources import calling_source
from tmmu.passes.capture.values import concrete_scalar, evaluate
from tmmu.passes.capture.watched import Unwatched
from tmmu.passes.operators.schema import signature, written_arguments

_SILENT_NAMESPACES = frozenset({"prim", "profiler"})
_PROGRESS_EVERY = 64
_ORIGIN = "_tmmu_origin"


class _Origin:
    """Which recording and which node a tensor comes from, kept on the tensor; a copy of the tensor has none."""

    __slots__ = ("index", "node", "recorder", "window")

    def __init__(
        self,
        recorder: "Recorder | None" = None,
        node: fx.Node | None = None,
        index: int | None = None,
        window: Window | None = None,
    ) -> None:
        self.recorder, self.node, self.index, self.window = recorder, node, index, window

    def __deepcopy__(self, memo: Any) -> "_Origin":
        return _Origin()

    def __reduce__(self) -> Any:
        return (_Origin, ())


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Everything called while the mode is on, as nodes of one graph."""

    def __init__(
        self,
        *,
        folder: str = "",
        modules: ModuleStack | None = None,
        progress: Progress = no_progress,
        device: str = "cpu",
        strict: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.stage = "forward"
        self.strict = strict
        self._device = device
        self.mutators: dict[int, list[fx.Node]] = {}
        self._folder = folder
        self._modules = modules or ModuleStack()
        self._progress = progress
        self._storage_of: dict[int, int] = {}
        self._storages: list[Storage] = []
        self._kept: list[torch.UntypedStorage] = []
        self._base: list[fx.Node] = []
        self._aliases: list[torch.UntypedStorage] = []
        self._memo = CallMemo()
        self._recording = True
        self._last_placeholder: fx.Node | None = None
        self._calls = 0
        self._origin: dict[int, tuple[str, str]] = {}
        self.randomness = Randomness(self, device)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper that keeps torch's compiler out of each call: it is not running."""
        return False

    # -- what the program starts from

    def kept(self, tensor: torch.Tensor, *, name: str) -> torch.Tensor:
        """The tensor, declared as state."""
        self.declare(tensor, role="state", name=name)
        return tensor

    def declare(self, tensor: torch.Tensor, *, role: str, name: str) -> Window:
        """Make the tensor's storage known under a role and name, unless it already is; its window."""
        with torch._C.DisableTorchFunction():
            storage = _storage(tensor)
            if storage._cdata not in self._storage_of:
                made = tensor.__dict__.get(_ORIGIN)
                node = self._placeholder(tensor, storage, role=role, name=name)
                node.meta["made"] = made  # what it starts as; the trace itself may not count on it
            return self._window(tensor)

    def finish(self, *, name: str, device: str, inputs: tuple[Window, ...], outputs: tuple[Window, ...]) -> CapturedProgram:
        """The program recorded so far."""
        return CapturedProgram(
            name=name,
            device=device,
            graph=self.graph,
            storages=tuple(
                replace(storage, bytes=max(storage.bytes, kept.nbytes()))  # one that was resized counts at its largest
                for storage, kept in zip(self._storages, self._kept, strict=True)
            ),
            inputs=inputs,
            outputs=outputs,
        )

    @contextmanager
    def in_stage(self, stage: str) -> Iterator[None]:
        """Calls made inside belong to ``stage``."""
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls made inside are not recorded."""
        self._recording = False
        try:
            yield
        finally:
            self._recording = True

    def window_of(self, tensor: torch.Tensor) -> Window:
        """The window of a tensor; one that nobody declared becomes a constant."""
        with torch._C.DisableTorchFunction():
            self._node(tensor)
            return self._window(tensor)

    def bytes_of(self, storage: int) -> int:
        """The size of a storage."""
        return self._storages[storage].bytes

    # -- recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._recording or func.namespace in _SILENT_NAMESPACES:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction(), Unwatched():
            if func is torch.ops.aten._local_scalar_dense.default:
                return concrete_scalar(args[0], self._node(args[0]), self)
            return self._record(func, args, kwargs)

    def _record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        func = done_at_once(func)
        kwargs = self.randomness.before(func, args, kwargs)
        node_args = _replace_tensors(args, self._node)
        node_kwargs = {key: _replace_tensors(value, self._node) for key, value in kwargs.items()}
        require_real(func, args, kwargs)
        if func is torch.ops.aten.lift_fresh.default:
            return self._lifted(func(*args), node_args[0])
        allowed = refused_by_fakes(func, args, kwargs)
        result = corrected(func, args, self._memo.run(func, args, kwargs) if allowed is None else allowed, self._device)
        node = self.graph.create_node("call_function", func, node_args, node_kwargs)
        tensors = _flat(result)
        node.meta["windows"] = tuple(
            self._output_window(leaf, node) if isinstance(leaf, torch.Tensor) else None for leaf in tensors
        )
        node.meta["mutates"] = self._mutated(func, args, kwargs)
        for window in node.meta["mutates"]:
            self.mutators.setdefault(window.storage, []).append(node)
        node.meta.update(self._notes())
        self._name_results(result, node)
        if self._calls % _PROGRESS_EVERY == 0:
            self._progress("tracing", self._calls)
        return result

    def _lifted(self, result: torch.Tensor, node: fx.Node) -> torch.Tensor:
        """A constant under the fake mode: the same bytes, the same node."""
        storage = _storage(result)
        self._storage_of[storage._cdata] = node.meta["windows"][0].storage
        self._aliases.append(storage)
        _remember(result, self, node)
        return result

    def _mutated(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Window, ...]:
        if not signature(func).mutates:
            return ()
        written = _flat(written_arguments(func, args, kwargs))
        return tuple(dict.fromkeys(self._window(leaf) for leaf in written if isinstance(leaf, torch.Tensor)))

    def _notes(self) -> dict[str, Any]:
        """Stage, module, source line and autograd number; a gradient takes module and line of its forward op."""
        self._calls += 1
        notes: dict[str, Any] = {"index": (self._calls, 0), "stage": self.stage}
        backward = torch._C._current_autograd_node() if self.stage == "backward" else None
        if backward is not None:
            number = backward._sequence_nr()
            module, source = self._origin.get(number, ("", ""))
            return notes | {"sequence": number, "module": module, "source": source}
        number = torch._C._autograd._get_sequence_nr() - 1
        where = self._modules.path, self._modules.source or calling_source(self._folder)
        self._origin.setdefault(number, where)  # the node's own call comes first
        return notes | {"sequence": number, "module": where[0], "source": where[1]}

    # -- calls that no operator made

    def here(self) -> Place:
        """The place that the program has come to."""
        return Place(after=next(iter(reversed(self.graph.nodes)), None), notes=self._notes())

    def fresh(self, size: int) -> torch.Tensor:
        """Bytes that no call has made yet."""
        with self.paused():
            return torch.empty(size, dtype=torch.uint8)

    def changed(self, tensor: torch.Tensor) -> bool:
        """Whether some call wrote to it in place."""
        return bool(self.mutators.get(self._storage_of.get(_storage(tensor)._cdata, -1)))

    def insert(self, place: Place, func: OpOverload, args: tuple[Any, ...], result: torch.Tensor | None) -> fx.Node:
        """The call of ``func`` at this place; what it gives is ``result``."""
        with torch._C.DisableTorchFunction():
            named = _replace_tensors(args, self._node)
            with self.graph.inserting_after(place.after) if place.after else self.graph.inserting_before():
                node: fx.Node = self.graph.create_node("call_function", func, named)
            windows = (None,) if result is None else (self._output_window(result, node),)
            node.meta.update(place.notes, windows=windows, mutates=())
            self._name_results(result, node)
        return node

    # -- tensors, nodes, storages

    def _name_results(self, result: Any, node: fx.Node) -> None:
        if isinstance(result, torch.Tensor):
            _remember(result, self, node)
        elif isinstance(result, (tuple, list)):
            for index, leaf in enumerate(result):
                if isinstance(leaf, torch.Tensor):
                    _remember(leaf, self, node, index)
                elif isinstance(leaf, (tuple, list)):
                    self._name_nested(leaf, node, index)

    def _name_nested(self, leaves: Any, node: fx.Node, index: int) -> None:
        inner = self._item(node, index)
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                _remember(leaf, self, inner, position)

    def _item(self, node: fx.Node, index: int) -> fx.Node:
        item = self.graph.create_node("call_function", operator.getitem, (node, index))
        step, depth = node.meta["index"]
        item.meta.update(windows=(), mutates=(), index=(step, depth + 1))
        return item

    def _node(self, tensor: torch.Tensor) -> fx.Node:
        """The node that yields this tensor, made on demand for one item of a tuple or an unknown alias."""
        origin: _Origin | None = tensor.__dict__.get(_ORIGIN)
        if origin is None or origin.recorder is not self or origin.node is None:
            return self._unknown(tensor, origin)
        if origin.window != self._window_now(tensor):
            return self._unknown(tensor, None)  # its data was replaced since
        if origin.index is None:
            return origin.node
        with self.graph.inserting_after(origin.node):
            item: fx.Node = self._item(origin.node, origin.index)
        item.meta["windows"] = (self._window(tensor),)
        _remember(tensor, self, item)
        return item

    def _unknown(self, tensor: torch.Tensor, origin: _Origin | None) -> fx.Node:
        """A tensor that no recorded call returned: an alias of a known storage, or a constant."""
        storage = _storage(tensor)
        known = self._storage_of.get(storage._cdata)
        if known is None:
            read = self.randomness.node_of(tensor)
            if read is not None:
                return read
            if origin is None and isinstance(tensor, FakeTensor) and self.strict:
                raise CaptureFailed(
                    "a tensor was computed where the trace does not look, in another thread for example",
                    fix="run the model in one thread",
                )
            node = self._placeholder(tensor, storage, role="constant", name=f"constant_{len(self._storages)}")
            node.meta["origin"] = origin
            return node
        base = self._base[known]
        if base.meta["windows"] == (self._window(tensor),):
            _remember(tensor, self, base)
            return base
        node = self.graph.create_node(
            "call_function",
            torch.ops.aten.as_strided.default,
            (base, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()),
        )
        node.meta.update(self._notes(), windows=(self._window(tensor),), mutates=())
        _remember(tensor, self, node)
        return node

    def _placeholder(self, tensor: torch.Tensor, storage: torch.UntypedStorage, *, role: str, name: str) -> fx.Node:
        with self.graph.inserting_after(self._last_placeholder):
            node = self.graph.create_node("placeholder", _identifier(name, len(self._storages)))
        self._last_placeholder = node
        self._own(storage, node, role=role, name=name)
        value = tensor if type(tensor) is torch.Tensor else None
        node.meta.update(windows=(self._window(tensor),), mutates=(), index=(0, len(self._storages)), value=value)
        _remember(tensor, self, node)
        return node

    def _own(self, storage: torch.UntypedStorage, node: fx.Node, *, role: str | None, name: str) -> None:
        self._storage_of[storage._cdata] = len(self._storages)
        self._storages.append(Storage(bytes=storage.nbytes(), role=role, name=name))
        self._kept.append(storage)
        self._base.append(node)

    def _output_window(self, tensor: torch.Tensor, node: fx.Node) -> Window:
        storage = _storage(tensor)
        if storage._cdata not in self._storage_of:
            self._own(storage, node, role=None, name="")
        return self._window(tensor)

    def _window_now(self, tensor: torch.Tensor) -> Window | None:
        """The tensor's window, or nothing where its storage is unknown."""
        return self._window(tensor) if _storage(tensor)._cdata in self._storage_of else None

    def _window(self, tensor: torch.Tensor) -> Window:
        dtype = str(tensor.dtype)[6:]
        width = DTYPE_BYTES.get(dtype)
        if width is None:
            raise UnsupportedOp(f"tensors of dtype {dtype} are not modelled", fix="use a dense, non-quantized dtype")
        return Window(
            self._storage_of[_storage(tensor)._cdata],
            int(tensor.storage_offset()) * width,
            tuple(tensor.shape),
            tensor.stride(),
            dtype,
        )


def value_is_known(tensor: torch.Tensor) -> bool:
    """Whether constants alone decide the tensor, in the recording that made it."""
    origin: _Origin | None = tensor.__dict__.get(_ORIGIN)
    if origin is None or origin.recorder is None:
        return False
    with torch._C.DisableTorchFunction():
        return evaluate(origin.recorder._node(tensor), origin.recorder) is not None


def made_by(tensor: torch.Tensor) -> _Origin | None:
    """The recording, node and place in its result that the tensor comes from, where it comes from one."""
    return tensor.__dict__.get(_ORIGIN)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    if tensor.layout is not torch.strided:
        raise UnsupportedOp(f"tensors of layout {tensor.layout} are not modelled", fix="make the tensor dense")
    return tensor.untyped_storage()


def _remember(tensor: torch.Tensor, recorder: Recorder, node: fx.Node, index: int | None = None) -> None:
    tensor.__dict__[_ORIGIN] = _Origin(recorder, node, index, recorder._window(tensor))


def _replace_tensors(value: Any, node_of: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return node_of(value)
    if isinstance(value, (tuple, list)):
        replaced = [_replace_tensors(leaf, node_of) for leaf in value]
        return replaced if isinstance(value, list) else tuple(replaced)
    return value


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def _identifier(name: str, index: int) -> str:
    return "".join(c if c.isalnum() else "_" for c in name) or f"arg_{index}"
