"""Read plan and graph files; every error names the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from tmmu.codec.files import read_file
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import TmmuError
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.judge.check import judge
from tmmu.judge.rules import require_legal

T = TypeVar("T")

PLAN_SUFFIX: Final = ".plan.cbor"
IR_SUFFIX: Final = ".ir.cbor"


def ir_path(ir: Path | None, plan: Path) -> Path:
    """The file of the plan's graph: ``ir``, or beside the plan under the same name."""
    return ir or plan.with_name(plan.name.removesuffix(PLAN_SUFFIX) + IR_SUFFIX)


def load_plan(path: Path, *, name: str = "") -> Plan:
    """The plan of a file, well formed and with its digest checked, not judged. Errors call it ``name``."""
    data = read_file(path)
    return naming_file(name or str(path), lambda: read_plan(data))


def load_graph(path: Path, *, name: str = "") -> Graph:
    """The graph of a file, well formed, its legality not checked. Errors call it ``name``."""
    data = read_file(path)
    return naming_file(name or str(path), lambda: read_graph(data))


def load_judged(plan: Plan, ir: Path, token: bytes | None, *, plan_name: str, name: str = "") -> Graph:
    """The graph of ``ir``, legal, with ``plan`` sound for it. Errors use the names."""
    called = name or str(ir)
    graph = load_graph(ir, name=called)
    naming_file(called, lambda: require_legal(graph))
    naming_file(f"{plan_name} on {called}", lambda: judge(graph, plan, token=token))
    return graph


def naming_file(name: str, step: Callable[[], T]) -> T:
    """What ``step`` returns; its errors begin with the name."""
    try:
        return step()
    except TmmuError as error:
        raise type(error)(f"{name}: {error.what}", fix=error.fix, **error.fields) from error
