"""Two rewrites as one: what a rewrite of a rewritten graph is, seen from the first graph."""

from tmmu.errors import InternalError
from tmmu.ir.graph import Graph
from tmmu.ir.rewrite import PART, PARTIAL_KINDS, RERUN, SAME, SUBLIST, Part, Rewrite

_AGAIN = (RERUN, PART)


def compose(base: Graph, first: Rewrite, second: Rewrite) -> Rewrite:
    """The rewrite of ``base`` whose ops are those of ``second``, which rewrites what ``first`` makes of ``base``.

    Ops of which one rewrite does nothing are as the other has them; what runs again of a rerun is a rerun, of a part in
    a buffer of its own that part; ranges of a sublist count from its start. ``INTERNAL`` for anything else.
    """
    if first.base_hash != base.ir_hash:
        raise InternalError("a rewrite of another graph was composed")
    rows = [_row(first, *row) for row in zip(second.origin, second.kind, second.part, strict=True)]
    return Rewrite(
        base_hash=first.base_hash,
        origin=tuple(first.origin[op] for op in second.origin),
        kind=tuple(kind for kind, _ in rows),
        part=tuple(part for _, part in rows),
    )


def _row(first: Rewrite, op: int, kind: str, part: Part) -> tuple[str, Part]:
    before, its_part = first.kind[op], first.part[op]
    if before == SAME and kind not in PARTIAL_KINDS:
        return kind, part
    if kind == SAME or (kind == RERUN and before in _AGAIN):
        return before, its_part
    if kind == before == SUBLIST:
        return SUBLIST, (its_part[0] + part[0], its_part[0] + part[1])
    raise InternalError(f"a {kind} of a {before} is of no kind")
