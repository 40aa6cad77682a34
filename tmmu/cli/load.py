"""Plan and graph files into values; every refusal names the file."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tmmu.codec.files import read_file
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import TmmuError
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.judge.check import judge
from tmmu.judge.rules import require_legal

T = TypeVar("T")


def load_plan(path: Path, *, name: str = "") -> Plan:
    """The plan of a file, well formed and with its digest checked; not yet judged. A refusal calls it ``name``."""
    data = read_file(path)
    return _of(name or str(path), lambda: read_plan(data))


def load_graph(path: Path, *, name: str = "") -> Graph:
    """The graph of a file, well formed; not yet known to be legal. A refusal calls it ``name``."""
    data = read_file(path)
    return _of(name or str(path), lambda: read_graph(data))


def load_judged(plan: Plan, ir: Path, token: bytes | None, *, plan_name: str, name: str = "") -> Graph:
    """The graph of ``ir``, which is legal and of which ``plan`` is a sound plan. A refusal calls them by name."""
    called = name or str(ir)
    graph = load_graph(ir, name=called)
    _of(called, lambda: require_legal(graph))
    _of(f"{plan_name} on {called}", lambda: judge(graph, plan, token=token))
    return graph


def _of(name: str, step: Callable[[], T]) -> T:
    try:
        return step()
    except TmmuError as error:
        raise type(error)(f"{name}: {error.what}", fix=error.fix, **error.fields) from error
