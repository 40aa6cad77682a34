"""Values on demand: a tensor that depends on constants alone is computed by running its part of the graph for real.

Models read such scalars while they are built or traced (``linspace(...)[i].item()``, "is any position masked?"). What
depends on weights, inputs or random numbers has no value before the model runs, and ends the trace.

The part to run is the backward slice of the node: its arguments, and every call that wrote in place to a storage that
the slice touches, transitively. Each node enters the slice once and a slice has at most ``_MAX_NODES`` nodes, so the
search ends. Calls run in recorded order (``meta["index"]``), so an in-place write is seen by those after it and no
others. The slice is refused as a whole where one node is a weight or a random draw, or an input or buffer of which the
model's file says no value; those that it looks at are noted (``assumed``), since other values may take another path.
A constant of another recording (a model's buffer, made while it was built) is evaluated there; recordings refer only to
earlier ones, so that recursion ends too.

Where a capacity of experts is declared (``log.routing``), what a gate chooses is a leaf too, of the value that the
declaration gives it, and calls between ranks are computed as if all ranks routed so. That is tried last: what has a
value without an assumption keeps it.

A slice is closed, so one evaluation gives the values of all its nodes, which hold until the next write in place: an
optimizer that counts the steps of a thousand weights in one call is evaluated once, not once a weight and recording.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from tmmu.passes.capture.routing.exchanges import exchange, fills_result, is_exchange
from tmmu.passes.capture.routing.routing import Routing, is_gate
from tmmu.passes.operators.collectives import NAMESPACES
from tmmu.torch_private import DataDependentOutputException, OpOverload, disable_current_modes

_COUNTS = frozenset(
    [
        "any",
        "bincount",
        "cumsum",
        "histc",
        "index_add",
        "index_add_",
        "index_put",
        "index_put_",
        "nonzero",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "searchsorted",
        "sum",
    ]
)
"""Operators that say of choices which there are, or how many."""
_MAX_NODES = 4096
_UNINITIALIZED = ("empty", "new_empty", "resize")
_FILLS = ("fill_", "zero_", "copy_")
_MAX_BYTES = 1 << 26
"""Bytes of a storage that is computed: enough for the masks that models inspect, far below any weight."""
_MAX_KEPT_BYTES = 1 << 12
"""Bytes of a storage whose value is kept: a mask is computed again."""


@dataclass
class KnownValues:
    """Small values of nodes, which hold under one ``stamp``: writes so far, and the default dtype."""

    stamp: tuple[int, torch.dtype] = (-1, torch.float32)
    by_node: dict[fx.Node, torch.Tensor] = field(default_factory=dict)

    def under(self, stamp: tuple[int, torch.dtype]) -> dict[fx.Node, torch.Tensor]:
        """The values that hold under this stamp; those of another are forgotten."""
        if stamp != self.stamp:
            self.stamp, self.by_node = stamp, {}
        return self.by_node


class MutationLog(Protocol):
    """What evaluation needs of a recorder: which calls wrote to which storage in place."""

    @property
    def assumed(self) -> dict[str, None]:
        """Names of declared tensors whose values were looked at; evaluation adds to it."""
        ...

    @property
    def mutators(self) -> Mapping[int, Sequence[fx.Node]]:
        """Nodes that wrote in place, by storage, in order."""
        ...

    @property
    def mutation_count(self) -> int:
        """How many writes in place were recorded so far."""
        ...

    @property
    def routing(self) -> Routing | None:
        """What gates are taken to choose; ``None`` where a model is built, and no gate runs."""
        ...

    @property
    def known_values(self) -> KnownValues:
        """What evaluation has found; kept by it."""
        ...

    def bytes_of(self, storage: int) -> int:
        """The size of a storage."""
        ...


def concrete_scalar(tensor: torch.Tensor, node: fx.Node, log: MutationLog) -> bool | int | float | complex:
    """The number in a one-element tensor, if constants alone decide it."""
    if type(tensor) is torch.Tensor:
        with disable_current_modes():
            return tensor.item()
    value = evaluate(node, log)
    if value is None:
        raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)
    with disable_current_modes():
        return value.item()


def evaluate(node: fx.Node, log: MutationLog) -> torch.Tensor | None:
    """The node's tensor, computed for real; ``None`` where it is not a small function of constants. O(slice)."""
    known = log.known_values.under((log.mutation_count, torch.get_default_dtype()))
    if node not in known:
        result = _evaluate_slice(node, log, known)
        if node not in known:
            return result
    with disable_current_modes():
        return known[node].clone()  # who takes it may write it


