"""Planning time and packing excess over the bound: ``python -m benchmarks.planner [CSV ...]`` from the repository root.

Prints one line per case. CSV files have the columns ``id,lower,upper,size`` of public packing inputs.
"""

import csv
import sys
import time
from pathlib import Path

from tests.problems import decoder, long_graph, random_problem
from tmmu.ir.graph import Graph
from tmmu.ir.problem import Problem
from tmmu.planner.arenas import default_arenas
from tmmu.planner.layout import place_packed
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed


def excess_ppm(peak: int, bound: int) -> int:
    return (peak - bound) * 1_000_000 // max(bound, 1)


def show_graph(name: str, graph: Graph) -> None:
    start = time.perf_counter()
    plan = prepare_memory(graph, mode="backward", preset="inference", token=token_from_seed(0), arenas=default_arenas())
    seconds = time.perf_counter() - start
    a = plan.arenas
    excess = excess_ppm(plan.metrics["peak_bytes.stack"], plan.metrics["bound_bytes.stack"])
    backed = sum(
        n for arena, n in zip(plan.slots.arena, plan.slots.bytes, strict=True) if a.name[arena] == "activations"
    )
    ratio = backed * 1000 // max(a.bound[a.name.index("activations")], 1)
    print(
        f"{name:24} ops {len(graph.ops):8} placed {len(plan.buffers):8} {seconds:7.2f} s  "
        f"over bound {excess:6} ppm  slots/bound {ratio} per mille"
    )


def show_problem(name: str, problem: Problem) -> None:
    start = time.perf_counter()
    placement = place_packed(problem)
    seconds = time.perf_counter() - start
    excess = excess_ppm(placement.peak, placement.bound)
    print(f"{name:24} items {len(problem):8} {seconds:7.2f} s  over bound {excess:6} ppm  {placement.method}")


def read_problem(path: Path) -> Problem:
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    return Problem(
        size=tuple(int(row["size"]) for row in rows),
        birth=tuple(int(row["lower"]) for row in rows),
        death=tuple(int(row["upper"]) for row in rows),
    )


def main() -> None:
    for layers in (12, 32, 126):
        show_graph(f"decoder-{layers}", decoder(layers))
        show_graph(f"decoder-{layers}-train", decoder(layers, train=True))
    show_graph("chain-1000000", long_graph(1_000_000))
    for items, live in ((500, 20), (5_000, 50), (20_000, 100), (100_000, 30), (100_000, 1000)):
        show_problem(f"random-{items}-{live}", random_problem(items, live))
    for name in sys.argv[1:]:
        show_problem(Path(name).stem, read_problem(Path(name)))


if __name__ == "__main__":
    main()
