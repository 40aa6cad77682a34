"""Rewrites that copy values to the host after one of their readers, and back before a later one."""

from collections.abc import Callable, Sequence

from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.rewrite import FROM_HOST, SAME, TO_HOST, Part, Rewrite

Row = tuple[int, str, Part]
Trip = tuple[int, int, int]
"""(value, op after which it goes, op before which it comes back), of the base."""


def trips(base: Graph) -> list[Trip]:
    """Of each buffer that one op writes whole and that several read: its first gap between readers."""
    writers: dict[int, set[int]] = {}
    uses: dict[int, list[int]] = {}
    for op in base.ops.ids:
        for value in base.ops.writes[op]:
            writers.setdefault(base.values.buffer[value], set()).add(op)
        for buffer in {base.values.buffer[value] for value in (*base.ops.reads[op], *base.ops.writes[op])}:
            uses.setdefault(buffer, []).append(op)
    kept = {base.values.buffer[value] for value in base.outputs}
    found = []
    for op in base.ops.ids:
        for buffer, value in {base.values.buffer[value]: value for value in reversed(base.ops.writes[op])}.items():
            gaps = [(low, high) for low, high in zip(uses[buffer], uses[buffer][1:], strict=False) if high - low > 1]
            is_one = writers[buffer] == {op} and base.buffers.role[buffer] not in PERSISTENT_ROLES
            if is_one and buffer not in kept and gaps:
                found.append((int(value), *gaps[-1]))
    return found


def copied(base: Graph, chosen: Sequence[Trip]) -> Rewrite:
    """The base with these values on the host in between."""
    writer = {value: op for op in base.ops.ids for value in base.ops.writes[op]}
    rows: list[Row] = []
    for op in base.ops.ids:
        rows += [(writer[value], FROM_HOST, (value,)) for value, _, back in chosen if back == op]
        rows.append((op, SAME, ()))
        rows += [(writer[value], TO_HOST, (value,)) for value, out, _ in chosen if out == op]
    return rewrite_of(base, rows)


def rewrite_of(base: Graph, rows: Sequence[Row]) -> Rewrite:
    """The rows as columns."""
    origin, kind, part = zip(*rows, strict=True)
    return Rewrite(base_hash=base.ir_hash, origin=origin, kind=kind, part=part)


def random_copies(base: Graph, pick: Callable[[int], int]) -> Rewrite:
    """About two of three of them."""
    return copied(base, [trip for trip in trips(base) if pick(3)])