def _evaluate_slice(node: fx.Node, log: MutationLog, known: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """The node's tensor; what is small of its slice goes into ``known``."""
    values = _values_of_slice(_backward_slice(node, log, None), None)
    if values is None and log.routing is not None:
        values = _values_under_routing(node, log, log.routing)
    if values is None:
        return None
    log.assumed.update((call.meta["assumes"], None) for call in values if call.meta.get("assumes"))
    known.update((call, value) for call, value in values.items() if _is_worth_keeping(value))
    result = values[node]
    return result if isinstance(result, torch.Tensor) else None


def _values_under_routing(node: fx.Node, log: MutationLog, routing: Routing) -> dict[fx.Node, Any] | None:
    """The values of a slice that ends at gates; ``None`` where it ends at none, or at anything else unknown."""
    needed = _backward_slice(node, log, routing)
    gates = [call for call in needed or () if is_gate(call)]
    if not gates or routing.factor is None:
        routing.note_unanswered(gates, is_count=any(_base_name(call) in _COUNTS for call in needed or ()))
        return None

    def sum_of_elements() -> float:
        values = _values_of_slice(needed, routing)
        with disable_current_modes():
            return 0.0 if values is None else float(values[node].sum())

    routing.choose(gates, sum_of_elements)
    return _values_of_slice(needed, routing)


def _values_of_slice(needed: list[fx.Node] | None, routing: Routing | None) -> dict[fx.Node, Any] | None:
    """The value of each node of a slice."""
    if needed is None:
        return None
    values: dict[fx.Node, Any] = {}
    with disable_current_modes(), torch.no_grad():
        for call in sorted(needed, key=lambda n: n.meta["index"]):
            if routing is not None and is_gate(call):
                values[call] = routing.choices(call)
                continue
            value = _leaf_value(call) if call.op == "placeholder" else _run(call, values)
            if value is None and call.op == "placeholder":
                return None
            values[call] = value
    return values


def _is_worth_keeping(value: Any) -> bool:
    return type(value) is torch.Tensor and value.untyped_storage().nbytes() <= _MAX_KEPT_BYTES


def _backward_slice(node: fx.Node, log: MutationLog, routing: Routing | None) -> list[fx.Node] | None:
    needed: dict[fx.Node, None] = {}
    stack = [node]
    while stack:
        current = stack.pop()
        if current in needed:
            continue
        if len(needed) > _MAX_NODES or not _is_computable(current, log, routing):
            return None
        needed[current] = None
        if routing is None or not is_gate(current):
            stack.extend(current.all_input_nodes)
        for window in current.meta["windows"]:
            if window is not None:
                stack.extend(log.mutators.get(window.storage, ()))
    return list(needed)


def _is_computable(node: fx.Node, log: MutationLog, routing: Routing | None) -> bool:
    if node.op == "placeholder":
        return node.meta["value"] is not None or node.meta.get("origin") is not None
    if node.target is operator.getitem:
        return True
    if getattr(node.target, "namespace", "") in NAMESPACES and (routing is None or not is_exchange(node.target)):
        return False
    if _base_name(node).startswith(_UNINITIALIZED) and not _is_filled(node, log):
        return False
    tags = getattr(node.target, "tags", ())
    small = all(log.bytes_of(w.storage) <= _MAX_BYTES for w in node.meta["windows"] if w is not None)
    return small and torch.Tag.nondeterministic_seeded not in tags


def _is_filled(node: fx.Node, log: MutationLog) -> bool:
    """Whether what was in memory is overwritten, whole, before anything else is done with it."""
    window = node.meta["windows"][0]
    changes = log.mutators.get(window.storage, ())
    if not changes or window not in changes[0].meta["mutates"]:
        return False
    return _base_name(changes[0]) in _FILLS or fills_result(changes[0].target)


def _base_name(node: fx.Node) -> str:
    """Of the operator that the node calls; empty for a Python function."""
    return str(node.target.overloadpacket.__name__) if isinstance(node.target, OpOverload) else ""


def _leaf_value(node: fx.Node) -> torch.Tensor | None:
    """A real tensor as it is (cloned: the calls may write it), or the value from the recording that made it."""
    value = node.meta["value"]
    if value is not None:
        return value.clone()  # type: ignore[no-any-return]
    origin = node.meta["origin"]
    if origin.builder is None or origin.index is not None:
        return None
    return evaluate(origin.node, origin.builder)


def _run(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args = fx.node.map_arg(node.args, values.__getitem__)
    kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
    if is_exchange(node.target):
        return exchange(node.target, args, kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]
