"""Files of every version of a format: kept as they were written, and read for ever."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import PlanMismatch, TmmuError
from tmmu.golden.cases import load
from tmmu.golden.store import FORMATS
from tmmu.ir import graph as ir
from tmmu.ir import plan as planned
from tmmu.judge.check import judge

GRAPH: Final = ".ir.cbor"
PLAN: Final = ".plan.cbor"


def unreadable(folder: Path) -> Iterator[tuple[str, str]]:
    """Every kept file that cannot be read, or whose plan is no longer sound: its name and why."""
    for path in sorted((folder / FORMATS).glob(f"ir-v*/*{GRAPH}")):
        yield from _refusal(folder, path, lambda one: load(one, read_graph))
    for path in sorted((folder / FORMATS).glob(f"plan-v*/*{PLAN}")):
        yield from _refusal(folder, path, _judge_beside)


def _refusal(folder: Path, path: Path, read: Callable[[Path], object]) -> Iterator[tuple[str, str]]:
    try:
        read(path)
    except TmmuError as error:
        yield path.relative_to(folder).as_posix(), error.what


def _judge_beside(path: Path) -> None:
    """The plan is read, and sound for a graph of the same name."""
    plan, name = load(path, read_plan), path.name.removesuffix(PLAN) + GRAPH
    for other in sorted(path.parent.parent.glob(f"ir-v*/{name}")):
        graph = load(other, read_graph)
        if graph.ir_hash == plan.ir_hash:
            return judge(graph, plan)
    raise PlanMismatch(f"{path}: its graph {name} is not there", fix="restore it from version control")


def new_files(recorded: Collection[str], kept: Mapping[str, tuple[bytes, bytes]]) -> Iterator[tuple[str, bytes]]:
    """What a format starts with of whose version no file is recorded: graph and plan of every case that is kept."""
    for kind, version, which, ending in (("ir", ir.VERSION, 0, GRAPH), ("plan", planned.VERSION, 1, PLAN)):
        where = f"{FORMATS}/{kind}-v{version}/"
        if not any(name.startswith(where) for name in recorded):
            for name, files in kept.items():
                yield f"{where}{name}{ending}", files[which]
