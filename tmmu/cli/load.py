"""Plan and graph files into values; every refusal names the file."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tmmu.errors import TmmuError
from tmmu.ir.check import judge
from tmmu.ir.files import read_file
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.ir.read import read_graph, read_plan
from tmmu.ir.rules import require_legal

T = TypeVar("T")


def load_plan(path: Path) -> Plan:
    """The plan of a file, well formed and with its digest checked; not yet judged."""
    data = read_file(path)
    return _of(path, lambda: read_plan(data))


def load_graph(path: Path) -> Graph:
    """The graph of a file, well formed; not yet known to be legal."""
    data = read_file(path)
    return _of(path, lambda: read_graph(data))


def load_judged(plan: Plan, ir: Path, token: bytes | None) -> Graph:
    """The graph of ``ir``, which is legal and of which ``plan`` is a sound plan."""
    graph = load_graph(ir)
    _of(ir, lambda: require_legal(graph))
    judge(graph, plan, token=token)
    return graph


def _of(path: Path, step: Callable[[], T]) -> T:
    try:
        return step()
    except TmmuError as error:
        raise type(error)(f"{path}: {error.what}", fix=error.fix, **error.fields) from error
