"""Plans executed symbolically, with an owner per byte: no needed byte is ever overwritten."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import graphs
from tmmu.ir.graph import Graph
from tmmu.ir.plan import LAYOUTS, MODES, PRESETS, Plan
from tmmu.planner.arenas import default_arenas, parse_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed


class OwnedMemory:
    """The placed buffers whose last written contents are intact."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph = graph
        b = plan.buffers
        slab = [
            "stack" if layout == "joint" else name
            for name, layout in zip(plan.arenas.name, plan.arenas.layout, strict=True)
        ]
        self.range = {x: (slab[b.arena[i]], b.offset[i], b.offset[i] + b.bytes[i]) for i, x in enumerate(b.id)}
        self.over = dict(zip(b.id, b.takes_over, strict=True))
        self.intact = {x for x in b.id if graph.buffers.role[x] in ("parameter", "constant", "state")}

    def overlaps(self, first: int, second: int) -> bool:
        (a, low, high), (b, start, end) = self.range[first], self.range[second]
        return first != second and a == b and max(low, start) < min(high, end)

    def require_intact(self, value: int) -> None:
        buffer = self.graph.values.buffer[value]
        assert buffer not in self.range or buffer in self.intact, f"value {value} of buffer {buffer} is gone"

    def run(self, op: int) -> None:
        ops, buffer = self.graph.ops, self.graph.values.buffer
        for value in ops.reads[op]:
            self.require_intact(value)
        read = {buffer[v] for v in ops.reads[op] if buffer[v] in self.range}
        written = {buffer[v] for v in ops.writes[op]}
        for new in written:
            assert not any(self.overlaps(new, another) for another in written)
            for old in read:
                assert not self.overlaps(new, old) or (self.over[new] == old and self.range[new] == self.range[old])
        self.intact = {x for x in self.intact if not any(self.overlaps(x, new) for new in written)} | written


@settings(deadline=None, max_examples=300)
@given(graphs(shuffled=None), st.sampled_from(MODES), st.sampled_from(PRESETS), st.sampled_from(LAYOUTS))
def test_every_read_output_and_saved_value_finds_its_bytes(graph: Graph, mode: str, preset: str, layout: str) -> None:
    arenas = parse_arenas([f"{name}=layout:{layout}" for name in ("activations", "gradients")], default_arenas(1))
    plan = prepare_memory(graph, mode=mode, preset=preset, token=token_from_seed(3), arenas=arenas)
    memory = OwnedMemory(graph, plan)
    for op in plan.order:
        memory.run(op)
    written = {v for op in plan.order for v in graph.ops.writes[op]}
    recomputed = {v for op in plan.order if graph.ops.recompute[op] for v in graph.ops.writes[op]}
    for value in written & set(graph.outputs):
        memory.require_intact(value)
    for op in plan.order if mode == "forward" else ():
        for value in graph.ops.saves[op]:
            if preset != "remat_enabled" or value not in recomputed:
                memory.require_intact(value)
