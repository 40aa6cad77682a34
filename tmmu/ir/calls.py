"""What each op of a graph calls: the operator and its arguments, tensors named by value.

The graph says what memory an op touches; the calls, kept beside it in the same order, say how to run it. They hold
operators as objects, so they are not part of any file.
"""

from dataclasses import dataclass
from typing import Any

from tmmu.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a tensor in an argument list: the value with this id."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator call. ``results`` has a value per tensor of the flattened result, ``None`` for anything else."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A graph and what its ops call: all that an executor needs beside a plan and the weights."""

    graph: Graph
    calls: tuple[Call, ...]
