"""Graphs of layers for the ring planner, and ring problems without a graph."""

from collections.abc import Sequence
from dataclasses import replace

from tests.strategies import Builder
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.ir.ring import Visit
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.ring.problem import RingProblem
from tmmu.planner.token import token_from_seed

FLOATS = 4


def layered_graph(sizes: Sequence[int], *, tied: int = 0, backward: bool = False, unread: int = 0) -> Graph:
    """A chain of layers of two ops, each of which reads half of its layer's ``sizes`` bytes of weights.

    ``tied`` bytes are read by an op before the first layer and by one after the last; ``unread`` bytes by none. With
    ``backward`` every layer is read once more, in the reverse order.
    """
    b = Builder()
    modules: list[str] = []
    names: dict[int, str] = {}
    x = b.buffer("input", (8,))

    def op(module: str, weights: Sequence[int], stage: str = "forward") -> None:
        nonlocal x
        result = b.buffer("activation" if stage == "forward" else "gradient", (8,))
        b.op([x, *weights], [result], stage=stage)
        modules.append(module)
        x = result

    def weight(name: str, size: int) -> int:
        buffer = b.buffer("parameter", (size // FLOATS,))
        names[buffer] = name
        return buffer

    embed = weight("embed.weight", tied) if tied else None
    if unread:
        weight("unread.weight", unread)
    if embed is not None:
        op("embed", [embed])
    layers = [(weight(f"h.{i}.a.weight", n // 2), weight(f"h.{i}.b.weight", n - n // 2)) for i, n in enumerate(sizes)]
    for i, (first, second) in enumerate(layers):
        op(f"h.{i}.a", [first])
        op(f"h.{i}.b", [second])
    if embed is not None:
        op("head", [embed])
    for i, (first, second) in reversed(list(enumerate(layers)) if backward else []):
        op(f"h.{i}.b", [second], "backward")
        op(f"h.{i}.a", [first], "backward")
    graph = b.build([x], name="layered")
    ops = replace(graph.notes.ops, module=tuple(modules), flops=tuple(range(1000, 1000 + len(modules))))
    buffers = tuple(names.get(buffer, "") for buffer in range(len(graph.buffers)))
    return replace(graph, notes=replace(graph.notes, name="layered", buffers=buffers, ops=ops))


def plan_graph(graph: Graph, mode: str = "inference", alignment: int = 64) -> Plan:
    preset = "inference" if mode == "inference" else "train_full"
    return prepare_memory(
        graph, mode=mode, preset=preset, token=token_from_seed(0), arenas=default_arenas(alignment=alignment)
    )


def layer_problem(
    sizes: Sequence[int], compute: Sequence[int], copy: Sequence[int], pinned: Sequence[bool] = ()
) -> RingProblem:
    """A problem of one op per block, in order."""
    count = len(sizes)
    return RingProblem(
        names=tuple(f"h.{i}" for i in range(count)),
        bytes=tuple(sizes),
        members=((),) * count,
        pinned=tuple(pinned or [False] * count),
        visits=tuple(Visit(block=i, first=i, last=i) for i in range(count)),
        op_ns=tuple(compute),
        copy_ns=tuple(copy),
        alignment=1,
    )
