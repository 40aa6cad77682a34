"""Our packing against published heuristics: ``python -m benchmarks.pack [--data DIR] [--corpus] [--nodes N]``.

Every CSV under DIR, then, with ``--corpus``, the plans of some models. A block a case: for each method the excess of
its peak over the most bytes live at once, in parts per million, and seconds, in this one run. Ours must be sound and
no worse than any: exits 1 where it is not. ``-``: not run, it would take more than a minute.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import PEERS
from tests.problems import random_problem
from tmmu.ir.problem import PackProblem, Problem
from tmmu.judge.packing import require_sound_packing
from tmmu.planner.intervals import read_intervals
from tmmu.planner.layout import place_packed
from tmmu.planner.pack.instance import prepare_instance
from tmmu.planner.pack.solve import pack
from tmmu.planner.slots import max_live_bytes

MODELS = (("GPT-2", "inference"), ("GPT-2", "backward"), ("Llama 3.1 8B", "backward"), ("ConvNeXt tiny", "backward"),
          ("Whisper small", "inference"), ("Whisper small", "backward"))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    problem: PackProblem
    plan: bool = False
    """Packed as plans are, not as ``tmmu pack`` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    method: str
    peak: int
    seconds: float
    note: str = ""


def files(data: Path) -> Iterator[Case]:
    for path in sorted(data.glob("**/*.csv")):
        yield Case(name=path.stem, problem=read_intervals(path).problem)


def synthetic() -> Iterator[Case]:
    for items, live in ((500, 20), (5_000, 50), (20_000, 100)):
        yield Case(name=f"random-{items}-{live}", problem=outer(random_problem(items, live)))


def models() -> Iterator[Case]:
    """The stack of some plans as one problem: rows that take each other over are one item."""
    from benchmarks.architectures import ARCHITECTURES  # noqa: PLC0415 - torch, and only for this
    from benchmarks.corpus import plan  # noqa: PLC0415

    for name, mode in MODELS:
        for architecture in (one for one in ARCHITECTURES if one.name == name):
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
            yield Case(name=f"{name} {mode}", problem=outer(problem), plan=True)


def outer(problem: Problem) -> PackProblem:
    return PackProblem(
        size=problem.size,
        birth=problem.birth,
        death=problem.death,
        alignment=(1,) * len(problem),
        fixed=(-1,) * len(problem),
    )


def inner(problem: PackProblem) -> Problem:
    return Problem(size=problem.size, birth=problem.birth, death=problem.death)


def ours(case: Case, nodes: int | None) -> Result:
    start = time.perf_counter()
    if case.plan:
        placed = place_packed(inner(case.problem))
        seconds = time.perf_counter() - start
        require_sound_packing(case.problem, placed.offset, peak=placed.peak, bound=placed.bound)
        proven = " proven" if placed.proven else ""
        return Result(method="tmmu", peak=placed.peak, seconds=seconds, note=f"{placed.method}{proven}")
    found = pack(case.problem, search_nodes=nodes)
    seconds = time.perf_counter() - start
    require_sound_packing(case.problem, found.offset, peak=found.peak, bound=found.bound)
    proven = " proven" if found.proven else ""
    return Result(
        method="tmmu", peak=found.peak, seconds=seconds, note=f"{found.method}{proven} {found.nodes_visited} nodes"
    )


def theirs(case: Case) -> Iterator[Result]:
    instance = prepare_instance(inner(case.problem), max_live_bytes(inner(case.problem)))
    for peer in PEERS:
        if len(instance) > peer.most:
            yield Result(method=peer.name, peak=-1, seconds=0.0)
            continue
        start = time.perf_counter()
        low = peer.place(instance)
        seconds = time.perf_counter() - start
        offset = [0] * len(case.problem)
        for item, found in zip(instance.item.tolist(), low.tolist(), strict=True):
            offset[item] = found
        peak = int((low + instance.size).max())
        require_sound_packing(case.problem, offset, peak=peak, bound=instance.bound)
        yield Result(method=peer.name, peak=peak, seconds=seconds)


def show(case: Case, nodes: int | None) -> bool:
    """Print a case; whether no peer is below ours."""
    live = max_live_bytes(inner(case.problem))
    mine = ours(case, nodes)
    others = list(theirs(case))
    print(f"{case.name}: {len(case.problem)} items, {live} live at once")
    for one in (mine, *others):
        over = "-" if one.peak < 0 else f"{(one.peak - live) * 1_000_000 // max(live, 1)}"
        worse = "  BELOW OURS" if 0 <= one.peak < mine.peak else ""
        print(f"  {one.method:14} {over:>8} ppm {one.seconds:8.2f} s  {one.note}{worse}", flush=True)
    return all(one.peak < 0 or one.peak >= mine.peak for one in others)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--corpus", action="store_true", help="also the plans of some models")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--nodes", type=int, help="of the exact search, for each file")
    options = parser.parse_args()
    cases = [*files(options.data), *synthetic(), *(models() if options.corpus else ())]
    if not any(options.data.glob("**/*.csv")):
        print(f"no CSV file under {options.data}", file=sys.stderr)
        return 2
    won = [show(case, options.nodes) for case in cases if options.only in case.name]
    print(f"never worse than any: {sum(won)} of {len(won)} cases")
    return 0 if all(won) else 1


if __name__ == "__main__":
    sys.exit(main())
