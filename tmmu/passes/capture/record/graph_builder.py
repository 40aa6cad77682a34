"""The fx graph of a trace while it is made: nodes for calls, and for each tensor the node that yields it.

State. ``graph`` has one node per call, in order, placeholders first. ``table`` numbers the storages and knows the
window of every tensor on one (``storage_table.py``). ``mutators`` lists, by storage, the nodes that wrote to it in
place; ``assumed`` the declared tensors whose values something looked at; ``names`` what a constant is called that is
met later, by the address of its storage. Which node a tensor comes from is not here but on the tensor, in a
``TensorOrigin``: no map has to keep tensors alive, and they die as in eager.

Invariants. Every tensor among a node's arguments is a node: one that comes from another graph, or from none, is first
adopted, as an alias of a known storage or as a constant. An origin counts only while the tensor has the window that it
had then; after ``tensor.data = other`` the tensor is adopted anew. A node's ``meta["windows"]`` are those of its
results at that call, so that resizing or freeing a storage later changes no recorded fact.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from tmmu.errors import CaptureFailed
from tmmu.ir.graph import DTYPE_BYTES
from tmmu.passes.capture.program import Window
from tmmu.passes.capture.record.lifetimes import LifetimeLog
from tmmu.passes.capture.record.storage_table import StorageTable
from tmmu.passes.capture.record.values import KnownValues, evaluate
from tmmu.passes.capture.routing.routing import Routing
from tmmu.torch_private import DisableTorchFunction, OpOverload, cpp_address, disable_current_modes

_ORIGIN: Final = "_tmmu_origin"


class TensorOrigin:
    """The node that a tensor comes from, kept on the tensor; a copy of the tensor has none.

    ``index`` is the tensor's position where the node yields a tuple, ``window`` where it lay then.
    """

    __slots__ = ("builder", "index", "node", "window")

    def __init__(
        self,
        builder: "GraphBuilder | None" = None,
        node: fx.Node | None = None,
        index: int | None = None,
        window: Window | None = None,
    ) -> None:
        self.builder, self.node, self.index, self.window = builder, node, index, window

    def __deepcopy__(self, memo: Any) -> "TensorOrigin":
        return TensorOrigin()

    def __reduce__(self) -> Any:
        return (TensorOrigin, ())


@dataclass(frozen=True, slots=True)
class InsertionPoint:
    """Where a call belongs: the node before it (``None``: before all), and the notes that it gets."""

    after: fx.Node | None
    notes: Mapping[str, Any]


class GraphBuilder:
    """A graph under construction: ``notes`` gives the metadata of a call made now.

    ``node_of_unknown`` is asked for a tensor on an unknown storage before that becomes a constant: it may give another
    node, or refuse by an error.
    """

    def __init__(
        self,
        notes: Callable[[], dict[str, Any]],
        node_of_unknown: Callable[[torch.Tensor, TensorOrigin | None], fx.Node | None],
        *,
        folder: str = "",
        follows_lifetimes: bool = False,
        routing: Routing | None = None,
    ) -> None:
        self.graph = fx.Graph()
        self.lifetimes = LifetimeLog(folder, follows=follows_lifetimes)
        self.table = StorageTable(self.lifetimes.note_death)
        self.mutators: dict[int, list[fx.Node]] = {}
        self.mutation_count = 0
        self.known_values = KnownValues()
        self.routing = routing
        self.assumed: dict[str, None] = {}
        self.names: dict[int, str] = {}
        self._notes = notes
        self._node_of_unknown = node_of_unknown
        self._last_placeholder: fx.Node | None = None
        self._numbers: Mapping[float, tuple[Any, ...]] = {}
        self._arrived: list[float] = []
        self.takes_numbers = False
        """Whether a number among the arguments of calls may be one of ``numbers_in_calls``."""

    def bytes_of(self, storage: int) -> int:
        """The size of a storage when it became known."""
        return self.table.bytes_of(storage)

    def is_mutated(self, tensor: torch.Tensor) -> bool:
        """Whether some call wrote to the tensor's storage in place."""
        storage = self.table.id_of(tensor)
        return storage is not None and bool(self.mutators.get(storage))

    def is_declared(self, tensor: torch.Tensor) -> bool:
        """Whether it is an input, a weight or a constant itself, not a view of one."""
        origin: TensorOrigin | None = tensor.__dict__.get(_ORIGIN)
        return (
            origin is not None
            and origin.builder is self
            and origin.node is not None
            and origin.node.op == "placeholder"
        )

    # -- making nodes

    def declare(
        self, tensor: torch.Tensor, *, role: str, name: str, known: bool = False, is_zero: bool = False
    ) -> None:
        """Make the tensor's storage known under a role and name, unless it already is.

        ``is_zero``: that is its value. ``known``: what depends on the value that it was built with may be evaluated,
        and its name is then ``assumed``.
        """
        if self.table.id_of(tensor) is None:
            built_as = tensor.__dict__.get(_ORIGIN)
            node = self._placeholder(tensor, role=role, name=name)
            # For the weight's first value. The trace itself may not count on it: weights are loaded.
            node.meta["built_as"] = built_as
            if is_zero:
                with disable_current_modes():
                    node.meta["value"] = torch.zeros(tensor.shape, dtype=tensor.dtype)
            if known:
                node.meta.update(origin=built_as, assumes=name)

    def add_call(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        written: Iterable[torch.Tensor],
    ) -> None:
        """A call on these nodes, which has returned ``result`` and changed ``written`` in place."""
        node = self.graph.create_node("call_function", func, args, dict(kwargs))
        node.meta["windows"] = tuple(
            self._result_window(leaf, node) if isinstance(leaf, torch.Tensor) else None for leaf in flatten(result)
        )
        node.meta["mutates"] = tuple(dict.fromkeys(self.table.window(tensor) for tensor in written))
        for window in node.meta["mutates"]:
            self._note_mutation(window.storage, node)
        node.meta.update(self._notes())
        self.lifetimes.number_call(node)
        self._tag_results(result, node)

    def _note_mutation(self, storage: int, node: fx.Node) -> None:
        self.mutators.setdefault(storage, []).append(node)
        self.mutation_count += 1

    def add_lifted(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Let the tensor, on a storage of its own, stand for the constant that the node yields."""
        storage = node.meta["windows"][0].storage
        self.lifetimes.note_constant(storage)
        self.table.add_alias(tensor, storage)
        self._tag(tensor, node)

    def current_point(self) -> InsertionPoint:
        """After the last node so far, with the notes that a call would get now."""
        return InsertionPoint(after=next(iter(reversed(self.graph.nodes)), None), notes=self._notes())

    def insert_call(
        self, point: InsertionPoint, func: OpOverload, args: tuple[Any, ...], result: torch.Tensor | None
    ) -> fx.Node:
        """The node of a call at this point; tensors in ``args`` are adopted, ``result`` is what it returns."""
        with DisableTorchFunction():
            node_args = self.nodes_in(args)
            with self.graph.inserting_after(point.after) if point.after else self.graph.inserting_before():
                node: fx.Node = self.graph.create_node("call_function", func, node_args)
            windows = (None,) if result is None else (self._result_window(result, node),)
            node.meta.update(point.notes, windows=windows, mutates=())
            self._tag_results(result, node)
        return node

    def _result_window(self, tensor: torch.Tensor, node: fx.Node) -> Window:
        window = self.table.window_of(tensor)
        if window is None:
            self.table.add(tensor, node)
            window = self.table.window(tensor)
        return window

    def _placeholder(self, tensor: torch.Tensor, *, role: str, name: str) -> fx.Node:
        with self.graph.inserting_after(self._last_placeholder):
            node = self.graph.create_node("placeholder", _identifier(name, len(self.table)))
        self._last_placeholder = node
        self.table.add(tensor, node, role=role, name=name)
        windows = (self.table.window(tensor),)
        value = tensor if type(tensor) is torch.Tensor else None
        node.meta.update(windows=windows, mutates=(), index=(0, len(self.table)), value=value)
        self._tag(tensor, node)
        return node

    def _item(self, node: fx.Node, index: int) -> fx.Node:
        item = self.graph.create_node("call_function", operator.getitem, (node, index))
        step, depth = node.meta["index"]
        item.meta.update(windows=(), mutates=(), index=(step, depth + 1))
        return item

    # -- from tensors to nodes

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that yields this tensor, made on demand for one item of a tuple or an unknown alias."""
        origin: TensorOrigin | None = tensor.__dict__.get(_ORIGIN)
        if origin is None or origin.builder is not self or origin.node is None:
            return self._adopt(tensor, origin)
        window = self.table.window_of(tensor)
        if origin.window != window or (window is not None and self.table.is_freed(window)):
            return self._adopt(tensor, None)  # its data was replaced since, or is gone
        if origin.index is None:
            return origin.node
        with self.graph.inserting_after(origin.node):
            item: fx.Node = self._item(origin.node, origin.index)
        item.meta["windows"] = (self.table.window(tensor),)
        self._tag(tensor, item)
        return item

    def nodes_in(self, value: Any) -> Any:
        """An argument with a node in place of each tensor."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (tuple, list)):
            leaves = [self.nodes_in(leaf) for leaf in value]
            return leaves if isinstance(value, list) else tuple(leaves)
        if not self._numbers or type(value) is not float or value not in self._numbers:
            return value
        self._arrived.append(value)
        return self._numbers[value]

    @contextmanager
    def numbers_in_calls(self, numbers: Mapping[float, tuple[Any, ...]]) -> Iterator[Sequence[float]]:
        """Block in which these numbers are the arguments beside them; gives each as often as it arrives."""
        before = self._numbers, self._arrived, self.takes_numbers
        self._numbers, self._arrived, self.takes_numbers = numbers, [], True
        try:
            yield self._arrived
        finally:
            self._numbers, self._arrived, self.takes_numbers = before

    def _adopt(self, tensor: torch.Tensor, origin: TensorOrigin | None) -> fx.Node:
        """A node for a tensor that no call here returned: an alias of a known storage, or a constant."""
        storage = self.table.id_of(tensor)
        if storage is None:
            return self._node_of_unknown(tensor, origin) or self._constant(tensor, origin)
        node = self._node_of_window(self.table.window(tensor))
        self._tag(tensor, node)
        return node

    def _node_of_window(self, window: Window) -> fx.Node:
        """The node that made the window's storage, or a view of it: as its dtype first, then as its shape."""
        if self.table.is_freed(window):
            source = self._notes()["source"]
            raise CaptureFailed(
                f"{source + ': ' if source else ''}a tensor is used whose storage was freed or cut",
                fix="resize the storage before the tensor is used again",
                **({"where": source} if source else {}),
            )
        node = self._node_in_memory(window.in_memory)
        if window.neg:
            node = self._view(node, window._replace(conj=False), torch.ops.aten._neg_view.default, ())
        return self._view(node, window, torch.ops.aten._conj.default, ()) if window.conj else node

    def _node_in_memory(self, window: Window) -> fx.Node:
        node = self.table.maker_of(window.storage)
        first: Window = node.meta["windows"][0]
        if node.meta["windows"] == (window,):
            return node
        if len(node.meta["windows"]) == 1 and first.dtype != window.dtype:
            width, first_width = DTYPE_BYTES[window.dtype], DTYPE_BYTES[first.dtype]
            size = self.table.first_bytes_of(window.storage)
            flat = Window(window.storage, 0, (size // first_width,), (1,), first.dtype)
            node = self._view(node, flat, torch.ops.aten.as_strided.default, ([size // first_width], [1], 0))
            cast = Window(window.storage, 0, (size // width,), (1,), window.dtype)
            node = self._view(node, cast, torch.ops.aten.view.dtype, (getattr(torch, window.dtype),))
        args = (list(window.shape), list(window.stride), window.offset // DTYPE_BYTES[window.dtype])
        return self._view(node, window, torch.ops.aten.as_strided.default, args)

    def _view(self, node: fx.Node, window: Window, func: OpOverload, args: tuple[Any, ...]) -> fx.Node:
        view: fx.Node = self.graph.create_node("call_function", func, (node, *args))
        view.meta.update(self._notes(), windows=(window,), mutates=())
        return view

    def replace_storage(self, handle: torch.UntypedStorage, grown: torch.Tensor, kept_bytes: int) -> None:
        """Let a storage be that of ``grown``, ``uint8[bytes]``, from now on, where its first bytes are copied to."""
        old, new = self.table.id_of_storage(handle), self.table.window(grown).storage
        if old is not None and kept_bytes:
            source, target = (Window(storage, 0, (kept_bytes,), (1,), "uint8") for storage in (old, new))
            args = (self._node_of_window(target), self._node_of_window(source))
            node = self.graph.create_node("call_function", torch.ops.aten.copy_.default, args)
            node.meta.update(self._notes(), windows=(target,), mutates=(target,))
            self.lifetimes.number_call(node)
            self._note_mutation(new, node)
        self.table.move(handle, new)

    def _constant(self, tensor: torch.Tensor, origin: TensorOrigin | None) -> fx.Node:
        storage = tensor.untyped_storage()
        known = self.names.get(cpp_address(storage)) if self.lifetimes.is_earlier(storage) else None
        name = known or f"constant_{len(self.table)}"
        node = self._placeholder(tensor, role="constant", name=name)
        node.meta["origin"] = origin
        return node

    def _tag(self, tensor: torch.Tensor, node: fx.Node, index: int | None = None) -> None:
        tensor.__dict__[_ORIGIN] = TensorOrigin(self, node, index, self.table.window(tensor))

    def _tag_results(self, result: Any, node: fx.Node) -> None:
        if isinstance(result, torch.Tensor):
            self._tag(result, node)
        elif isinstance(result, (tuple, list)):
            for index, leaf in enumerate(result):
                if isinstance(leaf, torch.Tensor):
                    self._tag(leaf, node, index)
                elif isinstance(leaf, (tuple, list)):
                    self._tag_list(leaf, self._item(node, index))

    def _tag_list(self, leaves: Sequence[Any], node: fx.Node) -> None:
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                self._tag(leaf, node, index)


def builder_of(tensor: torch.Tensor) -> GraphBuilder | None:
    """The recording that a tensor comes from; ``None`` for a tensor that no call returned and nobody declared."""
    origin: TensorOrigin | None = tensor.__dict__.get(_ORIGIN)
    return None if origin is None else origin.builder


def value_is_known(tensor: torch.Tensor) -> bool:
    """Whether constants alone decide the tensor, in the graph that it comes from."""
    origin: TensorOrigin | None = tensor.__dict__.get(_ORIGIN)
    if origin is None or origin.builder is None:
        return False
    with DisableTorchFunction():
        return evaluate(origin.builder.node_of(tensor), origin.builder) is not None


def window_of(tensor: torch.Tensor) -> Window | None:
    """The window of a tensor that a trace knows; ``None`` for any other."""
    origin: TensorOrigin | None = tensor.__dict__.get(_ORIGIN)
    return None if origin is None else origin.window


def flatten(value: Any) -> list[Any]:
    """The leaves of nested tuples and lists."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flatten(item)]
    return [value]


def _identifier(name: str, index: int) -> str:
    return "".join(c if c.isalnum() else "_" for c in name) or f"arg_{index}"
