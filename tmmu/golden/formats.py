"""Compatibility files: graphs and plans in every version of their formats, which must stay readable."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import PlanMismatch, TmmuError
from tmmu.golden.cases import load
from tmmu.golden.store import FORMATS
from tmmu.ir import plan as planned
from tmmu.judge.check import judge

GRAPH: Final = ".ir.cbor"
PLAN: Final = ".plan.cbor"


def unreadable_files(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, reason) of each compatibility file that cannot be read or whose plan is no longer sound."""
    for path in sorted((folder / FORMATS).glob(f"ir-v*/*{GRAPH}")):
        yield from _read_error(folder, path, lambda graph_path: load(graph_path, read_graph))
    for path in sorted((folder / FORMATS).glob(f"plan-v*/*{PLAN}")):
        yield from _read_error(folder, path, _judge_with_graph)


def _read_error(folder: Path, path: Path, read: Callable[[Path], object]) -> Iterator[tuple[str, str]]:
    try:
        read(path)
    except TmmuError as error:
        yield path.relative_to(folder).as_posix(), error.what


def _judge_with_graph(path: Path) -> None:
    """Read the plan and judge it with the graph of its name."""
    plan, name = load(path, read_plan), path.name.removesuffix(PLAN) + GRAPH
    for graph_path in sorted(path.parent.parent.glob(f"ir-v*/{name}")):
        graph = load(graph_path, read_graph)
        if graph.ir_hash == plan.ir_hash:
            return judge(graph, plan)
    raise PlanMismatch(f"{path}: its graph {name} is not there", fix="restore it from version control")


def new_files(recorded: Collection[str], kept_files: Mapping[str, tuple[bytes, bytes]]) -> Iterator[tuple[str, bytes]]:
    """First files of each format version that has none: graph and plan of every case with ``keep``.

    A graph is a file of the version that it was written in, which need not be the newest.
    """
    for name, (graph, plan) in kept_files.items():
        for kind, version, data, ending in (
            ("ir", read_graph(graph).version, graph, GRAPH),
            ("plan", planned.VERSION, plan, PLAN),
        ):
            version_folder = f"{FORMATS}/{kind}-v{version}/"
            if not any(known.startswith(version_folder) for known in recorded):
                yield f"{version_folder}{name}{ending}", data
