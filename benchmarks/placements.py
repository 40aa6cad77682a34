"""What other ways to place a step take: ``python -m benchmarks.placements GRAPH.ir.cbor ...``.

For each graph the bytes of its stack, as a ratio to what is live at its fullest position, which no placement undercuts:
planned; the arenas of activations and gradients apart, as a hierarchy of arenas would keep them; one slot for each
colour of an optimal colouring of the intervals, which no integer program improves; sizes rounded up to powers of two,
and to four classes for each doubling, and to pages of 2 MiB, all three placed without any gap.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from tmmu.codec.load import load_graph
from tmmu.ir.graph import GRADIENT, PERSISTENT_ROLES, Graph
from tmmu.ir.plan import segment_bytes
from tmmu.planner.arenas import default_arenas, parse_arenas
from tmmu.planner.fit.fit_step import step_mode
from tmmu.planner.liveness import analyze_liveness
from tmmu.planner.order import derive_order
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

PAGE = 1 << 21
HEADING = ("graph", "live MiB", "planned", "arenas apart", "slots", "powers of 2", "4 classes", "pages")


def live_bytes(graph: Graph, rounded: Callable[[int], int]) -> int:
    """At the fullest position, with each buffer as large as ``rounded`` makes it."""
    mode = step_mode(graph)
    order = derive_order(graph, mode)
    ranges = analyze_liveness(graph, order, mode=mode, preset="train_full")
    change = [0] * (ranges.timeline + 1)
    for buffer, birth, death in zip(ranges.id, ranges.birth, ranges.death, strict=True):
        if graph.buffers.role[buffer] not in PERSISTENT_ROLES:
            change[birth] += rounded(graph.buffers.bytes[buffer])
            change[death] -= rounded(graph.buffers.bytes[buffer])
    level = most = 0
    for each in change:
        level += each
        most = max(most, level)
    return most


def stack_bytes(graph: Graph, *arenas: str) -> int:
    """Of the plan with these arenas."""
    specs = parse_arenas(arenas, default_arenas(64))
    plan = prepare_memory(graph, mode=step_mode(graph), preset="train_full", token=token_from_seed(0), arenas=specs)
    return segment_bytes(plan.arenas, "stack")


def power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length() if size else 0


def quarter_class(size: int) -> int:
    """The next of four sizes for each doubling."""
    step = max(1, power_of_two(size) // 8)
    return -(-size // step) * step


def page(size: int) -> int:
    return -(-size // PAGE) * PAGE


def row(graph: Graph) -> list[float]:
    """Live bytes, then the ratios of ``HEADING``."""
    live = live_bytes(graph, lambda size: -(-size // 64) * 64)
    layouts: list[tuple[str, ...]] = [()]
    both = ("activations", "gradients") if GRADIENT in graph.buffers.role else ("activations",)
    layouts += [tuple(f"{name}=layout:{layout}" for name in both) for layout in ("packed", "slots")]
    placed = [stack_bytes(graph, *arenas) for arenas in layouts]
    rounded = [live_bytes(graph, rule) for rule in (power_of_two, quarter_class, page)]
    return [live / 2**20, *(size / max(1, live) for size in (*placed, *rounded))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", type=Path)
    print("| " + " | ".join(HEADING) + " |\n|" + " --- |" * len(HEADING))
    for path in parser.parse_args().graphs:
        live, *ratios = row(load_graph(path))
        name = path.name.removesuffix(".ir.cbor")
        print(f"| {name} | {live:,.1f} | " + " | ".join(f"{ratio:.4f}" for ratio in ratios) + " |", flush=True)


if __name__ == "__main__":
    main()
