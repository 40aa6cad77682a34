"""Exact packing: offsets below a capacity or a proof that there are none, and the least peak.

Deterministic, and bounded by nodes, of which a dear one counts as several: the answer depends on neither time, threads
nor the order of the rows. Compiled where numba is installed; without it the same answers take about fifty times as
long.
"""

from tmmu.ir.problem import PackProblem
from tmmu.planner.pack.exact.answers import Minimum, Verdict
from tmmu.planner.pack.exact.instance import occupies_bytes, prepare_instances

__all__ = ["Minimum", "Verdict", "find", "minimize"]


def find(problem: PackProblem, capacity: int, *, search_nodes: int) -> Verdict:
    """Offsets with no end above ``capacity``, a proof that there are none, or neither within ``search_nodes``."""
    from tmmu.planner.pack.exact.portfolio import find_parts  # noqa: PLC0415  compiles

    return find_parts(prepare_instances(problem), capacity, default_offsets(problem), search_nodes)


def minimize(problem: PackProblem, incumbent: tuple[int, ...], *, search_nodes: int) -> Minimum:
    """The lowest peak found within ``search_nodes``, never above that of ``incumbent``, which must be sound."""
    from tmmu.planner.pack.exact.bisection import minimize_parts  # noqa: PLC0415  compiles

    offset_by_row = tuple(
        incumbent[row] if occupies_bytes(problem, row) else offset
        for row, offset in enumerate(default_offsets(problem))
    )
    return minimize_parts(prepare_instances(problem), offset_by_row, search_nodes)


def default_offsets(problem: PackProblem) -> tuple[int, ...]:
    """Offsets of items that conflict with nothing: fixed, or 0."""
    return tuple(max(offset, 0) for offset in problem.fixed)
