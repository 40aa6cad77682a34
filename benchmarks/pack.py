"""Packing by tmmu against published heuristics: ``python -m benchmarks.pack [--data DIR] [--corpus] [--nodes N]``.

Cases: every CSV under DIR and, with ``--corpus``, the plans of some models. Per case and method: the excess of the peak
over the most bytes live at once, in parts per million, and the seconds of one run; ``-`` if it would take more than a
minute. Exits 1 unless the result of tmmu is sound and no higher than that of any other method.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import PEERS
from tests.problems import random_problem
from tmmu.ir.problem import PackProblem, Placement, Problem
from tmmu.judge.packing import require_sound_packing
from tmmu.planner.intervals import read_intervals
from tmmu.planner.layout import place_packed
from tmmu.planner.pack.instance import prepare_instance
from tmmu.planner.pack.solve import pack
from tmmu.planner.slots import max_live_bytes

MODELS = (("GPT-2", "inference"), ("GPT-2", "backward"), ("Llama 3.1 8B", "backward"), ("ConvNeXt tiny", "backward"),
          ("Whisper small", "inference"), ("Whisper small", "backward"))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingCase:
    name: str
    problem: PackProblem
    is_plan: bool = False
    """Packed as in a plan (``place_packed``), not as by ``tmmu pack``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    method: str
    peak: int
    seconds: float
    note: str = ""


def file_cases(data: Path) -> Iterator[PackingCase]:
    for path in sorted(data.glob("**/*.csv")):
        yield PackingCase(name=path.stem, problem=read_intervals(path).problem)


def random_cases() -> Iterator[PackingCase]:
    for items, live in ((500, 20), (5_000, 50), (20_000, 100)):
        yield PackingCase(name=f"random-{items}-{live}", problem=to_pack_problem(random_problem(items, live)))


def model_cases() -> Iterator[PackingCase]:
    """The stack of each model's plan as one problem; a chain of takeovers is one item."""
    from benchmarks.architectures import ARCHITECTURES  # noqa: PLC0415 - torch, and only for this
    from benchmarks.corpus import plan  # noqa: PLC0415

    for name, mode in MODELS:
        for architecture in filter(lambda entry: entry.name == name, ARCHITECTURES):
            row = plan(architecture, mode, "cuda")
            if row.result is None:
                sys.exit(f"{name}: {row.reason}")
            rows, segment = row.result.plan.buffers, row.result.plan.arenas.segment
            items: dict[int, list[int]] = {}
            root: dict[int, int] = {}
            columns = zip(rows.id, rows.arena, rows.bytes, rows.birth, rows.death, rows.takes_over, strict=True)
            for buffer, arena, size, birth, death, over in sorted(columns, key=lambda r: (r[3], r[0])):
                if segment[arena] == "stack":
                    root[buffer] = first = root.get(over, over)
                    span = items.setdefault(first, [birth, death, size])
                    span[1] = max(span[1], death)
            birth_death_size = list(zip(*items.values(), strict=True))
            problem = Problem(birth=birth_death_size[0], death=birth_death_size[1], size=birth_death_size[2])
            yield PackingCase(name=f"{name} {mode}", problem=to_pack_problem(problem), is_plan=True)


def to_pack_problem(problem: Problem) -> PackProblem:
    return PackProblem(
        size=problem.size,
        birth=problem.birth,
        death=problem.death,
        alignment=(1,) * len(problem),
        fixed=(-1,) * len(problem),
    )


def to_problem(problem: PackProblem) -> Problem:
    return Problem(size=problem.size, birth=problem.birth, death=problem.death)


def run_tmmu(case: PackingCase, search_nodes: int | None) -> MethodResult:
    start = time.perf_counter()
    packed = place_packed(to_problem(case.problem)) if case.is_plan else pack(case.problem, search_nodes=search_nodes)
    seconds = time.perf_counter() - start
    require_sound_packing(case.problem, packed.offset, peak=packed.peak, bound=packed.bound)
    note = packed.method + " proven" * packed.proven
    if not isinstance(packed, Placement):
        note += f" {packed.nodes_visited} nodes"
    return MethodResult(method="tmmu", peak=packed.peak, seconds=seconds, note=note)


def run_peers(case: PackingCase) -> Iterator[MethodResult]:
    instance = prepare_instance(to_problem(case.problem), max_live_bytes(to_problem(case.problem)))
    for peer in PEERS:
        if len(instance) > peer.max_items:
            yield MethodResult(method=peer.name, peak=-1, seconds=0.0)
            continue
        start = time.perf_counter()
        low = peer.place(instance)
        seconds = time.perf_counter() - start
        offset = [0] * len(case.problem)
        for item, item_offset in zip(instance.item.tolist(), low.tolist(), strict=True):
            offset[item] = item_offset
        peak = int((low + instance.size).max())
        require_sound_packing(case.problem, offset, peak=peak, bound=instance.bound)
        yield MethodResult(method=peer.name, peak=peak, seconds=seconds)


def show_case(case: PackingCase, search_nodes: int | None) -> bool:
    """Print a case; True if no peer has a lower peak."""
    live = max_live_bytes(to_problem(case.problem))
    our_result = run_tmmu(case, search_nodes)
    peer_results = list(run_peers(case))
    print(f"{case.name}: {len(case.problem)} items, {live} live at once")
    for result in (our_result, *peer_results):
        excess = "-" if result.peak < 0 else f"{(result.peak - live) * 1_000_000 // max(live, 1)}"
        worse = "  BELOW OURS" if 0 <= result.peak < our_result.peak else ""
        print(f"  {result.method:14} {excess:>8} ppm {result.seconds:8.2f} s  {result.note}{worse}", flush=True)
    return not any(0 <= result.peak < our_result.peak for result in peer_results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--corpus", action="store_true", help="also the plans of some models")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--nodes", type=int, help="of the exact search, for each file")
    options = parser.parse_args()
    cases = [*file_cases(options.data), *random_cases(), *(model_cases() if options.corpus else ())]
    if not any(options.data.glob("**/*.csv")):
        print(f"no CSV file under {options.data}", file=sys.stderr)
        return 2
    never_worse = [show_case(case, options.nodes) for case in cases if options.only in case.name]
    print(f"never worse than any: {sum(never_worse)} of {len(never_worse)} cases")
    return 0 if all(never_worse) else 1


if __name__ == "__main__":
    sys.exit(main())
