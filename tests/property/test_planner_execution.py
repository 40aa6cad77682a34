"""Run the plan with bytes that remember their owner: nothing that is needed is ever overwritten."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import graphs
from tmmu.ir.graph import Graph
from tmmu.ir.plan import LAYOUTS, MODES, PRESETS, Plan
from tmmu.planner.arenas import default_arenas, parse_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed


class Memory:
    """Which placed buffers still hold what was last written into them."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph = graph
        b = plan.buffers
        slab = [
            "stack" if how == "joint" else name for name, how in zip(plan.arenas.name, plan.arenas.layout, strict=True)
        ]
        self.range = {x: (slab[b.arena[i]], b.offset[i], b.offset[i] + b.bytes[i]) for i, x in enumerate(b.id)}
        self.over = dict(zip(b.id, b.takes_over, strict=True))
        self.intact = {x for x in b.id if graph.buffers.role[x] in ("parameter", "constant", "state")}

    def clash(self, one: int, other: int) -> bool:
        (a, low, high), (b, start, end) = self.range[one], self.range[other]
        return one != other and a == b and max(low, start) < min(high, end)

    def demand(self, value: int) -> None:
        buffer = self.graph.values.buffer[value]
        assert buffer not in self.range or buffer in self.intact, f"value {value} of buffer {buffer} is gone"

    def run(self, op: int) -> None:
        ops, buffer = self.graph.ops, self.graph.values.buffer
        for value in ops.reads[op]:
            self.demand(value)
        read = {buffer[v] for v in ops.reads[op] if buffer[v] in self.range}
        written = {buffer[v] for v in ops.writes[op]}
        for new in written:
            assert not any(self.clash(new, other) for other in written)
            for old in read:
                assert not self.clash(new, old) or (self.over[new] == old and self.range[new] == self.range[old])
        self.intact = {x for x in self.intact if not any(self.clash(x, new) for new in written)} | written


@settings(deadline=None, max_examples=300)
@given(graphs(shuffled=None), st.sampled_from(MODES), st.sampled_from(PRESETS), st.sampled_from(LAYOUTS))
def test_every_read_and_everything_kept_finds_its_bytes(graph: Graph, mode: str, preset: str, layout: str) -> None:
    arenas = parse_arenas([f"{name}=layout:{layout}" for name in ("activations", "gradients")], default_arenas(1))
    plan = prepare_memory(graph, mode=mode, preset=preset, token=token_from_seed(3), arenas=arenas)
    memory = Memory(graph, plan)
    for op in plan.order:
        memory.run(op)
    made = {v for op in plan.order for v in graph.ops.writes[op]}
    recomputed = {v for op in plan.order if graph.ops.recompute[op] for v in graph.ops.writes[op]}
    for value in made & set(graph.outputs):
        memory.demand(value)
    for op in plan.order if mode == "forward" else ():
        for value in graph.ops.saves[op]:
            if preset != "remat_enabled" or value not in recomputed:
                memory.demand(value)
