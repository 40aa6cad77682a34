"""Values on demand: a scalar that depends on nothing but constants is computed by running its part of the graph.

Models read such scalars while they are built or traced (``linspace(...)[i].item()``, "is any position masked?"). What
depends on weights, inputs or random numbers has no value before the model runs, and ends the trace.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import _disable_current_modes

_MAX_NODES = 4096
_UNINITIALIZED = ("empty", "new_empty", "resize")
_FILLS = ("fill_", "zero_", "copy_")
_MAX_BYTES = 1 << 26
"""Enough for the masks that models inspect; far below any weight."""


class Recording(Protocol):
    """What evaluation needs of a recorder: who changed which storage in place."""

    @property
    def mutators(self) -> Mapping[int, Sequence[fx.Node]]:
        """Nodes that wrote in place, by storage, in order."""
        ...

    def bytes_of(self, storage: int) -> int:
        """The size of a storage."""
        ...


def concrete_scalar(tensor: torch.Tensor, node: fx.Node, recording: Recording) -> bool | int | float | complex:
    """The number in a one-element tensor, if constants alone decide it."""
    if type(tensor) is torch.Tensor:
        with _disable_current_modes():
            return tensor.item()
    value = evaluate(node, recording)
    if value is None:
        raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)
    with _disable_current_modes():
        return value.item()


def evaluate(node: fx.Node, recording: Recording) -> torch.Tensor | None:
    """The node's tensor, computed for real; ``None`` where it is not a small function of constants."""
    needed = _needed(node, recording)
    if needed is None:
        return None
    values: dict[fx.Node, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        for step in sorted(needed, key=lambda n: n.meta["index"]):
            value = _leaf(step) if step.op == "placeholder" else _call(step, values)
            if value is None:
                return None
            values[step] = value
    result = values[node]
    return result if isinstance(result, torch.Tensor) else None


def _needed(node: fx.Node, recording: Recording) -> list[fx.Node] | None:
    needed: dict[fx.Node, None] = {}
    stack = [node]
    while stack:
        current = stack.pop()
        if current in needed:
            continue
        if len(needed) > _MAX_NODES or not _computable(current, recording):
            return None
        needed[current] = None
        stack.extend(current.all_input_nodes)
        for window in current.meta["windows"]:
            if window is not None:
                stack.extend(recording.mutators.get(window.storage, ()))
    return list(needed)


def _computable(node: fx.Node, recording: Recording) -> bool:
    if node.op == "placeholder":
        return node.meta["value"] is not None or node.meta.get("origin") is not None
    if node.target is operator.getitem:
        return True
    if getattr(node.target, "_opname", "").startswith(_UNINITIALIZED) and not _filled(node, recording):
        return False
    tags = getattr(node.target, "tags", ())
    small = all(recording.bytes_of(w.storage) <= _MAX_BYTES for w in node.meta["windows"] if w is not None)
    return small and torch.Tag.nondeterministic_seeded not in tags


def _filled(node: fx.Node, recording: Recording) -> bool:
    """Whether what was in memory is overwritten, whole, before anything else is done with it."""
    window = node.meta["windows"][0]
    changes = recording.mutators.get(window.storage, ())
    return bool(changes) and changes[0].meta["mutates"] == (window,) and changes[0].target._opname in _FILLS  # type: ignore[union-attr]


def _leaf(node: fx.Node) -> torch.Tensor | None:
    """A real tensor as it is (cloned: the steps may write it), or the value from the recording that made it."""
    value = node.meta["value"]
    if value is not None:
        return value.clone()  # type: ignore[no-any-return]
    origin = node.meta["origin"]
    if origin.recorder is None or origin.index is not None:
        return None
    return evaluate(origin.node, origin.recorder)


def _call(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args = fx.node.map_arg(node.args, values.__getitem__)
    kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
    return node.target(*args, **kwargs)  # type: ignore[operator]
