"""Runs a graph of AOTAutograd's for the recorder: where each node comes from, and which storage it means.

Such a graph names windows by their offset in the storages that it was traced on. Arguments lie elsewhere in ours, so
those offsets are moved.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture.modules import ModuleStack
from tmmu.passes.capture.record.randomness import Randomness
from tmmu.passes.capture.sources import display_name
from tmmu.torch_private import rng_prims, schema_of

_aten: Final = torch.ops.aten
_LINE: Final = re.compile(r'File "([^"]+)", line (\d+)')
_ROOT: Final = re.compile(r"^L\['\w+'\]\.?")
_ITEM: Final = re.compile(r"_modules\['([^']*)'\]")
_NOWHERE: Final = "autograd"
"""The source of what no line of the user's stands for."""


class GraphReplayer(fx.Interpreter):
    """Calls ``made`` with each node and its value."""

    def __init__(
        self,
        graph: fx.GraphModule,
        modules: ModuleStack,
        on_value: Callable[[fx.Node, Any], None],
        sizes: Mapping[Any, int],
        randomness: Randomness,
    ) -> None:
        super().__init__(graph)
        self._modules, self._on_value, self._sizes, self._randomness = modules, on_value, sizes, randomness

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        stack = n.meta.get("nn_module_stack") or n.meta.get("fwd_nn_module_stack") or {}
        path = next(reversed(list(stack.values())))[0] if stack else ""
        lines = _LINE.findall(n.meta.get("stack_trace") or "")
        self._modules.path = _module_path(str(path))
        self._modules.source = f"{display_name(lines[-1][0], '')}:{lines[-1][1]}" if lines else _NOWHERE
        value = self._value(n)
        self._on_value(n, value)
        return value

    def _value(self, n: fx.Node) -> Any:
        if n.target in _BY_STORAGE:
            return self._call_by_storage(n, _BY_STORAGE[n.target])
        if n.target in RANDOM_STATE_CALLS:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return RANDOM_STATE_CALLS[n.target](self._randomness, *args, **kwargs)
        return super().run_node(n)

    def _call_by_storage(self, n: fx.Node, call: Callable[..., Any]) -> Any:
        """The call, its offset counted from where the argument lies here."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        names = [parameter.name for parameter in schema_of(n.target).arguments]
        arguments = dict(zip(names, args, strict=False)) | kwargs
        offset = arguments.get("storage_offset")
        if offset is not None:
            traced_offset = _number(n.args[0].meta["val"].storage_offset(), self._sizes)  # type: ignore[union-attr]
            arguments["storage_offset"] = offset - traced_offset + int(arguments["self"].storage_offset())
        return call(**arguments)


def _strided_scatter(
    self: torch.Tensor,
    src: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """A copy of a tensor, a window of it replaced: the operator itself would copy, and count from, a whole storage."""
    if int(self.storage_offset()):
        raise UnsupportedOp("a window is replaced in a view by its place in a storage", fix="clone the view first")
    result = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype)
    result.copy_(self)
    result.as_strided(size, stride, storage_offset or 0).copy_(src)
    return result


_BY_STORAGE: Final[Mapping[Any, Callable[..., Any]]] = {
    _aten.as_strided.default: _aten.as_strided.default,
    _aten.as_strided_scatter.default: _strided_scatter,
}
"""Operators that count from the start of a storage."""


def _run_and_save_state(randomness: Randomness, call: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """The state before the call, and what the call gives."""
    return randomness.read_state(), call(*args, **kwargs)


def _run_with_state(randomness: Randomness, state: torch.Tensor, call: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What the call gives in that state; the state of now is back afterwards."""
    current_state = randomness.read_state()
    randomness.restore_state(state)
    result: torch.Tensor = call(*args, **kwargs)
    randomness.restore_state(current_state)
    return result


RANDOM_STATE_CALLS: Final[Mapping[Any, Callable[..., Any]]] = {
    rng_prims.run_and_save_rng_state: _run_and_save_state,
    rng_prims.run_with_rng_state: _run_with_state,
}
"""What AOTAutograd makes of an operator that draws inside ``torch.utils.checkpoint``."""


def is_saved_random_state(node: fx.Node) -> bool:
    """Whether it is a state that a call of the first half was made in."""
    is_item = node.target is operator.getitem and node.args[0].target is rng_prims.run_and_save_rng_state  # type: ignore[union-attr]
    return bool(is_item and node.args[1] == 0)


def is_restored_random_state(node: fx.Node) -> bool:
    """Whether it is a state that a call of the second half is to be made in."""
    return any(user.target is rng_prims.run_with_rng_state and user.args[0] is node for user in node.users)


def restore_in_place_draws(graph: fx.GraphModule) -> None:
    """Random bits that eager draws in place are drawn in place again.

    AOTAutograd makes ``empty_like(x).bernoulli_(p)`` a call that returns a tensor, whose elements lie and are drawn in
    another order than eager's where ``x`` is transposed.
    """
    for node in graph.graph.find_nodes(op="call_function", target=_aten.bernoulli.p):
        empty = node.args[0]
        if empty.target is not _aten.empty_like.default:
            continue
        with graph.graph.inserting_before(node):
            drawn = graph.graph.call_function(_aten.bernoulli_.float, node.args, node.kwargs)
            drawn.meta = dict(empty.meta)
            if not _same_strides(empty, node):
                drawn = graph.graph.call_function(
                    _aten.clone.default, (drawn,), {"memory_format": torch.contiguous_format}
                )
                drawn.meta = dict(node.meta)
        node.replace_all_uses_with(drawn)
        graph.graph.erase_node(node)
    graph.recompile()


def _same_strides(first: fx.Node, second: fx.Node) -> bool:
    return [str(step) for step in first.meta["val"].stride()] == [str(step) for step in second.meta["val"].stride()]


def _module_path(path: str) -> str:
    """``L['self']._modules['0'].weight`` as ``0.weight``."""
    return _ITEM.sub(r"\1", _ROOT.sub("", path))


def _number(size: Any, sizes: Mapping[Any, int]) -> int:
    return int(size.node.expr.xreplace(sizes)) if isinstance(size, torch.SymInt) else int(size)


def symbol_sizes(graph: fx.GraphModule, args: Sequence[Any]) -> dict[Any, int]:
    """What each free symbol of the graph is for these arguments."""
    sizes: dict[Any, int] = {}
    for node, arg in zip(graph.graph.find_nodes(op="placeholder"), args, strict=True):
        example = node.meta.get("val")
        pairs = zip(example.shape, arg.shape, strict=True) if isinstance(example, torch.Tensor) else ((example, arg),)
        for symbolic, size in pairs:
            if isinstance(symbolic, torch.SymInt) and symbolic.node.expr.is_Symbol:
                sizes[symbolic.node.expr] = int(size)
    return sizes


def empty_like_node(node: fx.Node, symbol_sizes: Mapping[Any, int]) -> Any:
    """An empty tensor like the node's value, its sizes made numbers; a number as it is."""
    example = node.meta["val"]
    if not isinstance(example, torch.Tensor):
        return _number(example, symbol_sizes)
    shape, stride = (
        tuple(_number(size, symbol_sizes) for size in sizes) for sizes in (example.shape, example.stride())
    )
    return torch.empty_strided(shape, stride, dtype=example.dtype)
