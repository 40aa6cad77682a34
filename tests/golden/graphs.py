"""The golden graphs that are written by hand: each as short as what it is there to catch allows.

``golden/NAME.ir.cbor`` holds what ``GRAPHS[NAME]()`` makes; ``test_golden`` compares them. The others were captured
from models, by the command that ``made`` in ``golden/cases.toml`` gives.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.strategies import Builder, random_graph, seeded
from tmmu.ir.graph import Graph, Notes, OpNotes

FOLDER: Final = Path(__file__).parents[2] / "golden"
SMALL: Final = """\
[diamond]
reason = "two takers"
seeds = [0, 7]

[mixed-roles]
reason = "all roles"
seeds = [3]
keep = true
"""
LAYERS: Final = {
    "h.0": 20, "h.1": 40, "h.2": 28, "h.3": 16, "h.4.0": 60, "h.4.1": 44, "h.5": 24, "h.6": 36, "h.7": 12, "h.8": 32,
    "h.9": 24,
}  # fmt: skip
"""The layers of ``weight-ring``, in KiB."""


@dataclass
class Net:
    """A builder that names what it makes; every op says its own line."""

    b: Builder = field(default_factory=Builder)
    names: list[str] = field(default_factory=list)

    def new(self, role: str, name: str, kib: int = 4, *, dtype: str = "float32") -> int:
        self.names.append(name)
        return self.b.buffer(role, (kib * 256,), dtype)

    def tiny(self, role: str, name: str, numbers: int) -> int:
        """A buffer of so many float32 numbers."""
        self.names.append(name)
        return self.b.buffer(role, (numbers,))

    def op(
        self,
        reads: list[int],
        name: str,
        kib: int = 4,
        *,
        over: tuple[int, ...] = (),
        keep: bool = False,
        again: bool = False,
    ) -> int:
        """One op with one result: it may overwrite ``over``; ``keep``: it saves what it reads; ``again``: recompute."""
        value, target = self.new("activation", name, kib), f"test.{name.rstrip('0123456789')}"
        in_place, saves = [(value, x) for x in over], reads if keep else []
        self.b.op(reads, [value], in_place=in_place, saves=saves, target=target, recompute=again)
        return value

    def graph(self, name: str, *outputs: int) -> Graph:
        made = self.b.build(outputs)
        n = len(made.ops)
        ops = OpNotes(
            phase=("unknown",) * n,
            modality=("unknown",) * n,
            flops=(0,) * n,
            module=tuple(f"part.{op}" for op in range(n)),
            source=tuple(f"{name}.py:{op + 1}" for op in range(n)),
        )
        return replace(made, notes=Notes(name=name, buffers=tuple(self.names), ops=ops))


def chain() -> Graph:
    net = Net()
    x = net.new("input", "x")
    for step in range(6):
        x = net.op([x, net.new("parameter", f"weight{step}", 16)], f"product{step}", keep=True)
    return net.graph("chain", x)


def in_place_chain() -> Graph:
    net = Net()
    x = net.op([net.new("input", "x")], "product")
    for step in range(6):
        x = net.op([x], f"relu{step}", over=(x,), keep=step % 2 == 0)
    return net.graph("in-place-chain", x)


def residual() -> Graph:
    net = Net()
    x = net.op([net.new("input", "x")], "embed")
    for layer in range(3):
        inner = net.op([x, net.new("parameter", f"up{layer}", 64)], f"wide{layer}", 16, keep=True)
        act = net.op([inner], f"act{layer}", 16, over=(inner,), keep=True, again=True)
        back = net.op([act, net.new("parameter", f"down{layer}", 64)], f"narrow{layer}", keep=True)
        x = net.op([x, back], f"add{layer}", over=(x, back))
    return net.graph("residual", x)


def fan_out() -> Graph:
    net = Net()
    x = net.op([net.new("input", "x")], "stem", 8)
    arms = [net.op([x], f"arm{n}", kib, keep=True) for n, kib in enumerate((4, 16, 4, 1, 16, 64))]
    return net.graph("fan-out", net.op(arms, "join"), arms[2])


def siblings() -> Graph:
    """Ops with several results, of unlike and of like sizes, some never read; two that could take one place."""
    net = Net()
    x = net.new("input", "x")
    for step in range(2):
        parts = [net.new("activation", f"part{step}.{n}", kib) for n, kib in enumerate((1, 16, 4, 16, 0, 4))]
        net.b.op([x], parts, saves=[parts[2]], target="test.split")
        x = net.op([parts[0], parts[3], parts[5]], f"join{step}", 8)
    pair = [net.new("activation", name, 8) for name in ("left", "right")]
    net.b.op([x], pair, in_place=[(parts, x) for parts in pair], target="test.pair")
    return net.graph("siblings", net.op(pair, "sum", 8, over=tuple(pair)))


def diamond() -> Graph:
    net = Net()
    top = net.op([net.new("input", "x")], "top")
    left, right = net.op([top], "left", 4, over=(top,)), net.op([top], "right", 4, over=(top,))
    deep = net.op([left], "deep", 12, keep=True)
    return net.graph("diamond", net.op([deep, right], "bottom", 4, over=(right,)))


def zero_size() -> Graph:
    net = Net()
    empty = net.op([net.new("input", "nothing", 0)], "empty", 0)
    x = net.op([empty, net.new("parameter", "no weight", 0)], "from-empty", 4)
    also = net.op([empty], "also", 0, over=(empty,), keep=True)
    same = net.op([x, also], "mixed", 4, over=(x,))
    return net.graph("zero-size", same, net.op([same], "none", 0))


def mixed_roles() -> Graph:
    """All seven roles; a state that is changed in part, scratch, a window, recomputation."""
    net = Net()
    x, table, weight = net.new("input", "x"), net.new("constant", "table", 2), net.new("parameter", "weight", 16)
    cache = net.new("state", "cache", 64)
    y = net.op([x, weight, table], "product", keep=True)
    scratch = net.new("scratch", "workspace", 32)
    net.b.op([y], [scratch], target="test.sort")
    part = (1024, (256,), (1,), "float32")
    net.b.op([scratch, y], [], [(cache, part)], target="test.write")
    z = net.new("activation", "mixed")
    net.b.op([cache, (y, part)], [z], saves=[z], recompute=True, target="test.mix")
    loss = net.op([z, y], "loss", 1, keep=True)
    grad = net.new("gradient", "grad z")
    net.b.op([loss, z], [grad], target="test.back", stage="backward")
    last = net.new("gradient", "grad weight", 16)
    net.b.op([grad, x], [last], target="test.back", stage="backward")
    net.b.op([last, cache], [], [(cache, net.b.whole[cache])], target="test.step", stage="update")
    return net.graph("mixed-roles", loss, last)


def near_capacity() -> Graph:
    return replace(residual(), notes=replace(residual().notes, name="near-capacity"))


def shuffled() -> Graph:
    graph = random_graph(seeded(20), ops=40, joint=True, shuffled=True)
    return replace(graph, notes=replace(graph.notes, name="shuffled"))


def apart() -> Graph:
    graph = random_graph(seeded(33), ops=40, joint=True)
    return replace(graph, notes=replace(graph.notes, name="apart"))


def weight_ring() -> Graph:
    """Ten layers of unlike sizes, one of them in two halves that stream apart, there and back; a table that both ends
    read, a layer whose weight the gradient keeps, small weights that join the layer before, padding in each.
    """
    net, modules, flops = Net(), list[str](), list[int]()

    def note(module: str, work: int) -> None:
        modules.append(module)
        flops.append(work * 10**9)

    x, table = net.new("input", "x"), net.new("parameter", "table", 24)
    x, read = net.op([x, table], "embed"), []
    note("table", 0)
    for layer, (module, kib) in enumerate(LAYERS.items()):
        weight, bias = (
            net.new("parameter", f"{module}.weight", kib),
            net.tiny("parameter", f"{module}.bias", 25 + layer),
        )
        y = net.new("activation", f"{module}.y")
        net.b.op([x, weight, bias], [y], saves=[x, weight] if layer == 2 else [x], target="test.layer")
        note(module, 1 if layer % 2 else 3)
        read.append((module, x, weight))
        x = y
    x = net.op([x, net.tiny("constant", "norm.scale", 8)], "norm")
    note("norm", 0)
    back = loss = net.op([x, table, net.new("parameter", "head.weight", 8)], "loss")
    note("head", 3)
    for module, x, weight in reversed(read):
        grad = net.new("gradient", f"{module}.grad")
        net.b.op([back, x, weight], [grad], target="test.back", stage="backward")
        note(module, 6)
        back = grad
    graph = net.graph("weight-ring", loss, back)
    ops = replace(graph.notes.ops, module=tuple(modules), flops=tuple(flops))
    return replace(graph, notes=replace(graph.notes, ops=ops))


def many_views() -> Graph:
    graph = random_graph(seeded(11), ops=60)
    return replace(graph, notes=replace(graph.notes, name="many-views"))


GRAPHS: Final[Mapping[str, Callable[[], Graph]]] = {
    "chain": chain,
    "in-place-chain": in_place_chain,
    "residual": residual,
    "fan-out": fan_out,
    "siblings": siblings,
    "diamond": diamond,
    "zero-size": zero_size,
    "mixed-roles": mixed_roles,
    "near-capacity": near_capacity,
    "apart": apart,
    "shuffled": shuffled,
    "many-views": many_views,
    "weight-ring": weight_ring,
}
